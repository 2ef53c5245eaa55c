"""What a random checkpoint's file holds: its tensors in order, and the bytes of each, made piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from plait.account.memory import block_scales
from plait.blueprint.fit import Shape, columns_of, stored_shapes
from plait.blueprint.layout import Binding, GroupedRows, Layout
from plait.blueprint.spec import Blueprint, Quantization
from plait.blueprint.tensors import Tensor as Wanted
from plait.dtypes import BY_NAME, Format
from plait.runtime.blocks import DENSE, pack
from plait.runtime.fp8 import SCALE, quantise, scale_shape
from plait.runtime.random_values import random_expert, random_rows
from plait.runtime.weight_transforms import absorb, absorbed, stored_columns, stored_rows, stored_values

__all__ = ["Item", "data_of", "items_of"]

_F32: Final = BY_NAME["f32"]


@dataclass(frozen=True, slots=True)
class Scaled:
    """A tensor of `shape` in the FP8 format `format` with a scale for each block.

    scales  the item is the scales, not the tensor
    """

    format: Format
    shape: Shape
    block: tuple[int, ...]
    scales: bool


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor of a file: number `part` of a binding's tensors, or the scales of that tensor's blocks.

    scaled  how its blocks are scaled, None: they are not
    """

    name: str
    binding: Binding
    format: Format
    shape: Shape
    part: int
    scaled: Scaled | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.format.nbytes(prod(self.shape))


def items_of(
    layout: Layout,
    wanted: Mapping[str, Wanted],
    form: Format,
    *,
    gguf: bool,
    quantization: Quantization | None = None,
) -> list[Item]:
    """The tensors of the file in its order, names under the layout's first root.

    quantization  matrices it quantises are written in its FP8 format with scales; None: all are in `form`
    """
    items = []
    for binding in layout.bindings:
        parts = [wanted[role] for role in binding.roles]
        shapes = stored_shapes(binding, [part.shape for part in parts])
        if shapes is None:
            raise ValueError(f"how {binding.roles} divide into {binding.names} is not said")
        vector = any(part.vector for part in parts)
        scaled = quantization is not None and all(block_scales(part, quantization) for part in parts)
        for index, (pattern, shape) in enumerate(zip(binding.names, shapes, strict=True)):
            name = pattern.format(**layout.roots[0])
            if scaled and quantization is not None:
                fp8, block = BY_NAME[quantization.format], quantization.block
                items.append(Item(name, binding, fp8, shape, index, Scaled(fp8, shape, block, False)))
                scales = scale_shape(shape, block)
                items.append(Item(f"{name}{SCALE}", binding, _F32, scales, index, Scaled(fp8, shape, block, True)))
            else:
                wide = gguf and (vector or shape[-1] % form.block)
                items.append(Item(name, binding, _F32 if wide else form, shape, index))
    return items


def data_of(
    blueprint: Blueprint,
    wanted: Mapping[str, Wanted],
    items: list[Item],
    seed: int,
    form: Format,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[str, Iterator[Tensor]]]:
    """The bytes of each tensor in pieces, uint8 [n], in the order of `items`; each is made when it is asked for."""
    done, total = 0, sum(item.nbytes for item in items)

    def pieces(item: Item) -> Iterator[Tensor]:
        nonlocal done
        for piece in _packed(blueprint, wanted, item, seed, form):
            yield piece
            done += piece.numel()
            if progress is not None:
                progress(done, total)

    for item in items:
        yield item.name, pieces(item)


def _packed(
    blueprint: Blueprint, wanted: Mapping[str, Wanted], item: Item, seed: int, form: Format
) -> Iterator[Tensor]:
    if item.scaled is not None:
        rows = torch.cat(list(_rows(blueprint, wanted, item, seed, None)))
        values, scales = quantise(rows.reshape(item.scaled.shape), item.scaled.block, item.scaled.format)
        yield (scales if item.scaled.scales else values).contiguous().view(torch.uint8).reshape(-1)
        return
    for rows in _rows(blueprint, wanted, item, seed, form):
        yield pack(item.format, rows if rows.shape[-1] > 1 else rows.reshape(-1)).reshape(-1)


def _rows(
    blueprint: Blueprint, wanted: Mapping[str, Wanted], item: Item, seed: int, form: Format | None
) -> Iterator[Tensor]:
    """Rows [n, columns] of a tensor in the file's order, float32, the model's values rounded to `form` if it is dense.

    Vectors of a GGUF file stay float32, with the values the other container has.
    """
    binding = item.binding
    parts, transform = [wanted[role] for role in binding.roles], binding.transform
    total = sum(prod(part.shape) for part in parts) // columns_of(parts[0].shape)

    def rounded(values: Tensor) -> Tensor:
        return values if form is None or not form.dense else values.to(DENSE[form.name]).to(torch.float32)

    experts = _experts(binding, parts)
    if experts is not None:
        numbers = range(experts) if len(binding.names) == 1 else range(item.part, item.part + 1)
        for number in numbers:
            drawn = [random_expert(blueprint, part, seed, number) for part in parts]
            yield rounded(drawn[0] if len(drawn) == 1 else torch.cat(drawn))
        return
    columns = stored_columns(transform, columns_of(parts[0].shape))
    order = stored_rows(transform, 0, total, total)
    step = absorbed(transform)
    if isinstance(order, range) and columns is None and step is None:
        for part in parts:
            for rows in random_rows(blueprint, part, seed):
                yield stored_values(transform, rounded(rows))
        return
    model = rounded(torch.cat([rows for part in parts for rows in random_rows(blueprint, part, seed)]))
    if step is not None:
        turned = absorb(step, model)[item.part]
        yield turned.reshape(-1, turned.shape[-1])
        return
    if isinstance(order, Tensor):
        model = torch.empty_like(model).index_copy_(0, order, model)
    if columns is not None:
        model = torch.empty_like(model).index_copy_(1, columns, model)
    yield stored_values(transform, model)


def _experts(binding: Binding, parts: list[Wanted]) -> int | None:
    """How many experts a stack has whose rows lie in the file expert by expert, so that each can be made alone."""
    shape = parts[0].shape
    if len(shape) < 3 or any(part.shape[0] != shape[0] for part in parts):
        return None
    if len(parts) == 1 and binding.transform is None:
        return shape[0]
    grouped = isinstance(binding.transform, GroupedRows) and binding.transform.groups == shape[0]
    return shape[0] if grouped and len(binding.names) == 1 else None
