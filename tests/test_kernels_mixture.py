"""Routing by the kernels: what the definition chooses, and mixtures of a model in programs."""

from __future__ import annotations

import pytest
import tiny
import torch
from block_weights import FORMATS, packed_weight
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from plait.blueprint.spec import Router
from plait.runtime import kernels
from plait.runtime.lower import NativePart
from plait.runtime.ops import linear
from plait.runtime.ops.activation import NATIVE_ACTIVATIONS
from plait.runtime.ops.linear_blocks import Blocks
from plait.runtime.ops.router import native_route, native_routing, route_reference
from plait.runtime.steps.mixture import Mix, Route

pytestmark = pytest.mark.skipif(kernels.native() is None, reason="torch computes here")


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 40),
    groups=st.integers(1, 4),
    size=st.integers(1, 40),
    scores=st.sampled_from(["softmax", "sigmoid"]),
    renormalise=st.booleans(),
    biased=st.booleans(),
    tied=st.booleans(),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_routing_is_right_and_rows_are_their_own(rows, groups, size, scores, renormalise, biased, tied, seed, data):
    kept = data.draw(st.integers(1, groups))
    active = data.draw(st.integers(1, kept * size))
    router = Router(scores=scores, renormalise=renormalise, scale=1.5, groups=groups, kept_groups=kept)
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(rows, groups * size + 3, generator=generator) * 3
    logits = (wide.round() if tied else wide)[:, 3:]
    bias = torch.randn(groups * size, generator=generator) if biased else None
    factors = torch.rand(groups * size, generator=generator) if biased else None
    experts, weights = native_route(logits, active, router, bias, factors)
    double = (None if x is None else x.double() for x in (bias, factors))
    wanted, expected = route_reference(logits.double(), active, router, *double)
    same = (experts == wanted).all(1)
    if tied and not biased and kept == groups:
        assert same.all()
    assert same[_clear(logits.double(), active, router, None if bias is None else bias.double())].all()
    assert torch.allclose(weights[same].double(), expected[same], rtol=1e-5, atol=1e-30)
    half = rows // 2
    again = native_route(logits[half:], active, router, bias, factors)
    assert all(torch.equal(a, b) for a, b in zip(again, (experts[half:], weights[half:]), strict=True))


def _clear(logits, active, router, bias):
    """Rows whose choice no rounding of float32 changes: the last that is taken is well above the first that is not."""
    scores = logits.softmax(-1) if router.scores == "softmax" else logits.sigmoid()
    scores = scores if bias is None else scores + bias

    def apart(x, count):
        if count == x.shape[1]:
            return torch.ones(len(x), dtype=torch.bool)
        ordered = x.sort(-1, descending=True).values
        last, first = ordered[:, count - 1], ordered[:, count]
        return last - first > 1e-5 * last.abs().maximum(first.abs())

    grouped = scores.view(len(scores), router.groups, -1)
    best = grouped.topk(min(2, grouped.shape[2]), -1).values.sum(-1)
    kept = best.topk(router.kept_groups, -1).indices
    among = grouped.gather(1, kept[..., None].expand(-1, -1, grouped.shape[2])).flatten(1)
    return apart(best, router.kept_groups) & apart(among, active)


def test_ties_go_to_the_lowest_expert_and_group():
    plain = Router(scores="softmax", renormalise=True)
    experts, weights = native_route(torch.zeros(2, 9), 3, plain)
    assert experts.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(weights, torch.full((2, 3), 1 / 3))
    grouped = Router(scores="sigmoid", renormalise=False, groups=3, kept_groups=2)
    logits = torch.tensor([[0.0, 2.0, 0.0, 3.0, 3.0, 0.0, 0.0, 2.0, 0.0]])
    # Groups 0 and 2 are alike: the lower one stays.
    assert native_route(logits, 4, grouped)[0].tolist() == [[0, 1, 3, 4]]
    # What is no number chooses something and comes through.
    experts, weights = native_route(torch.full((1, 9), torch.nan), 4, grouped)
    assert experts.tolist() == [sorted(set(experts[0].tolist()))]
    assert weights.isnan().all()


def test_impossible_routing_is_refused():
    for experts, active, groups, kept in ((8, 9, 1, 1), (8, 0, 1, 1), (9, 2, 2, 1), (8, 2, 2, 3)):
        router = Router(scores="softmax", renormalise=True, groups=groups, kept_groups=kept)
        with pytest.raises(ValueError, match="experts in"):
            native_routing(experts, active, router, 0, 0)


def test_mixtures_run_in_programs(tmp_path):
    model = plait.load(tiny.save("qwen3_moe", tmp_path), cache=0).model
    assert any(isinstance(step, Mix) for step in model.steps)
    assert not [p for p in model.plan().parts if isinstance(p, Mix | Route)]
    assert sum(isinstance(p, NativePart) for p in model.plan().parts) == 1


def _mixed(native, experts, x, chosen, weights, hidden):
    """What a program of one mixture makes of rows x, [rows, hidden]."""
    from plait.runtime._native import Ragged

    program = native.program()
    program.mix((0, 0), (1, 0), (2, 0), (3, 0), chosen.shape[1], NATIVE_ACTIVATIONS["silu"], experts)
    y = torch.full((len(x), hidden), torch.nan)
    call = Ragged()
    call.add_part(0, len(x))
    given = [(t.data_ptr(), t.stride(0)) for t in (x, chosen, weights, y)]
    assert program.run(call, len(x), given, []) == -1
    return y


@pytest.mark.parametrize("level", kernels.levels())
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("gate", FORMATS)
@pytest.mark.parametrize("up", ["same", "q8_0"])
def test_a_row_alone_has_the_bits_it_has_in_company(level, bits, gate, up):
    """A row alone takes its experts together, in company each expert takes its rows."""
    from plait.runtime._native import Native

    native, hidden, wide, number = Native(level), 256, 512, 5
    kinds = (gate, gate if up == "same" else up, gate)
    shapes = ((wide, hidden), (wide, hidden), (hidden + 5, wide))
    held, experts = [], []
    for e in range(number):
        named = zip(kinds, shapes, strict=True)
        parts = [packed_weight(kind, *shape, seed=10 * e + i) for i, (kind, shape) in enumerate(named)]
        held += [Blocks(native, parts[:2], bits=bits), Blocks(native, parts[2:], bits=bits)]
        experts.append((held[-2].prepared(None), held[-1].prepared(None)))
    generator = torch.Generator().manual_seed(3)
    for active in (1, 2, number):
        x = torch.randn(4, hidden, generator=generator)
        x[1, 7] = 300.0  # an outlier: a group of this row takes two entries
        chosen = torch.stack([torch.randperm(number, generator=generator)[:active].sort().values for _ in x]).float()
        weights = torch.rand(4, active, generator=generator)
        together = _mixed(native, experts, x, chosen, weights, hidden + 5)
        rows = zip(x.split(1), chosen.split(1), weights.split(1), strict=True)
        alone = [_mixed(native, experts, *row, hidden + 5) for row in rows]
        assert torch.equal(torch.cat(alone), together)
        assert not together.isnan().any()


def _each(native, products, x, apart):
    """What a program makes of products i of columns [i apart, i apart + in) of x, outputs end to end."""
    from plait.runtime._native import Ragged

    program, call = native.program(), Ragged()
    program.products((0, 0), apart, (1, 0), products)
    y = torch.full((len(x), sum(product.out for product in products)), torch.nan)
    call.add_part(0, len(x))
    assert program.run(call, len(x), [(t.data_ptr(), t.stride(0)) for t in (x, y)], []) == -1
    return y


@pytest.mark.parametrize("level", kernels.levels())
@pytest.mark.parametrize("kind", [*FORMATS, "f32"])
@pytest.mark.parametrize("heads", [1, 2, 7])
def test_products_of_heads_are_those_of_each(level, kind, heads):
    """Of one row all are one call, of several each is its own."""
    from plait.runtime._native import Native

    native, width, out, apart = Native(level), 256, 37, 300
    if kind == "f32":
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(out, width, generator=generator) for _ in range(heads)]
        made = [linear.Native(native, weight) for weight in weights]
    else:
        made = [Blocks(native, [packed_weight(kind, out, width, seed)], bits=16) for seed in range(heads)]
    x = torch.randn(3, heads * apart, generator=torch.Generator().manual_seed(2))
    x[0, 5] = 400.0
    products = [one.prepared(None) for one in made]
    many = _each(native, products, x, apart)
    expected = [one(x[:, i * apart : i * apart + width].contiguous()) for i, one in enumerate(made)]
    assert torch.equal(many, torch.cat(expected, 1))
    assert torch.equal(torch.cat([_each(native, products, row, apart) for row in x.split(1)]), many)
