"""What keeps a row's bits independent of the other rows of a call.

Seen with torch 2.13 on x86 CPUs, and what is done about it:

* A matrix product changes its order of summation with the number of rows, and for long rows (K over about 1,000)
  with it again at 32, 64, 256 rows: padding short calls is not enough. `linear` has the two forms that hold.
* Vectorised functions (sigmoid, gelu, softplus) give other bits for the last, incomplete vector of a loop, so an
  element's bits depend on where a thread's share ends. `pointwise` makes every share a multiple of 32 elements.
* The very first vectorised exponential of a process, if two threads run it, now and then takes another code path in
  one of them. `settle` calls each such function once on one thread before any model runs.
* Sums and means over the last axis, products, quotients and square roots keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

__all__ = ["LANES", "pointwise", "settle"]

# Two AVX-512 registers of float32: what torch's loops take at a time, and a multiple of all narrower machines' steps.
LANES: Final = 32
# torch gives a loop to several threads from this many elements on (at::internal::GRAIN_SIZE) ...
_GRAIN: Final = 32768
# ... and some functions, gelu among them, already from here on.
_SMALL: Final = 4096


def settle() -> None:
    """Let the vector library choose its code path on one thread. Call before the first model runs."""
    for dtype in (torch.float32, torch.float64):
        probe = torch.zeros(1, dtype=dtype)
        for function in (torch.exp, torch.tanh, torch.erf, torch.log1p, torch.sigmoid):
            function(probe)


def pointwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of every element of x [rows, width], such that a row's bits do not depend on the number of rows.

    The function must be elementwise. Rows are padded to a multiple of `LANES`, and so is every thread's share: the
    whole is padded to a multiple of threads * LANES and given to all threads, or cut into pieces of one thread.
    """
    if x.device.type != "cpu":
        return function(x)
    rows, width = x.shape
    padded = -(-width // LANES) * LANES
    count = rows * padded
    threads = torch.get_num_threads()
    whole = -(-count // (threads * LANES)) * threads * LANES
    if whole == rows * width:
        flat = x.reshape(-1)
    else:
        flat = x.new_zeros(whole)
        flat[:count].view(rows, padded)[:, :width] = x
    if threads <= 2 or count >= threads * _GRAIN:
        result = function(flat)
    else:
        result = torch.cat([function(piece) for piece in torch.split(flat, _SMALL)])
    result = result[:count].view(rows, padded)
    return result[:, :width].contiguous() if padded != width else result
