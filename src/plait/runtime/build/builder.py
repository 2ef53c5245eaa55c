"""What every part of the plan is built with: weights by role, prepared; tables; the growing list of steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from plait.blueprint.spec import Blueprint, Norm, Rope
from plait.errors import UnsupportedError
from plait.runtime.kernels import native
from plait.runtime.ops.attention import keeps_bits
from plait.runtime.ops.joined import Joined
from plait.runtime.ops.linear import Linear, gates, in_turn, make_linear, make_linears, stored_type
from plait.runtime.ops.linear_blocks import Blocks, InputBits, block_bytes, gates_blocks, takes_format
from plait.runtime.ops.rope import RopeTable
from plait.runtime.packing import Packing
from plait.runtime.rooms import Rooms
from plait.runtime.slabs import SlabPool
from plait.runtime.steps.call import Step
from plait.runtime.steps.rows import Held
from plait.runtime.steps.stream import AddTo, Embed, Normalise
from plait.runtime.weight_source import WeightSource

__all__ = ["Builder", "Numbers"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Types of a run: weights are used in `weights`, keys and values stored in `kv`, everything else is `compute`.

    stored      weights stay as their file holds them where there are kernels for that; `weights` is that of the others
    input_bits  of the integers that meet weights in blocks of integers; with 8, what meets 16-bit numbers may be
                rounded to their type as well
    """

    weights: torch.dtype
    kv: torch.dtype
    stored: bool = False
    input_bits: InputBits = 16

    @property
    def compute(self) -> torch.dtype:
        """float32, or float64 where the weights are used in float64."""
        return torch.float64 if self.weights == torch.float64 else torch.float32

    @property
    def exact(self) -> bool:
        """Numbers that meet others of 16 bits, weights or keys and values, are not rounded to the type of these."""
        return self.input_bits == 16 and (self.stored or self.weights not in (torch.bfloat16, torch.float16))

    @property
    def words(self) -> str:
        """The type of weights as users give it."""
        if self.stored:
            return "stored" if self.input_bits == 16 else "stored8"
        return str(self.weights).removeprefix("torch.")


class Builder:
    """Takes weights by role and appends steps.

    bytes    of the prepared weights
    forms    how many products each form of `ops.linear` serves
    kept     bytes of each role that stays in blocks, of experts all of them
    rooms    where they are packed
    packing  what packs them: it is to be waited for
    """

    def __init__(
        self, blueprint: Blueprint, weights: WeightSource, numbers: Numbers, device: torch.device, pool: SlabPool
    ) -> None:
        self.blueprint = blueprint
        self.weights = weights
        self.numbers = numbers
        self.device = device
        self.pool = pool
        self.steps: list[Step] = []
        self.bytes = 0
        self.forms: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.rooms = Rooms()
        self.packing = Packing()
        self._tables: dict[Rope, RopeTable] = {}
        self._steady: dict[tuple[int, int, tuple[int, ...], int], bool] = {}

    def add(self, step: Step) -> None:
        """The next step of the plan."""
        self.steps.append(step)

    def has(self, role: str) -> bool:
        """The model has a weight of this role."""
        return role in self.weights.roles

    def vector(self, role: str) -> Tensor:
        """A weight in the compute type."""
        made = self.weights.dense(role, self.numbers.compute).to(self.device)
        self.bytes += made.numel() * made.element_size()
        return made

    def zeros(self, count: int) -> Tensor:
        """Zeros [count] in the compute type."""
        return torch.zeros(count, dtype=self.numbers.compute, device=self.device)

    def norm(self, role: str, norm: Norm) -> Tensor | None:
        """The weight with the norm's offset added, None where the norm has no weight."""
        return self.vector(role) + norm.offset if norm.weight else None

    def linear(self, roles: Sequence[str]) -> Linear:
        """One product for several weights of the same input, rows end to end."""
        runs = [(kept, list(run)) for kept, run in groupby(roles, self.keeps)]
        parts = [self.blocks(run) if kept else self.expanded(run) for kept, run in runs]
        return parts[0] if len(parts) == 1 else Joined(parts)

    @property
    def target(self) -> torch.device:
        """Where the model will run."""
        return self.device

    def keeps(self, role: str) -> bool:
        """The weight stays in the blocks its file holds it in."""
        return self.numbers.stored and takes_format(self.weights.stored(role), self.target)

    def used(self, roles: Sequence[str]) -> torch.dtype:
        """The type in which weights of one product are used: 16 bits where all of them are stored so and kept."""
        if not self.numbers.stored:
            return self.numbers.weights
        only, *others = {stored_type(self.weights.stored(role), self.target) for role in roles}
        return self.numbers.weights if others or only is None else only

    def blocks(self, roles: Sequence[str], *, index: int | None = None, in_turn: bool = False) -> Linear:
        """A product with weights that are kept, with `index` one expert of each; `in_turn`: see `Blocks`."""
        kernels = native()
        found = [self.weights.packed(role) if index is None else self.weights.packed_at(role, index) for role in roles]
        weights = [weight for weight in found if weight is not None]
        assert kernels is not None
        assert len(weights) == len(roles)
        for role, weight in zip(roles, weights, strict=True):
            self.keep(role, block_bytes(weight.format, *weight.shape))
        bits = self.numbers.input_bits
        made = Blocks(kernels, weights, bits=bits, in_turn=in_turn, rooms=self.rooms, packing=self.packing)
        return self._counted(made)

    def keep(self, role: str, size: int) -> None:
        """So many bytes of the role stay as they are stored."""
        self.kept[role] = self.kept.get(role, 0) + size

    def expanded(self, roles: Sequence[str]) -> Linear:
        """A product with weights expanded to the type they are used in."""
        return self.prepared(self.dense(roles, self.used(roles)))

    def gated(self, roles: Sequence[str], width: int, activation: str) -> Linear | None:
        """The product of a gate and an up weight that also gates, a `Gating`; None where no kernel does that."""
        if self.keeps_gates(roles, width, activation):
            return self.blocks(roles, in_turn=True)
        if any(map(self.keeps, roles)) or not gates(width, activation, self.used(roles), self.device):
            return None
        return self.prepared(in_turn(self.dense(roles, self.used(roles))))

    def keeps_gates(self, roles: Sequence[str], width: int, activation: str) -> bool:
        """A gate and an up weight are kept, and in one format, so that one kernel serves them."""
        alike = all(map(self.keeps, roles)) and len({self.weights.stored(role) for role in roles}) == 1
        return alike and gates_blocks(width, activation)

    def dense(self, roles: Sequence[str], dtype: torch.dtype | None = None) -> Tensor:
        """Weights as `dtype`, None: the type of the run; rows end to end."""
        parts = [self.weights.dense(role, self.numbers.weights if dtype is None else dtype) for role in roles]
        if dtype not in (None, self.numbers.weights):
            for role, part in zip(roles, parts, strict=True):
                self.keep(role, part.numel() * part.element_size())
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def prepared(self, weight: Tensor) -> Linear:
        """A product with a weight [out, in] of the caller's making."""
        return self._counted(make_linear(weight.to(self.device), exact=self.numbers.exact))

    def stack(self, weights: Iterable[Tensor]) -> tuple[Linear, ...]:
        """A product for each weight of one shape, taken one after the other."""
        there = (weight.to(self.device) for weight in weights)
        return tuple(self._counted(made) for made in make_linears(there, exact=self.numbers.exact))

    def _counted(self, made: Linear) -> Linear:
        self.bytes += made.nbytes
        self.forms[made.form] = self.forms.get(made.form, 0) + 1
        return made

    def biases(self, roles: Sequence[str]) -> Tensor | None:
        """Biases end to end; all of them exist or none does."""
        if not self.has(roles[0]):
            return None
        return torch.cat([self.vector(role) for role in roles])

    def table(self, rope: Rope) -> RopeTable:
        """The angles of a rotation, shared by all layers that turn alike."""
        if rope not in self._tables:
            self._tables[rope] = RopeTable(rope, self.numbers.compute, self.device)
        return self._tables[rope]

    def rows(self, layer: int) -> Held:
        """A layer's keys and values, or its latents."""
        return self._held(layer, self.pool.rows_of(layer))

    def index_keys(self, layer: int) -> Held:
        """A layer's indexer keys."""
        return self._held(layer, self.pool.index_keys_of(layer))

    def _held(self, layer: int, slab_class: int) -> Held:
        return Held(layer, slab_class, self.pool.classes[slab_class].places[layer], self.numbers.exact)

    def one_by_one(self, heads: int, kv_heads: int, dims: tuple[int, ...], v_dim: int) -> bool:
        """Whether attention with heads of this shape must take one position at a time; see `ops.attention`.

        The kernels need no such care.
        """
        if native() is not None and self.device.type == "cpu" and self.numbers.compute == torch.float32:
            return False
        shape = (heads, kv_heads, dims, v_dim)
        if shape not in self._steady:
            self._steady[shape] = keeps_bits(*shape)
        return not self._steady[shape]

    def embed(self) -> None:
        """The first step: rows of the embedding, read from the file as they are asked for."""
        packed = self.weights.packed("embedding")
        if packed is None:
            raise UnsupportedError(f"{self.blueprint.name}: the embedding is not stored as one tensor")
        packed = packed.to(self.device)
        scale = self.blueprint.embedding.scale
        if self.blueprint.embedding.rounded_scale:
            scale = torch.tensor(scale, dtype=torch.float64).to(self.numbers.weights).item()
        self.add(Embed(packed, scale, self.numbers.weights, self.numbers.compute))

    def normalise(self, source: str, target: str, role: str, norm: Norm) -> None:
        """target = norm(source)."""
        bias = self.vector(f"{role}_bias") if norm.bias else None
        self.add(Normalise(source, target, self.norm(role, norm), norm.eps, norm.kind, bias))

    def join(self, role: str, norm: Norm | None) -> None:
        """h += y, normalised first where the layer has a norm after the part."""
        if norm is not None:
            self.normalise("y", "y", role, norm)
        self.add(AddTo("y"))
