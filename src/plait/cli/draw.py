"""`plait draw`: a model as a picture."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Final, Literal

import click

from plait.account.parameters import parameters_of
from plait.blueprint.source import Source, open_model
from plait.blueprint.spec import Blueprint
from plait.cli.common import json_option, model_argument, print_json, printable, requires, source_facts
from plait.draw.words import Lang
from plait.errors import PlaitError, UsageError, fault
from plait.units import binary_bytes

__all__ = ["command"]

_SUFFIXES: Final = (".svg", ".png", ".pdf")
_SIZE: Final = re.compile(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"')


def _named(source: Source) -> Blueprint:
    """The blueprint under the name people use."""
    if source.entry is None:
        return source.blueprint
    return replace(source.blueprint, name=source.entry.title)


def _default(source: Source, layer: int | None, layers: bool) -> Path:
    """`gemma-3-270m.svg`, `gemma-3-270m-layer-5.svg`, here."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", source.blueprint.name or source.blueprint.family).strip("-.") or "model"
    if layer is not None:
        stem += f"-layer-{layer}"
    return Path(f"{stem[:200]}{'-layers' if layers else ''}.svg")


def _form(out: Path) -> Literal["svg", "png", "pdf"]:
    """What the suffix of a file asks for; UsageError where Plait draws no such thing."""
    match out.suffix.lower():
        case ".svg":
            return "svg"
        case ".png":
            return "png"
        case ".pdf":
            return "pdf"
        case other:
            expected, found = f"a name that ends in {', '.join(_SUFFIXES)}", repr(other) if other else "no suffix"
            raise UsageError(fault("the kind of picture is not known", file=out, expected=expected, found=found))


def _check_place(out: Path) -> None:
    if not out.parent.is_dir():
        raise UsageError(fault("no place for a picture", file=out.parent, expected="a directory", found="none"))
    if out.exists() and not out.is_file():
        raise UsageError(fault("cannot be replaced", file=out, expected="a file", found="something else"))


def _write(out: Path, data: bytes) -> None:
    """All of the file or nothing."""
    try:
        with tempfile.TemporaryDirectory(prefix=".draw-", suffix=".part", dir=out.absolute().parent) as beside:
            part = Path(beside) / "picture"
            part.write_bytes(data)
            os.replace(part, out)
    except OSError as error:
        raise PlaitError(fault(f"cannot be written ({error.strerror or error})", file=out)) from error


def _picture(
    blueprint: Blueprint,
    source: Source,
    layer: int | None,
    layers: bool,
    theme: Literal["light", "dark"],
    lang: Lang,
) -> str:
    if layer is not None or layers:
        from plait.draw.layer import layer_svg, layers_svg

        if layer is None:
            return layers_svg(blueprint, theme=theme, lang=lang)
        return layer_svg(blueprint, layer, theme=theme, lang=lang)
    from plait.draw.diagram import diagram_svg

    return diagram_svg(blueprint, theme=theme, lang=lang, account=parameters_of(source))


def _bytes(picture: str, form: Literal["svg", "png", "pdf"], title: str, scale: float) -> bytes:
    if form == "svg":
        return picture.encode("utf-8")
    size = _SIZE.search(picture)
    assert size is not None
    from plait.draw.convert import convert

    with requires("draw"):
        return convert(picture, form, title=title, width=float(size[1]), height=float(size[2]), scale=scale)


def _scene(blueprint: Blueprint, source: Source, lang: Lang) -> dict[str, object]:
    """Boxes and links of the whole model's picture, for JSON."""
    from plait.draw.fold import ranges
    from plait.draw.layout import scene_of

    scene = scene_of(blueprint, lang=lang, account=parameters_of(source))
    boxes = []
    for box in scene.boxes:
        facts: dict[str, object] = {
            "box": box.kind,
            "x": box.x,
            "y": box.y,
            "width": box.width,
            "height": box.height,
            "inside": box.parent,
            "texts": [text.content for text in box.texts],
        }
        if box.role is not None:
            facts["kind"] = box.role
        if box.kind == "layer":
            facts["layers"] = ",".join(ranges(box.layers))
        if box.kind == "frame":
            facts["times"] = box.times
        boxes.append(facts)
    links = [
        {"link": link.kind, "source": link.source, "target": link.target, "points": [list(p) for p in link.points]}
        for link in scene.links
    ]
    return {
        "width": scene.width,
        "height": scene.height,
        "title": scene.title,
        "description": scene.description,
        "boxes": boxes,
        "links": links,
    }


@click.command("draw")
@model_argument
@click.option(
    "-o",
    "--output",
    "out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Picture to write: .svg, .png or .pdf; - writes SVG to stdout.  Default: the model's name with .svg, here.",
)
@click.option("--layer", type=int, metavar="I", help="Draw the inside of layer I, counted from 0.")
@click.option("--layers", is_flag=True, help="Draw the inside of one layer of each kind.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the words.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0.1, max=16),
    metavar="S",
    help="Pixels of a PNG for each px of the picture.  Default: 2.",
)
@json_option
def command(
    model: str,
    out: Path | None,
    layer: int | None,
    layers: bool,
    theme: Literal["light", "dark"],
    lang: Lang,
    scale: float | None,
    as_json: bool,
) -> None:
    """Draw MODEL: the whole model bottom to top, its repeated layers folded, what is irregular as it is.

    Pictures of all models follow the same rules and can be laid side by side. In the SVG every card of a layer has
    data-kind (attention, window, delta, latent, sparse) and data-layers, the numbers it stands for, as in 0-2,4-6.
    PNG and PDF need the extra `draw`: pip install 'plait[draw]'. A FILE that is there is replaced. --json prints
    boxes and links of the whole picture, and writes a file only with -o.
    """
    if layer is not None and layers:
        raise UsageError("--layer and --layers: give one of them")
    if as_json and (layer is not None or layers):
        raise UsageError("--json describes the picture of the whole model; leave out --layer and --layers")
    to_stdout = out is not None and str(out) == "-"
    if as_json and to_stdout:
        raise UsageError("--json and -o - both write to stdout; give one of them")
    form = "svg" if out is None or to_stdout else _form(out)
    if scale is not None and form != "png":
        raise UsageError("--scale is for PNG alone; name a file that ends in .png, or leave it out")
    if scale is not None and not isfinite(scale):
        raise UsageError(fault("--scale", expected="a number from 0.1 to 16", found=scale))
    source = open_model(model)
    blueprint = _named(source)
    place = out if out is not None else _default(source, layer, layers)
    writes = not to_stdout and not (as_json and out is None)
    if writes:
        _check_place(place)
    data = b""
    if writes or to_stdout:
        picture = _picture(blueprint, source, layer, layers, theme, lang)
        data = _bytes(picture, form, blueprint.name or blueprint.family, 2.0 if scale is None else scale)
    if to_stdout:
        click.echo(data, nl=False)
        return
    if writes:
        _write(place, data)
    if as_json:
        written = {"picture": str(place), "bytes": len(data)} if writes else {"picture": None, "bytes": None}
        print_json({**source_facts(model, source), **written, **_scene(blueprint, source, lang)})
        return
    click.echo(f"wrote {printable(str(place))}: {binary_bytes(len(data))}")
