"""Weights are packed by threads of their own: the same bytes as in one piece, and none once nobody wants them."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.dtypes import BY_NAME
from plait.runtime.blocks import pack
from plait.runtime.kernels import BLOCK_FORMATS, native
from plait.runtime.ops.linear_blocks import Blocks, block_bytes, reference
from plait.runtime.packed import Packed
from plait.runtime.packing import Packing

pytestmark = pytest.mark.skipif(native() is None, reason="torch computes here")


def _weight(name, out, width, seed=0):
    values = torch.randn(out, width, generator=torch.Generator().manual_seed(seed))
    form = BY_NAME[name]
    return Packed(form, pack(form, values), (out, width))


def _packed(weight, pieces):
    """The weight packed in pieces of so many panels, each asked for by itself."""
    form = BLOCK_FORMATS.index(weight.format.name)
    out, width = weight.shape
    room = torch.zeros(block_bytes(weight.format, out, width), dtype=torch.uint8)
    packing, panel = Packing(), 0
    for many in pieces:
        rows = weight.data[16 * panel : 16 * (panel + many)]
        if len(rows):
            packing.add(rows, room, (len(rows), width), form, panel, 1)
        panel += many
    packing.wait()
    return room


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(BLOCK_FORMATS),
    out=st.integers(1, 150),
    pieces=st.lists(st.integers(1, 4), min_size=10, max_size=10),
)
def test_pieces_are_packed_as_the_whole(name, out, pieces):
    weight = _weight(name, out, 512)
    assert torch.equal(_packed(weight, pieces), _packed(weight, [10]))


def test_a_weight_of_more_than_a_piece():
    """Threads take some MB at a time: here there are several of them, and rows that fill no panel at the end."""
    weight, x = _weight("q8_0", 5003, 2048), torch.randn(2, 2048, generator=torch.Generator().manual_seed(1))
    made = Blocks(native(), [weight], bits=8)
    expected = reference(x, weight, 8)
    assert torch.allclose(made(x).double(), expected, rtol=1e-4, atol=1e-3)
    end = Packed(weight.format, weight.data[4976:], (27, 2048))
    assert torch.equal(made(x)[:, 4976:], Blocks(native(), [end], bits=8)(x))


def test_weights_may_be_let_go_of_while_they_are_packed():
    weight = _weight("q4_0", 4096, 2048)
    for _ in range(5):
        packing = Packing()
        for _ in range(20):
            Blocks(native(), [weight], bits=8, packing=packing)
        del packing
        gc.collect()


def test_waiting_twice_and_for_nothing():
    packing = Packing()
    packing.wait()
    room = torch.zeros(block_bytes(BY_NAME["q4_0"], 16, 32), dtype=torch.uint8)
    packing.add(_weight("q4_0", 16, 32).data, room, (16, 32), BLOCK_FORMATS.index("q4_0"), 0, 1)
    packing.wait()
    packing.wait()
    assert room.any()
