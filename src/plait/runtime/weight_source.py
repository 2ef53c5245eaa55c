"""Where weights come from: a checkpoint's files, or values that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from plait.blueprint.spec import Blueprint
from plait.blueprint.tensors import Tensor as Wanted
from plait.blueprint.tensors import inventory
from plait.dtypes import BY_NAME, Format
from plait.runtime.blocks import DENSE
from plait.runtime.packed import Packed
from plait.runtime.random_values import random_expert, random_values

__all__ = ["RandomWeights", "WeightSource"]


class WeightSource(Protocol):
    """What a model is built from: weights by role, as `Weights` gives them."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Every role of the text graph; a tied head has none."""

    def dense(self, role: str, dtype: torch.dtype) -> Tensor:
        """The role's elements [shape] as `dtype`, memory of its own."""

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> Tensor:
        """Element `index` of the role's first axis, one expert of a stack."""

    def packed(self, role: str) -> Packed | None:
        """The role as stored, None where only `dense` can give it."""

    def packed_at(self, role: str, index: int) -> Packed | None:
        """Element `index` of the role's first axis as stored."""

    def stored(self, role: str) -> Format | None:
        """The format `packed` and `packed_at` give the role in, None where they give nothing."""


class RandomWeights:
    """The weights that `write_random` writes for a blueprint and a seed, without a file.

    stored  the dense format they are rounded to
    """

    def __init__(self, blueprint: Blueprint, seed: int, stored: str = "f32") -> None:
        self._blueprint = blueprint
        self._seed = seed
        self._format = BY_NAME[stored]
        self._dtype = DENSE[stored]
        self._wanted: Mapping[str, Wanted] = {
            tensor.role: tensor for tensor in inventory(blueprint) if tensor.part == "text"
        }
        self.roles: tuple[str, ...] = tuple(self._wanted)
        """Every role of the text graph, in the order of the forward pass."""

    def dense(self, role: str, dtype: torch.dtype) -> Tensor:
        """The role's elements [shape] as `dtype`. KeyError, here and below: the model has no such role."""
        return random_values(self._blueprint, self._wanted[role], self._seed).to(self._dtype).to(dtype)

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> Tensor:
        """Element `index` of the role's first axis; the others are not made."""
        tensor = self._wanted[role]
        if len(tensor.shape) < 3:
            return self.dense(role, dtype)[index]
        rows = random_expert(self._blueprint, tensor, self._seed, index)
        return rows.to(self._dtype).to(dtype).reshape(tensor.shape[1:])

    def packed(self, role: str) -> Packed:
        """The role as a file would store it."""
        return Packed(self._format, self.dense(role, self._dtype), self._wanted[role].shape)

    def packed_at(self, role: str, index: int) -> Packed:
        """Element `index` of the role's first axis as a file would store it."""
        return Packed(self._format, self.dense_at(role, index, self._dtype), self._wanted[role].shape[1:])

    def stored(self, role: str) -> Format:
        """The format of the role."""
        if role not in self._wanted:
            raise KeyError(role)
        return self._format
