"""Random weights in blocks of integers."""

from __future__ import annotations

import torch

from plait.dtypes import BY_NAME
from plait.runtime import blocks
from plait.runtime.packed import Packed

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")


def packed_weight(name, out, width, seed=0):
    """Random bytes are the hardest weights: every code and scale. Only the float16 numbers are made finite."""
    form = BY_NAME[name]
    generator = torch.Generator().manual_seed(seed)
    raw = blocks.pack(form, torch.randn(out, width, generator=generator)).reshape(-1, form.block_bytes)
    noise = torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=generator)
    halves = {"q4_0": 2, "q4_1": 4, "q5_0": 2, "q5_1": 4, "q8_0": 2, "q4_k": 4, "q5_k": 4, "q6_k": 0}[name]
    raw[:, halves:208] = noise[:, halves:208]
    return Packed(form, raw.reshape(out, -1), (out, width))
