"""The kernels of attention and of stored rows, level by level: against float64, and bit for bit over every cut."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from plait.blueprint.state import SLAB
from plait.runtime import kernels
from plait.runtime.ops.attention import attention_reference
from plait.runtime.ops.attention_native import SlabTable, attention_native, store_native
from plait.runtime.ops.codes import as_stored, read_stored, stored_width
from plait.runtime.slabs import Place

LEVELS = kernels.levels()
STORES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)

native = pytest.mark.skipif(not LEVELS, reason="the package was built without its native kernels")


def _native(level):
    from plait.runtime._native import Native

    return Native(level)


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Held:
    """Rows of one sequence in slabs: parts [length, kv_heads, dim], stored by the kernels."""

    def __init__(self, level, rows, dtype, exact=True):
        self.level, self.dtype, self.length, self.places, at = level, dtype, rows[0].shape[0], [], 0
        self.exact = exact
        # Queries and weights are rounded to bf16.
        self.rounds = not exact and dtype == torch.bfloat16 and level.name == "avx512bf16"
        for part in rows:
            _, heads, dim = part.shape
            width = stored_width(dim, dtype)
            self.places.append(Place(at, at + heads * SLAB * width, heads, dim, width))
            at += heads * SLAB * width
        self.slabs = torch.zeros(-(-self.length // SLAB), at, dtype=dtype)
        self.addresses = [slab.data_ptr() for slab in self.slabs]
        for part, place in zip(rows, self.places, strict=True):
            assert store_native(level, part, place, SlabTable.of([(self.length, 0, 0, self.addresses)]), dtype)

    def read(self, index):
        """A part [length, kv_heads, dim] as float64."""
        place = self.places[index]
        stored = self.slabs[:, place.start : place.stop].view(-1, place.heads, SLAB, place.width)
        return read_stored(stored, place.dim, torch.float64).double().transpose(1, 2).flatten(0, 1)[: self.length]

    def attend(self, queries, spans, keys, values, chosen=None, **words):
        """Queries of all spans [first, stop) end to end."""
        out = torch.empty(queries[0].shape[0], queries[0].shape[1], self.places[values].dim)
        window = words["window"]
        sessions = []
        for first, stop in spans:
            low = 0 if window is None else max(0, first - window + 1) // SLAB
            sessions.append((stop - first, first, low, self.addresses[low : (stop - 1) // SLAB + 1]))
        places = tuple(self.places[key] for key in keys)
        attention_native(
            self.level,
            queries,
            SlabTable.of(sessions),
            keys=places,
            values=self.places[values],
            dtype=self.dtype,
            exact=self.exact,
            chosen=chosen,
            out=out,
            **words,
        )
        return out


def _near(held, values, found, expected):
    """Where weights are rounded, each and their sum by 2^-9 of it at most."""
    allowed = 2**-8 * held.read(values).abs().max() if held.rounds else 1e-5 * expected.abs().max()
    return (found - expected).abs().max() <= allowed


def _expected(held, queries, keys, values, chosen, **words):
    """float64: parts end to end are one head, and what is not chosen has a score of its own."""
    if held.rounds:
        queries = [(part * words["scale"]).bfloat16() for part in queries]
        words["scale"] = 1.0
    q = torch.cat([part.double() for part in queries], -1)
    k = torch.cat([held.read(key) for key in keys], -1)
    v = held.read(values)
    sinks = words.pop("sinks")
    words["sinks"] = None if sinks is None else sinks.double()
    if chosen is None:
        return attention_reference(q, k, v, start=0, first=0, **words)
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("nhd,mhd->hnm", q, k.repeat_interleave(group, 1)) * words["scale"]
    seen = chosen[:, : k.shape[0]].masked_fill(~torch.ones_like(scores[0], dtype=torch.bool).tril(), False)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, v.repeat_interleave(group, 1))


@native
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=16, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 5, 17, 40]),
    dims=st.sampled_from([(4,), (16,), (20,), (64,), (33,), (96, 20), (32, 64)]),
    v_dim=st.sampled_from([4, 12, 16, 80, 33, 96]),
    store=st.sampled_from(STORES),
    exact=st.booleans(),
    window=st.sampled_from([None, 1, 63, 64, 65, 520]),
    cap=st.sampled_from([None, 5.0]),
    sinks=st.booleans(),
    data=st.data(),
)
def test_attention_is_right_and_rows_are_their_own(
    level, kv_heads, group, dims, v_dim, store, exact, window, cap, sinks, data
):
    length, heads = data.draw(st.sampled_from([1, 64, 130, 700])), kv_heads * group
    if group >= 17:
        length = min(length, 130)
    queries = tuple(_normal(length, heads, dim, seed=i) for i, dim in enumerate(dims))
    rows = [_normal(length, kv_heads, dim, seed=9 + i) for i, dim in enumerate((*dims, v_dim))]
    held = Held(_native(level), rows, store, exact)
    keys, values = tuple(range(len(dims))), len(dims)
    sink = _normal(heads, seed=3) if sinks else None
    words = {"scale": 0.3, "window": window, "cap": cap, "sinks": sink}
    whole = held.attend(queries, [(0, length)], keys, values, **words)
    expected = _expected(held, queries, keys, values, None, **words)
    assert _near(held, values, whole, expected)
    first = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(first + 1, length))
    # Alone, and in company of another part of the same rows.
    alone = held.attend(tuple(q[first:stop] for q in queries), [(first, stop)], keys, values, **words)
    assert torch.equal(alone, whole[first:stop])
    both = tuple(torch.cat((q[first:stop], q[: first + 1])) for q in queries)
    together = held.attend(both, [(first, stop), (0, first + 1)], keys, values, **words)
    assert torch.equal(together, torch.cat((whole[first:stop], whole[: first + 1])))


@native
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=8, deadline=None)
@given(
    heads=st.sampled_from([1, 4, 20]),
    rank=st.sampled_from([32, 40]),
    turned=st.sampled_from([8, 32]),
    store=st.sampled_from(STORES),
    exact=st.booleans(),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    data=st.data(),
)
def test_chosen_latents_are_keys_and_values(level, heads, rank, turned, store, exact, share, data):
    """Of one stored part, values and keys; a query sees only what is chosen for it, at least its own key."""
    length = data.draw(st.sampled_from([1, 70, 600]))
    queries = (_normal(length, heads, rank), _normal(length, heads, turned, seed=1))
    held = Held(_native(level), [_normal(length, 1, rank, seed=2), _normal(length, 1, turned, seed=3)], store, exact)
    chosen = torch.rand(length, -(-length // SLAB) * SLAB, generator=torch.Generator().manual_seed(4)) < share
    chosen[torch.arange(length), torch.arange(length)] = True
    words = {"scale": 0.2, "window": None, "cap": None, "sinks": None}
    whole = held.attend(queries, [(0, length)], (0, 1), 0, chosen, **words)
    expected = _expected(held, queries, (0, 1), 0, chosen, **words)
    assert _near(held, 0, whole, expected)
    first = data.draw(st.integers(0, length - 1))
    part = tuple(q[first:] for q in queries)
    assert torch.equal(held.attend(part, [(first, length)], (0, 1), 0, chosen[first:], **words), whole[first:])
    chosen[-1] = False
    none = held.attend(queries, [(0, length)], (0, 1), 0, chosen, **words)
    assert none[-1].isnan().all()
    assert torch.equal(none[:-1], whole[:-1])


@native
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 150),
    heads=st.integers(1, 3),
    dim=st.sampled_from([1, 20, 32, 50, 64]),
    store=st.sampled_from(STORES),
    size=st.sampled_from([1e-9, 1e-6, 1e-3, 1.0, 1e4]),
)
def test_rows_are_stored_as_torch_stores_them(level, rows, heads, dim, store, size):
    """Bit for bit, at any distance of the rows, whatever the cut."""
    wide = _normal(rows, heads + 1, dim) * size
    wide[0, 0, 0] = 0.0
    part = wide[:, :heads]
    held = Held(_native(level), [part], store)
    place = held.places[0]
    found = held.slabs.view(-1, heads, SLAB, place.width).transpose(1, 2).flatten(0, 1)
    expected = as_stored(part, store)
    assert torch.equal(found[:rows], expected)
    assert not found[rows:].any()


@native
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("store", "value"), [(torch.float16, 65520.0), (torch.int8, 8.5e6), (torch.int8, float("nan"))]
)
def test_rows_that_do_not_fit_are_refused(level, store, value):
    part = torch.ones(3, 1, 40)
    part[1, 0, 35] = value
    assert as_stored(part, store) is None
    with pytest.raises(AssertionError):
        Held(_native(level), [part], store)


@given(dim=st.integers(1, 100), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_codes_are_near_what_they_stand_for(dim, seed):
    x = _normal(3, 2, dim, seed=seed)
    stored = as_stored(x, torch.int8)
    assert stored.shape[-1] == stored_width(dim, torch.int8) == -(-dim // 32) * 34
    padded = torch.nn.functional.pad(x, (0, -dim % 32)).view(3, 2, -1, 32)
    # Half a step, and what the scale is rounded by: 127 steps of 2^-11 of one.
    step = padded.abs().amax(-1, keepdim=True) / 127
    near = ((0.5 + 127 / 2048) * step).expand_as(padded).reshape(3, 2, -1)[..., :dim]
    assert ((read_stored(stored, dim, torch.float64) - x).abs() <= near + 1e-7).all()


def test_a_table_knows_slabs_that_are_too_few():
    with pytest.raises(ValueError, match="too few for position 129"):
        SlabTable.of([(1, 128, 0, [64, 128])])


@pytest.mark.parametrize("family", ["gemma3"])
def test_models_run_with_codes_in_any_cut(family, tmp_path):
    """Near the exact rows, alike in every cut, and the bytes are the account's."""
    import tiny

    directory = tiny.save(family, tmp_path / "model")
    ids = tiny.tokens(150)
    exact = plait.load(directory).logits(ids)
    engine = plait.load(directory, kv_dtype="q8")
    whole = engine.logits(ids)
    assert torch.equal(engine.logits(ids, [1, 30, 64, 55]), whole)
    assert 0 < (whole - exact).abs().max() < 0.1 * (exact.max() - exact.min())


@native
def test_bits_do_not_depend_on_the_number_of_threads(tmp_path):
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, test_kernels_attention as t
from plait.runtime.kernels import native
made = []
for store, exact in ((store, exact) for store in t.STORES for exact in (True, False)):
    held = t.Held(native(), [t._normal(1200, 1, d, seed=d) for d in (48, 40)], store, exact)
    words = {"scale": 0.3, "window": None, "cap": None, "sinks": None}
    queries = (t._normal(1200, 3, 48),)
    made.append(held.attend(queries, [(0, 1200)], (0,), 1, **words))
    made.append(held.attend((queries[0][:2],), [(1198, 1200)], (0,), 1, **words))
torch.save(made, sys.argv[2])
"""
    for threads in ("1", "3"):
        subprocess.run(
            [sys.executable, "-c", script, os.path.dirname(__file__), str(tmp_path / threads)],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            check=True,
            timeout=300,
        )
    one, three = (torch.load(tmp_path / threads) for threads in ("1", "3"))
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
