"""`plait inspect MODEL`: what a model is, and from where each fact comes."""

from __future__ import annotations

from collections import Counter

import click

from plait.account.headers import Headers, headers_of
from plait.account.parameters import ParameterAccount, account_of
from plait.blueprint.check import not_run
from plait.blueprint.families import family
from plait.blueprint.pattern import layer_numbers
from plait.blueprint.read.config import Coverage
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.source import Sketch, Source, describe, open_model
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Both,
    FactorScaling,
    FeedForward,
    Gated,
    GatedDeltaNet,
    Layer,
    LinearScaling,
    Llama3Scaling,
    Mixer,
    Mixture,
    Norm,
    Rope,
)
from plait.cli.common import (
    json_option,
    layer_kind,
    model_argument,
    pattern,
    print_json,
    print_table,
    printable,
    source_facts,
)
from plait.cli.sketch import coverage_title, hub_facts, place_of, print_inspect
from plait.errors import PlaitError, UsageError
from plait.units import binary_bytes, count

__all__ = ["command"]


def _norm(norm: Norm) -> str:
    kind = "RMS" if norm.kind == "rms" else "LayerNorm"
    weight = "no weight" if not norm.weight else f"{norm.offset:g} + w" if norm.offset else "w"
    return f"{kind}, eps {norm.eps:g}, {weight}{', bias' if norm.bias else ''}"


def _attention(mixer: Attention) -> list[str]:
    parts = [f"heads {mixer.heads}", f"KV heads {mixer.kv_heads}", f"head {mixer.qk_dim}"]
    if mixer.v_dim != mixer.qk_dim:
        parts.append(f"value {mixer.v_dim}")
    parts.append(f"scale {mixer.scale:.6g}")
    if mixer.qk_norm is not None:
        parts.append("q/k norm" if mixer.qk_norm.over == "head" else "q/k norm over all heads")
    if mixer.v_norm is not None:
        parts.append("v norm")
    if mixer.gate is not None:
        parts.append(f"{mixer.gate.activation} gate per {mixer.gate.per}")
    if mixer.softcap is not None:
        parts.append(f"softcap {mixer.softcap:g}")
    if mixer.value_scale != 1.0:
        parts.append(f"values x {mixer.value_scale:g}")
    if mixer.kv_source is not None:
        parts.append(f"keys and values of layer {mixer.kv_source}")
    words = {
        "keys are values": mixer.keys_are_values,
        "sinks": mixer.sinks,
        "q/k/v bias": mixer.qkv_bias,
        "output bias": mixer.output_bias,
        "images see both ways": mixer.bidirectional_images,
    }
    return parts + [word for word, there in words.items() if there]


def _mixer(mixer: Mixer) -> str:
    if isinstance(mixer, Attention):
        kind = "full" if mixer.window is None else f"window {mixer.window}"
        return ", ".join([kind, *_attention(mixer)])
    if isinstance(mixer, GatedDeltaNet):
        return (
            f"Gated DeltaNet, key heads {mixer.key_heads} x {mixer.key_dim}, "
            f"value heads {mixer.value_heads} x {mixer.value_dim}, convolution {mixer.conv_kernel}"
        )
    query = "direct queries" if mixer.q_rank is None else f"query rank {mixer.q_rank}"
    text = (
        f"latent attention, heads {mixer.heads}, {query}, KV rank {mixer.kv_rank}, "
        f"head {mixer.nope_dim} + {mixer.rope_dim} rotated, value {mixer.v_dim}, scale {mixer.scale:.6g}"
    )
    if mixer.indexer is not None:
        own = "" if mixer.indexer.source is None else f", choice of layer {mixer.indexer.source}"
        text += f", indexer {mixer.indexer.heads} x {mixer.indexer.dim}, top {mixer.indexer.top_k}{own}"
    return text


def _feed_forward(part: FeedForward) -> str:
    match part:
        case Gated():
            sparse = "" if part.sparsity is None else f", sparsity {part.sparsity:g}"
            return f"gated {part.width}, {part.activation}{', bias' if part.bias else ''}{sparse}"
        case Mixture():
            shared = "" if part.shared is None else f", shared {part.shared.count} x {part.shared.width}"
            return f"{part.active} of {part.experts} experts of {part.width}, {part.activation}{shared}"
        case Both():
            return f"{_feed_forward(part.dense)} beside {_feed_forward(part.mixture)}"


def _extras(layer: Layer) -> str:
    norms = "before" if layer.mixer_post_norm is None else "before and after"
    words = [f"norms {norms}"]
    if layer.per_layer_input:
        words.append("per-layer input")
    if layer.laurel_rank is not None:
        words.append(f"LAuReL rank {layer.laurel_rank}")
    if layer.scalar:
        words.append("scalar")
    return ", ".join(words)


def _layer_rows(blueprint: Blueprint) -> list[tuple[str, ...]]:
    """One row for each distinct layer, in the order in which they appear."""
    places: dict[Layer, list[int]] = {}
    for index, layer in enumerate(blueprint.layers):
        places.setdefault(layer, []).append(index)
    return [
        (layer_numbers(indexes), _mixer(layer.mixer), _feed_forward(layer.feed_forward), _extras(layer))
        for layer, indexes in places.items()
    ]


def _scaling(rope: Rope) -> str:
    scaling = rope.scaling
    match scaling:
        case None:
            return "none"
        case LinearScaling():
            return f"linear, factor {scaling.factor:g}"
        case Llama3Scaling():
            return f"llama3, factor {scaling.factor:g}, from {scaling.original_context:,} tokens"
        case FactorScaling():
            return f"{len(scaling.factors)} stored factors"
    return (
        f"yarn, factor {scaling.factor:g}, from {scaling.original_context:,} tokens, "
        f"beta {scaling.beta_fast:g}/{scaling.beta_slow:g}, attention factor {scaling.attention_factor:.6g}"
    )


def _rope_source(blueprint: Blueprint, kind: str) -> str:
    """Keys that theta, share and scaling of this kind of layer come from; fields of other kinds left out."""
    own = [f for f in blueprint.evidence if f.startswith(f"{kind}.rope.")]
    shared = [f for f in blueprint.evidence if f.startswith("rope.")]
    found = [blueprint.evidence[field] for field in own or shared]
    words = [item.key if item.origin == "key" else f"{item.key} ({item.origin})" for item in found]
    return ", ".join(dict.fromkeys(words)) or "not stated"


def _rope_rows(blueprint: Blueprint) -> list[tuple[str, ...]]:
    seen: dict[tuple[str, Rope | None], int] = {}
    for layer in blueprint.layers:
        mixer = layer.mixer
        if isinstance(mixer, GatedDeltaNet):
            continue
        size = mixer.qk_dim if isinstance(mixer, Attention) else mixer.rope_dim
        seen.setdefault((layer_kind(layer), mixer.rope), size)
    rows: list[tuple[str, ...]] = []
    for (kind, rope), size in seen.items():
        if rope is None:
            rows.append((kind, "no rotation", "", "", "", ""))
            continue
        rotated = f"{rope.rotated} of {size}"
        pairs = "half-split" if rope.pairing == "half" else "adjacent"
        rows.append((kind, f"{rope.theta:,.10g}", rotated, pairs, _scaling(rope), _rope_source(blueprint, kind)))
    return rows


def _gguf(header: GGUFHeader) -> str:
    formats = Counter(tensor.format.name for tensor in header.tensors.values())
    shown = ", ".join(f"{n} {name}" for name, n in formats.most_common()) or "none"
    files = f" in {len(header.files)} files" if len(header.files) > 1 else ""
    return f"version {header.version}, {binary_bytes(header.file_bytes)}{files}, tensors: {shown}"


def _head(blueprint: Blueprint) -> str:
    tied = "the embedding itself (tied)" if blueprint.head.tied else "its own matrix"
    return tied if blueprint.head.softcap is None else f"{tied}, softcap {blueprint.head.softcap:g}"


def _weights(source: Source) -> tuple[Headers | None, ParameterAccount, str | None]:
    """(headers, account, why they could not be read): a damaged file does not keep its description from being shown."""
    try:
        headers = headers_of(source)
        return headers, account_of(source, headers), None
    except PlaitError as error:
        return None, account_of(source, None), str(error)


def _weights_row(headers: Headers | None, account: ParameterAccount, unread: str | None) -> str:
    if unread is not None:
        return f"cannot be read, parameters are counted from the config: {unread}"
    if headers is None:
        return f"none at hand, parameters are counted from {account.counted_from}"
    formats = Counter(tensor.format.name for tensor in headers.tensors.values())
    shown = ", ".join(f"{n} {name}" for name, n in formats.most_common())
    if not account.differences:
        return f"{headers} fit the model: {shown}"
    return f"{headers}: {shown}; {len(account.differences)} differences from the config (`plait params` names them)"


def _facts(source: Source) -> list[tuple[str, str]]:
    blueprint = source.blueprint
    headers, account, unread = _weights(source)
    embedding = f"{blueprint.vocabulary:,} x {blueprint.hidden:,}"
    if blueprint.embedding.scale != 1.0:
        rounded = " (rounded to the weights' type)" if blueprint.embedding.rounded_scale else ""
        embedding += f", scale {blueprint.embedding.scale:.6g}{rounded}"
    tokens = blueprint.tokens
    special = [f"bos {tokens.bos}" if tokens.bos is not None else "no bos"]
    special.append("eos " + ", ".join(map(str, tokens.eos)) if tokens.eos else "no eos")
    special.append(f"pad {tokens.pad}" if tokens.pad is not None else "no pad")
    missing = not_run(blueprint)
    rows = [
        ("family", blueprint.family),
        ("reference", family(blueprint.family).REFERENCE),
        ("source", place_of(source)),
        *([("GGUF", _gguf(source.header))] if source.header is not None else []),
        ("layers", pattern(blueprint)),
        ("hidden", f"{blueprint.hidden:,}"),
        ("context", f"{blueprint.max_context:,}"),
        ("embedding", embedding),
        ("head", _head(blueprint)),
        ("norms", _norm(blueprint.final_norm)),
        ("parameters", f"{account.used:,} ({count(account.used)})"),
        ("weights", _weights_row(headers, account, unread)),
        ("embedding stored in" if source.header is not None else "stored in", blueprint.stored_format),
        ("tokens", "; ".join(special)),
    ]
    for tower in blueprint.towers:
        rows.append((tower.kind, f"{tower.description}, {count(tower.parameters)} parameters"))
    if blueprint.per_layer_embeddings is not None:
        table = blueprint.per_layer_embeddings
        rows.append(("per layer", f"embeddings {table.vocabulary:,} x {table.dim} for each layer"))
    if blueprint.altup is not None:
        rows.append(("AltUp", f"{blueprint.altup.streams} streams, {blueprint.altup.active} is computed on"))
    if blueprint.mtp is not None:
        rows.append(("prediction", f"{len(blueprint.mtp.layers)} multi-token-prediction layers, not run"))
    if blueprint.quantization is not None:
        rows.append(("quantization", f"{blueprint.quantization.method}, {blueprint.quantization.format}"))
    rows.append(("Plait runs it", "yes" if not missing else "no: " + ", ".join(missing)))
    return rows


def _print_coverage(coverage: Coverage) -> None:
    click.echo()
    rows = [("used", key) for key in coverage.used]
    rows += [("irrelevant", key) for key in coverage.irrelevant]
    rows += [("unknown", key) for key in coverage.unknown]
    print_table(rows, title=coverage_title(coverage), header=("", "key"))


@click.command("inspect")
@model_argument
@click.option("--coverage", is_flag=True, help="List every key of the file: used, known to be irrelevant, or unknown.")
@click.option("--evidence", is_flag=True, help="List the source of every fact: a key, a default, or a convention.")
@click.option("--kernels", is_flag=True, help="Show the form every operation runs in on this machine instead.")
@json_option
def command(model: str, coverage: bool, evidence: bool, kernels: bool, as_json: bool) -> None:
    """Show what MODEL is: layers, attention, rotation per kind of layer, norms, embedding and head.

    Layers that are alike share one row. With --json everything is printed: the blueprint with its evidence, and the
    coverage of the file's keys. Of a family that is not known, what its keys tell is shown, and all of them.
    With --kernels no weights are read: products are tried in the formats the weights are stored in, the other steps on
    a small model of the same kinds of layers.
    """
    source = describe(model)
    if kernels:
        if coverage or evidence:
            raise UsageError("--kernels shows what runs here; it goes with neither --coverage nor --evidence")
        if isinstance(source, Sketch):
            source = open_model(model)  # which says why it cannot run
        from plait.cli.kernels import show

        show(model, source, as_json=as_json)
        return
    if isinstance(source, Sketch):
        print_inspect(model, source, as_json=as_json)
        return
    blueprint, found = source.blueprint, source.coverage
    if as_json:
        from plait.blueprint.dump import dump

        keys = {"used": list(found.used), "irrelevant": list(found.irrelevant), "unknown": list(found.unknown)}
        _, account, unread = _weights(source)
        weights = {"counted_from": account.counted_from, "unread": unread, "differences": list(account.differences)}
        where = {**source_facts(model, source), **hub_facts(source)}
        print_json({**where, "blueprint": dump(blueprint), "coverage": keys, "weights": weights})
        return
    print_table(_facts(source), title=printable(blueprint.name))
    click.echo()
    print_table(_layer_rows(blueprint), header=("layers", "mixer", "feed-forward", "around"))
    click.echo()
    print_table(_rope_rows(blueprint), header=("RoPE of", "theta", "rotated", "pairs", "scaling", "source"))
    if evidence:
        click.echo()
        rows = [(field, item.value, item.origin, item.key) for field, item in blueprint.evidence.items()]
        print_table(rows, title="Evidence", header=("field", "value", "origin", "key or rule"))
    if coverage:
        _print_coverage(found)
    elif found.unknown:
        click.echo()
        click.echo(f"Keys unknown to Plait (see --coverage): {printable(', '.join(found.unknown))}")
