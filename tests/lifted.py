"""transformers computes norms, rotations, softmax and the delta rule in float32 in every model; here it does not.

Without those roundings a model of float64 is float64 throughout, and parity can be asked for far below float32's.
"""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode


class Lifted(TorchFunctionMode):
    """Where float32 is asked for, float64 is given."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.float:
            return args[0].double()
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return function(*args, **kwargs)
