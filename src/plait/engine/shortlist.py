"""Which tokens of a row of logits can be chosen at all: by the kernels, without a sort and without float64.

What is done with the few that are left, and all that has no short list, is `sampling`, which says what is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray

from plait.runtime.kernels import native

if TYPE_CHECKING:
    from plait.engine.sampling import Sampling
    from plait.runtime._native import Native

__all__ = ["NativeRow"]

# A bound computed in float64 is lowered by so much of itself before float32 numbers are held against it.
_SLACK: Final = 1e-6
# The largest are looked for where they are at most one of so many.
_FEW: Final = 8


class NativeRow:
    """A row of logits that the kernels read, float32 on the CPU; its largest number is finite and no other is NaN.

    index, peak  of the largest number, the lowest of equal ones
    """

    __slots__ = ("_kernels", "_row", "_total", "index", "peak")

    def __init__(self, kernels: Native, row: torch.Tensor, index: int, peak: float, total: float) -> None:
        """total: the sum of e^(x - peak) over the row."""
        self._kernels = kernels
        self._row = row
        self._total = math.log(total)
        self.index = index
        self.peak = peak

    @property
    def values(self) -> NDArray[np.float32]:
        """The row. Made when it is asked for: right after a step torch's code for it has left the caches."""
        found: NDArray[np.float32] = self._row.numpy()
        return found

    @staticmethod
    def of(logits: torch.Tensor) -> NativeRow | None:
        """None: there are no kernels, the row is more than float32 holds, or it is one to be refused."""
        kernels = native()
        return None if kernels is None else NativeRow.read(kernels, logits)

    @staticmethod
    def read(kernels: Native, logits: torch.Tensor) -> NativeRow | None:
        """`of` by given kernels."""
        if logits.dim() != 1 or logits.numel() == 0 or not logits.is_floating_point():
            return None
        row = logits.detach() if logits.requires_grad else logits
        if not (row.dtype == torch.float32 and row.device.type == "cpu" and row.is_contiguous()):
            row = row.to("cpu", torch.float32).contiguous()
        if logits.dtype == torch.float64 and not torch.equal(row.double(), logits.detach().cpu()):
            return None
        index, peak, broken, total = kernels.peak(row.data_ptr(), row.numel())
        return None if broken or math.isinf(peak) else NativeRow(kernels, row, index, peak, total)

    def logprob(self, token: int) -> float:
        """Log softmax of the row at `token`: a sum of float32 exponentials in a fixed order, good to 1e-6."""
        above = 0.0 if token == self.index else float(self.values[token]) - self.peak
        return min(0.0, above - self._total)

    def largest(self, count: int) -> NDArray[np.int64]:
        """Ascending indices of the `count` largest above -inf, or of all that are; of equal ones the lowest."""
        out = np.empty(min(count, len(self.values)), dtype=np.int64)
        found = self._kernels.largest(self._row.data_ptr(), len(self.values), len(out), out.ctypes.data)
        return out[:found]

    def choose(
        self,
        values: NDArray[np.float32],
        tokens: NDArray[np.int64],
        scores: NDArray[np.float64],
        peak: float,
        sampling: Sampling,
        fraction: float,
    ) -> int:
        """The token that `fraction` of the weights e^((score - peak) / temperature) leads to, in the order of tokens.

        values  [vocabulary], side by side: the row, or what penalties leave of it
        tokens  [n] ascending, where `values` has -inf and `scores` [n] holds instead; peak: of all scores
        """
        return self._kernels.choose(
            values.ctypes.data,
            len(values),
            peak,
            sampling.temperature,
            tokens.ctypes.data,
            scores.ctypes.data,
            len(tokens),
            sampling.top_p,
            sampling.min_p,
            fraction,
        )

    def shortlist(self, sampling: Sampling, counts: Mapping[int, int]) -> NDArray[np.int64] | None:
        """Ascending tokens among which `sampling.candidates` finds the same as among all. None: no such few.

        They are the best of the tokens that no penalty changes, and all that one does.
        """
        by_weight = not sampling.greedy and sampling.top_k is None
        if by_weight and (sampling.min_p == 0.0 or sampling.top_p < 1.0):
            return None
        seen = [token for token, count in counts.items() if count > 0] if sampling.penalised else []
        if sampling.greedy and not seen:
            return np.array([self.index])
        wanted = 1 if sampling.greedy or sampling.top_k is None else sampling.top_k
        few = self.few(wanted + len(seen))
        if few is None:
            return None
        if by_weight:
            # The real peak, penalised tokens among them, is no lower, and neither is what min-p asks for.
            others = self.values[np.setdiff1d(few, seen)]
            peak = float(others.max()) if len(others) else -math.inf
            bound = peak + sampling.temperature * math.log(sampling.min_p)
            few = np.flatnonzero(self.values >= bound - _SLACK * (abs(bound) + sampling.temperature))
        return np.union1d(few, np.array(seen, dtype=np.int64)) if seen else few

    def few(self, count: int) -> NDArray[np.int64] | None:
        """`largest`, None: so many are found as fast in another way."""
        return None if count * _FEW > len(self.values) else self.largest(count)
