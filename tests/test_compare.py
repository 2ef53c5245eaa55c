"""Comparisons: known facts of known pairs, every field that differs is named, factors that multiply to the whole."""

from __future__ import annotations

import json
import types
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from functools import cache
from math import nextafter, prod
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from blueprints import NORM, deepseek_v32, layer, small
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from plait.account.memory import memory
from plait.blueprint.catalog import names
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Both,
    Gated,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    LinearScaling,
    Llama3Scaling,
    Mixture,
    OutputGate,
    QKNorm,
    Rope,
    Router,
    SharedExperts,
    Tower,
    TowerTensor,
    YarnScaling,
)
from plait.compare import align, compare, subject, table, ways
from plait.compare.facts import facts
from plait.compare.leaves import leaves
from plait.compare.render_md import markdown
from plait.compare.report import MOST, Settings
from plait.compare.table import DIMENSIONS, Row
from plait.compare.ways import WAYS
from plait.errors import UsageError, UserError

# Together they have every kind of layer and nearly every word of a blueprint.
VARIED = ("spark-x2.5-1.7b", "gemma-3n-e2b", "gemma-4-26b-a4b", "qwen3.5-35b-a3b", "deepseek-v3.2", "mimo-v2-flash")


@cache
def known(name: str) -> Blueprint:
    return plait.blueprint(name)


def cells(*models: str) -> dict[str, tuple[str, ...]]:
    """Texts of each row, by key."""
    return {row.key: tuple(cell.text for cell in row.cells) for row in table([known(name) for name in models])}


# Facts of published models.


def test_three_models_of_four_billion() -> None:
    found = cells("spark-x2.5-4b", "qwen3.5-4b", "gemma-3-4b")
    assert found["layers"] == ("36", "32", "34")
    assert found["pattern"] == (
        "9 x (3 window + 1 full)",
        "8 x (3 delta + 1 full)",
        "5 x (5 window + 1 full) + 4 window",
    )
    assert found["full_layers"] == ("9: 3, 7, ..., 35", "8: 3, 7, ..., 31", "5: 5, 11, 17, 23, 29")
    assert found["cheap_layers"] == (
        "27 x window 512",
        "24 x Gated DeltaNet, state 32 x 128 x 128",
        "29 x window 1,024",
    )
    assert found["hidden"] == ("2,560",) * 3
    assert found["gate"] == ("sigmoid per head", "sigmoid per element of each head", "none")
    assert found["qk_norm"] == ("none", "over each head", "over each head")
    assert found["positions.full"][0] == "theta 5,000,000, 64 of 256 rotated (25%)"
    assert found["positions.window"][0] == "theta 10,000, 256 of 256 rotated"
    assert "linear, factor 8" in found["positions.full"][2]
    assert found["positions.window"][1] == "—"
    assert found["context"] == ("1,048,576", "262,144", "131,072")
    assert found["activation"] == ("gelu", "silu", "gelu_tanh")


def test_gemma_4_is_dense_with_per_layer_embeddings_or_a_mixture() -> None:
    found = cells("gemma-4-e2b", "gemma-4-e4b", "gemma-4-26b-a4b")
    assert found["feed_forward"] == ("dense", "dense", "dense beside a mixture of experts")
    assert found["experts"] == ("—", "—", "8 of 128 x 704")
    assert found["width"] == ("6,144 (layers 0-14); 12,288 (layers 15-34)", "10,240", "2,112")
    assert found["per_layer_embeddings"] == ("262,144 x 256", "262,144 x 256", "none")
    assert found["kv_heads"] == ("1", "2", "full: 2; window: 8")
    assert found["head_size"] == ("full: 512; window: 256",) * 3
    assert found["keys_are_values"] == ("no", "no", "full: yes; window: no")
    assert found["logit_softcap"] == ("30",) * 3


def test_latent_and_sparse_models() -> None:
    found = cells("deepseek-v3", "deepseek-v3.2", "glm-5")
    assert found["latent"] == (
        *("latent 512, queries through rank 1,536",) * 2,
        "latent 512, queries through rank 2,048",
    )
    assert found["indexer"] == (
        "none",
        "the best 2,048 keys, by 64 heads x 128",
        "the best 2,048 keys, by 32 heads x 128",
    )
    assert found["feed_forward"][0] == "dense (layers 0-2); mixture of experts (layers 3-60)"
    assert found["router"][0] == "sigmoid, weights renormalised, times 2.5, bias for the choice, 4 of 8 groups"
    assert found["mtp"][0] == "1 layer in the file, own copy of embedding and head"
    assert found["kv_heads"] == ("one latent for all",) * 3


def test_extras_are_told() -> None:
    found = cells("gemma-3n-e4b", "gemma-2-2b", "mimo-v2-flash")
    assert found["altup"] == ("4 streams, stream 0 is computed on", "none", "none")
    assert found["laurel"] == ("64", "none", "none")
    assert found["softcap"] == ("none", "50", "none")
    assert found["sinks"] == ("none", "none", "full: none; window: one per head")
    assert found["value_scale"] == ("none", "none", "0.707")
    assert found["v_norm"] == ("without weight", "none", "none")
    assert found["cheap_layers"][2] == "39 x window 129"
    assert found["embedding_scale"][0] == "sqrt(2048), rounded to the weights' type"


def test_cells_say_where_they_come_from() -> None:
    rows = {row.key: row for row in table([known("spark-x2.5-4b"), known("gemma-3-4b")])}
    spark, gemma = ([item for _, item in cell.evidence] for cell in rows["context"].cells)
    assert [(item.origin, item.key) for item in spark] == [("key", "max_position_embeddings")]
    assert [item.origin for item in gemma] == ["default"]
    # What no key of the family can change has the family's reference behind it.
    (name, item), *_ = rows["altup"].cells[0].evidence
    assert (name, item.origin) == ("reference", "convention")
    assert "modeling_spark" in item.key
    for row in rows.values():
        assert all(cell.evidence or cell.text == "—" for cell in row.cells), row.key


# What differs is named.


@pytest.mark.parametrize("name", names())
def test_a_model_does_not_differ_from_itself(name: str) -> None:
    found = known(name)
    assert not any(row.differs for row in table([found, replace(found, name="another")]))
    alignment = align(found, found)
    assert not alignment.groups
    assert alignment.equal == tuple((i, i) for i in range(len(found.layers)))
    assert alignment.only_first == alignment.only_second == ()


def _other(value: object, hint: Any) -> object:
    """A value of the type that is not `value`: floats the next one, so that nothing may be rounded away."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = [item for item in arguments if item is not type(None)]
        if value is not None and type(None) in arguments:
            return None
        if value is None:
            return _made(inner[0])
        return next(_made(kind) for kind in inner if not isinstance(value, kind))
    if origin is Literal:
        return next(item for item in arguments if item != value)
    if origin is tuple:
        assert isinstance(value, tuple)
        return (*value, _made(arguments[0]))
    if hint is bool:
        return not value
    if hint is int:
        assert isinstance(value, int)
        return value + 1
    if hint is float:
        assert isinstance(value, float)
        return nextafter(value, 1e9)
    assert hint is str
    return f"{value}x"


def _made(hint: Any) -> Any:
    """Some value of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _made(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return (_made(arguments[0]),)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        hints = get_type_hints(hint)
        return hint(**{item.name: _made(hints[item.name]) for item in fields(hint)})
    return {bool: True, int: 3, float: 0.375, str: "some"}[hint]


def _places(value: Any, path: tuple[object, ...] = ()) -> Any:
    """Paths of all fields at and below a dataclass, through tuples of dataclasses."""
    hints = get_type_hints(type(value))
    for item in fields(value):
        if not item.compare:
            continue
        here, inner = (*path, item.name), getattr(value, item.name)
        if not is_dataclass(hints[item.name]):
            yield here, hints[item.name]
        if is_dataclass(inner):
            yield from _places(inner, here)
        elif isinstance(inner, tuple):
            for i, part in enumerate(inner):
                if is_dataclass(part):
                    yield from _places(part, (*here, i))


def _changed(value: Any, path: tuple[object, ...], hint: Any) -> Any:
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        made = _changed(value[first], rest, hint)
        return (*value[:first], made, *value[first + 1 :])
    assert isinstance(first, str)
    inner = getattr(value, first)
    return replace(value, **{first: _changed(inner, rest, hint) if rest else _other(inner, hint)})


@cache
def places(name: str) -> tuple[Any, ...]:
    """Every field of a model; of the many tensors of its towers the first of each."""
    found = [
        place for place in _places(known(name)) if not ("tensors" in place[0] and place[0][-2] not in (0, "tensors"))
    ]
    return tuple(found)


def naming(rows: tuple[Row, ...], changed: set[str]) -> list[Row]:
    return [row for row in rows if row.differs and any(changed & set(cell.fields) for cell in row.cells)]


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(VARIED))
def test_one_changed_field_is_always_named(data: st.DataObject, name: str) -> None:
    """Any field of any part of any layer, changed by the least there is."""
    path, hint = data.draw(st.sampled_from(places(name)))
    first = known(name)
    second = _changed(first, path, hint)
    assert first != second
    one, other = leaves(first), leaves(second)
    changed = {key for key in (*one, *other) if one.get(key) != other.get(key)}
    assert changed
    rows = table([first, second])
    assert naming(rows, changed), f"{path}: nothing says that {changed} changed"
    # Every field both have is named, not only one of them.
    both = {key for key in changed if key in one and key in other}
    said = {key for row in rows if row.differs for cell in row.cells for key in cell.fields}
    assert both <= said
    # The last part of the path is in a name that is said, unless another kind or number of layers took its place.
    if changed == both and not {"mixers", "feed_forwards", "mtp.mixers", "mtp.feed_forwards", "towers"} & changed:
        last = next(part for part in reversed(path) if isinstance(part, str) and part not in ("layers", "tensors"))
        assert any(str(last) in key.split(".") or "tensors" in key for key in said & changed)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(VARIED), st.sampled_from(VARIED))
def test_every_field_two_models_share_and_differ_in_is_in_a_row(first: str, second: str) -> None:
    one, other = leaves(known(first)), leaves(known(second))
    rows = table([known(first), known(second)])
    said = {key for row in rows if row.differs for cell in row.cells for key in cell.fields}
    assert {key for key in one if key in other and one[key] != other[key]} <= said


def test_dimensions_name_fields_that_exist() -> None:
    """A misspelt name would claim nothing: all are fields of the catalogue, or of what no model of it has."""
    every = set().union(*(leaves(known(name)) for name in names()))
    gate = OutputGate("head", "silu")
    norm = QKNorm(NORM)
    scalings = (LinearScaling(2.0), YarnScaling(2.0, 8, 32.0, 1.0, 1.0), Llama3Scaling(8.0, 1.0, 4.0, 8))
    for window in (None, 4):
        for scaling in scalings:
            turned = Rope(1e4, 4, 8, distance=4, scaling=scaling)
            mixer = Attention(2, 1, 8, 8, 1.0, window, turned, norm, NORM, gate=gate)
            every |= set(leaves(small(layer(mixer))))
    for scaling in scalings:
        turned = Rope(1e4, 2, 4, distance=2, scaling=scaling)
        every |= set(leaves(small(layer(LatentAttention(2, 4, 8, 8, 4, 8, 1.0, turned, NORM)))))
    router = Router("softmax", True)
    shared = Mixture(4, 2, 8, "silu", router, SharedExperts(1, 8, gated=False))
    both = Both(Gated(8, "silu"), shared, NORM, NORM, NORM)
    every |= set(leaves(small(replace(layer(Attention(2, 1, 8, 8, 1.0)), feed_forward=both))))
    assert {name for item in DIMENSIONS for name in item.shows} <= every


def test_leaves_are_equal_exactly_where_blueprints_are() -> None:
    plain = Attention(2, 1, 8, 8, 1.0)
    a, b = layer(plain), layer(replace(plain, window=4))
    first, second = small(a, b, a), small(a, a, b)
    assert leaves(first) != leaves(second)
    assert leaves(small(a, b, a, name="x")) == leaves(first)
    # A value on one of several layers is told with its layer.
    third = small(a, replace(a, feed_forward=Gated(95, "silu")), a)
    row = next(row for row in table([small(a, a, a), third]) if row.key == "width")
    assert [cell.text for cell in row.cells] == ["96", "96 (layers 0, 2); 95 (layers 1)"]


def test_long_lists_that_differ_behind_the_cut_do_not_look_the_same() -> None:
    tensors = tuple(TowerTensor(f"tensor_{i}", (4, 4)) for i in range(40))
    last = (*tensors[:-1], TowerTensor("tensor_39", (2, 8)))
    plain = layer(Attention(2, 1, 8, 8, 1.0))
    both = [small(plain, towers=(Tower("vision", "a tower", given),)) for given in (tensors, last)]
    (row,) = [row for row in table(both) if row.differs]
    assert row.key == "towers.vision.tensors"


# Ways of saving keys and values.


def test_the_ways_of_spark() -> None:
    """36 layers of 16 heads x 256, at 1,048,576 tokens in bf16: 576 GiB; 36 GiB of full rows and 54 MiB of windows."""
    found = ways(known("spark-x2.5-4b"), 2**20)
    assert found.full_bytes == 36 * 16 * (256 + 256) * 2 * 2**20 == 576 * 2**30
    assert found.state_bytes == 36 * 2**30 + 54 * 2**20
    assert [item.way for item in found.savings] == ["windows", "fewer_kv_heads"]
    windows, heads = found.savings
    assert windows.stored == Fraction(36 * 2**20, 9 * 2**20 + 27 * 512)
    assert heads.stored == heads.read == 4
    assert (found.full_layers, found.layers) == (9, 36)
    assert "27 of 36 layers" in windows.words
    assert "4 KV heads for 16 query heads" in heads.words


def test_the_ways_of_gemma_4_12b() -> None:
    """Keys are values: 10,240 B of a token instead of 16,384 B in its full layers."""
    blueprint = known("gemma-4-12b")
    found = {item.way: item for item in ways(blueprint, 131_072).savings}
    assert list(found) == ["windows", "fewer_kv_heads", "keys_are_values"]
    rows, windows = 131_072, 40 * 1024 * 8 * (256 + 256) * 2
    assert found["keys_are_values"].stored == Fraction(16_384 * rows + windows, 10_240 * rows + windows)
    assert found["keys_are_values"].saved_bytes == (16_384 - 10_240) * rows


def test_the_ways_of_shared_layers_and_of_sparse_reading() -> None:
    shared = {item.way: item for item in ways(known("gemma-4-e4b"), 131_072).savings}["shared_layers"]
    assert shared.stored == Fraction(42, 24)  # the last 3 of 7 periods of layers keep nothing
    assert shared.read == 1
    latent, sparse = ways(deepseek_v32(), 131_072).savings
    assert latent.stored == Fraction(128 * (128 + 64 + 128), 512 + 64)
    assert sparse.stored == Fraction(512 + 64, 512 + 64 + 128)
    assert sparse.saved_bytes < 0
    assert sparse.read > 4


def test_a_model_of_full_heads_saves_nothing() -> None:
    found = ways(small(layer(Attention(4, 4, 8, 8, 1.0))), 100)
    assert found.savings == ()
    assert found.stored == 1


rope = Rope(1e4, 2, 4, distance=2)
attentions = st.builds(
    lambda kv, groups, window, same, v: Attention(
        kv * groups, kv, 8, 8 if same else v, 0.5, window=window, rope=rope, keys_are_values=same
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.none() | st.integers(1, 200),
    st.booleans(),
    st.integers(1, 9),
)
deltas = st.builds(
    lambda k, r, d, v, c: GatedDeltaNet(k, k * r, d, v, c, NORM), *[st.integers(1, 4)] * 4, st.integers(2, 4)
)
latents = st.builds(
    lambda heads, rank, top: LatentAttention(
        heads, None, rank, 8, 4, 8, 0.5, rope, NORM, indexer=None if top is None else Indexer(2, 8, top, rope, NORM)
    ),
    st.integers(1, 5),
    st.integers(1, 16),
    st.none() | st.integers(1, 50),
)


@st.composite
def models(draw: st.DrawFn) -> Blueprint:
    """Random stacks of every kind of mixer; some layers read the keys and values of an earlier layer like them."""
    made: list[Any] = []
    for mixer in draw(st.lists(st.one_of(attentions, deltas, latents), min_size=1, max_size=6)):
        own = [i for i, other in enumerate(made) if isinstance(other, Attention) and other.kv_source is None]
        if own and isinstance(mixer, Attention) and draw(st.booleans()):
            source = draw(st.sampled_from(own))
            made.append(replace(made[source], kv_source=source))
        else:
            made.append(mixer)
    return small(*map(layer, made))


@settings(deadline=None, max_examples=150)
@given(models(), st.integers(1, 5000), st.sampled_from(["bf16", "f32", "q8"]))
def test_factors_multiply_and_savings_add_up_to_the_whole(blueprint: Blueprint, context: int, kv_format: str) -> None:
    found = ways(blueprint, context, kv_format=kv_format)
    assert found.state_bytes == memory(blueprint, context, kv_format=kv_format).total_bytes
    assert prod((item.stored for item in found.savings), start=Fraction(1)) == found.stored
    assert sum(item.saved_bytes for item in found.savings) == found.full_bytes - found.state_bytes
    order = [WAYS.index(item.way) for item in found.savings]
    assert order == sorted(set(order))
    assert all(item.words.endswith(".") for item in found.savings)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(attentions, latents), min_size=1, max_size=5), st.integers(1, 5000))
def test_the_measure_is_keys_and_values_of_every_head_and_token(mixers: list[Any], context: int) -> None:
    elements = sum(
        m.heads * ((m.qk_dim if isinstance(m, Attention) else m.nope_dim + m.rope_dim) + m.v_dim) for m in mixers
    )
    assert ways(small(*map(layer, mixers)), context).full_bytes == 2 * context * elements


# Layer by layer.


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(VARIED), st.data())
def test_one_layer_that_differs_is_found(name: str, data: st.DataObject) -> None:
    first = known(name)
    at = data.draw(st.integers(0, len(first.layers) - 1))
    changed = replace(first.layers[at], laurel_rank=7)
    second = replace(first, layers=(*first.layers[:at], changed, *first.layers[at + 1 :]))
    found = align(first, second)
    (group,) = found.groups
    assert group.pairs == ((at, at),)
    assert [(item.name, item.second) for item in group.differences] == [("layer.laurel_rank", 7)]
    assert len(found.equal) == len(first.layers) - 1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.data())
def test_layers_left_out_are_found(count: int, data: st.DataObject) -> None:
    layers = tuple(layer(Attention(2, 1, 8, 8, 1.0), width) for width in range(10, 10 + count))
    kept = data.draw(st.lists(st.sampled_from(range(count)), unique=True, min_size=1).map(sorted))
    found = align(small(*layers), small(*(layers[i] for i in kept)))
    assert found.equal == tuple((i, j) for j, i in enumerate(kept))
    assert not found.groups
    assert found.only_first == tuple(i for i in range(count) if i not in kept)
    assert found.only_second == ()


def test_two_sizes_of_one_family() -> None:
    lines = list(align(known("spark-x2.5-4b"), known("spark-x2.5-1.7b")).lines("4b", "1.7b"))
    assert lines == [
        "layers 0-2, 4-6, ..., 24-26: window.heads 16 -> 8; window.kv_heads 4 -> 2; dense.width 10,240 -> 6,656",
        "layers 3, 7, ..., 27: full.heads 16 -> 8; full.kv_heads 4 -> 2; dense.width 10,240 -> 6,656",
        "layers 28-35 of 4b have no counterpart in 1.7b",
    ]
    # The layers E2B and E4B of Gemma 3n share differ in width alone: sources of shared rows correspond.
    found = align(known("gemma-3n-e2b"), known("gemma-3n-e4b"))
    assert [[item.name for item in group.differences] for group in found.groups] == [["dense.width"]]
    assert len(found.only_second) == 5


# The whole.


def test_order_labels_and_figures() -> None:
    spark, qwen = subject(known("spark-x2.5-4b")), subject(known("qwen3.5-4b"))
    found = compare([qwen, spark, qwen], Settings(contexts=(2**20, 4096), kv_format="f32"))
    assert found.labels == ("qwen3.5-4b (1)", "spark-x2.5-4b", "qwen3.5-4b (2)")
    assert found.contexts == (4096, 2**20)
    assert found.points[1][1].memory == memory(known("spark-x2.5-4b"), 2**20, kv_format="f32", weights=spark.weights)
    assert [(item.first, item.second) for item in found.alignments] == [(0, 2)]
    assert found.assumed
    assert not found.equal
    assert compare([spark, spark]).equal
    assert compare([spark, qwen]).ways_context == 262_144
    assert [row.cells[0].text for row in found.rows if row.key == "layers"] == ["32"]


def test_what_cannot_be_compared_is_refused() -> None:
    one = subject(small(layer(Attention(2, 1, 8, 8, 1.0))))
    for found in ([], [one], [one] * (MOST + 1)):
        with pytest.raises(UsageError, match="2 to 8 models"):
            compare(found)
    for wrong in (Settings(contexts=()), Settings(contexts=(0,)), Settings(kv_format="q4_0"), Settings(kv_format="x")):
        with pytest.raises(UserError):
            compare([one, one], wrong)


@settings(deadline=None, max_examples=40)
@given(st.lists(models(), min_size=2, max_size=4))
def test_any_models_can_be_compared_and_written(found: list[Blueprint]) -> None:
    comparison = compare([subject(blueprint) for blueprint in found], Settings(contexts=(100, 5000)))
    data = json.loads(json.dumps(facts(comparison), allow_nan=False))
    assert data["equal"] is all(blueprint == found[0] for blueprint in found)
    assert data["equal"] is not any(row["differs"] for row in data["rows"])
    text = markdown(comparison)
    assert all(label.replace("(", "").split()[0] in text for label in comparison.labels)
    for aligned in comparison.alignments:
        first, second = found[aligned.first], found[aligned.second]
        held = [*aligned.layers.equal, *(pair for group in aligned.layers.groups for pair in group.pairs)]
        # Every layer is in one place, and pairs never cross.
        assert sorted([i for i, _ in held] + list(aligned.layers.only_first)) == list(range(len(first.layers)))
        assert sorted([j for _, j in held] + list(aligned.layers.only_second)) == list(range(len(second.layers)))
        assert [j for _, j in sorted(held)] == sorted(j for _, j in held)
