"""A blueprint and its weights become a step plan, and ragged calls run through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from plait.blueprint.check import not_run
from plait.blueprint.spec import Attention, Blueprint, Gated, Layer, Norm, Rope
from plait.errors import UnsupportedError, UsageError
from plait.runtime.ops.attention import keeps_bits
from plait.runtime.ops.exact import settle
from plait.runtime.ops.linear import Linear, make_linear
from plait.runtime.ops.rope import RopeTable
from plait.runtime.plan import AddTo, Attend, Call, Embed, Feed, GateHeads, Logits, Normalise, Project, Step
from plait.runtime.session import Session, Span
from plait.runtime.slabs import SlabPool
from plait.runtime.weights import Weights

__all__ = ["CALL_ROWS", "Model", "Numbers"]

# Longer calls are cut: scratch stays small and an interrupt is noticed within one piece.
CALL_ROWS: Final = 512

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Types of a run: weights are used in `weights`, keys and values stored in `kv`, everything else is `compute`."""

    weights: torch.dtype
    kv: torch.dtype

    @property
    def compute(self) -> torch.dtype:
        """float32, or float64 where the weights are used in float64."""
        return torch.float64 if self.weights == torch.float64 else torch.float32


class _Builder:
    """Takes weights by role and appends steps."""

    def __init__(self, blueprint: Blueprint, weights: Weights, numbers: Numbers, device: torch.device) -> None:
        self.blueprint = blueprint
        self.weights = weights
        self.numbers = numbers
        self.device = device
        self.steps: list[Step] = []
        self.bytes = 0
        self.forms: dict[str, int] = {}
        self.tables: dict[Rope, RopeTable] = {}
        self._steady: dict[tuple[int, int, int, int], bool] = {}

    def vector(self, role: str) -> Tensor:
        made = self.weights.dense(role, self.numbers.compute).to(self.device)
        self.bytes += made.numel() * made.element_size()
        return made

    def norm(self, role: str, norm: Norm) -> Tensor | None:
        """The weight with the norm's offset added."""
        return self.vector(role) + norm.offset if norm.weight else None

    def linear(self, roles: Sequence[str]) -> Linear:
        """One product for several weights of the same input, rows end to end."""
        dense = [self.weights.dense(role, self.numbers.weights) for role in roles]
        joined = dense[0] if len(dense) == 1 else torch.cat(dense)
        made = make_linear(joined.to(self.device))
        self.bytes += made.nbytes
        self.forms[made.form] = self.forms.get(made.form, 0) + 1
        return made

    def biases(self, roles: Sequence[str]) -> Tensor | None:
        """Biases end to end; all of them exist or none does."""
        if roles[0] not in self.weights.roles:
            return None
        return torch.cat([self.vector(role) for role in roles])

    def table(self, rope: Rope) -> RopeTable:
        if rope not in self.tables:
            self.tables[rope] = RopeTable(rope, self.numbers.compute, self.device)
        return self.tables[rope]

    def _one_by_one(self, mixer: Attention) -> bool:
        shape = (mixer.heads, mixer.kv_heads, mixer.qk_dim, mixer.v_dim)
        if shape not in self._steady:
            self._steady[shape] = keeps_bits(*shape)
        return not self._steady[shape]

    def embed(self) -> None:
        packed = self.weights.packed("embedding")
        if packed is None:
            raise UnsupportedError(f"{self.blueprint.name}: the embedding is not stored as one tensor")
        packed = packed.to(self.device)
        scale = self.blueprint.embedding.scale
        if self.blueprint.embedding.rounded_scale:
            scale = torch.tensor(scale, dtype=torch.float64).to(self.numbers.weights).item()
        self.steps.append(Embed(packed, scale, self.numbers.weights, self.numbers.compute))

    def layer(self, index: int, layer: Layer, slab_class: int) -> None:
        role = f"layers.{index}"
        mixer, part = layer.mixer, layer.feed_forward
        assert isinstance(mixer, Attention)
        assert isinstance(part, Gated)
        self.steps.append(
            Normalise("h", "x", self.norm(f"{role}.mixer_norm", layer.mixer_norm), layer.mixer_norm.eps)
        )
        self._attention(index, mixer, slab_class)
        self._join(f"{role}.mixer_post_norm", layer.mixer_post_norm)
        norm = layer.feed_forward_norm
        self.steps.append(Normalise("h", "x", self.norm(f"{role}.feed_forward_norm", norm), norm.eps))
        names = [f"{role}.feed_forward.gate", f"{role}.feed_forward.up"]
        self.steps.append(
            Feed(
                part.width,
                part.activation,
                self.linear(names),
                self.biases([f"{name}_bias" for name in names]),
                self.linear([f"{role}.feed_forward.down"]),
                self.biases([f"{role}.feed_forward.down_bias"]),
            )
        )
        self._join(f"{role}.feed_forward_post_norm", layer.feed_forward_post_norm)

    def _join(self, role: str, norm: Norm | None) -> None:
        """h += y, normalised first where the layer has a norm after the part."""
        if norm is not None:
            self.steps.append(Normalise("y", "y", self.norm(role, norm), norm.eps))
        self.steps.append(AddTo("y"))

    def _head_norms(self, role: str, mixer: Attention, norm: Norm) -> Tensor:
        """Weights of the norms of queries (times the scale of the scores) and keys, a row for each head."""
        query, key = self.norm(f"{role}.query_norm", norm), self.norm(f"{role}.key_norm", norm)
        if query is None or key is None:
            raise UnsupportedError(f"{self.blueprint.name}: norms of queries and keys without weights")
        return torch.cat((query.expand(mixer.heads, -1) * mixer.scale, key.expand(mixer.kv_heads, -1)))

    def _attention(self, index: int, mixer: Attention, slab_class: int) -> None:
        role = f"layers.{index}.attention"
        names = [f"{role}.query", f"{role}.key", f"{role}.value"]
        targets: list[tuple[str, int, int | None]] = [
            ("qk", (mixer.heads + mixer.kv_heads) * mixer.qk_dim, mixer.heads + mixer.kv_heads),
            ("v", mixer.kv_heads * mixer.v_dim, mixer.kv_heads),
        ]
        bias = self.biases([f"{name}_bias" for name in names])
        if mixer.gate is not None:
            rows = mixer.heads if mixer.gate.per == "head" else mixer.heads * mixer.v_dim
            names.append(f"{role}.gate")
            targets.append(("g", rows, None))
            if bias is not None:
                bias = torch.cat((bias, bias.new_zeros(rows)))
        self.steps.append(Project("x", self.linear(names), bias, tuple(targets)))
        norm = mixer.qk_norm.norm if mixer.qk_norm is not None else None
        self.steps.append(
            Attend(
                layer=index,
                slab_class=slab_class,
                heads=mixer.heads,
                rope=mixer.rope,
                table=self.table(mixer.rope) if mixer.rope is not None else None,
                norm=self._head_norms(role, mixer, norm) if norm is not None else None,
                norm_eps=norm.eps if norm is not None else 0.0,
                scale=1.0 if norm is not None else mixer.scale,
                window=mixer.window,
                cap=mixer.softcap,
                one_by_one=self._one_by_one(mixer),
            )
        )
        if mixer.gate is not None:
            self.steps.append(GateHeads(mixer.gate.activation, mixer.heads, mixer.gate.per == "head"))
        self.steps.append(
            Project("y", self.linear([f"{role}.output"]), self.biases([f"{role}.output_bias"]), (("y", 0, None),))
        )


class Model:
    """A runnable model. Holds no value of any request: sessions do.

    weight_bytes  bytes of the prepared weights; rows of the embedding stay in the mapped file
    forms         how many products each form of `ops.linear` serves
    """

    def __init__(
        self,
        blueprint: Blueprint,
        weights: Weights,
        numbers: Numbers,
        device: torch.device,
        progress: Progress | None = None,
    ) -> None:
        missing = not_run(blueprint)
        if missing:
            raise UnsupportedError(f"{blueprint.name}: this version describes it and cannot run {', '.join(missing)}")
        settle()
        self.blueprint = blueprint
        self.numbers = numbers
        self.device = device
        self.pool = SlabPool(blueprint, numbers.kv, device)
        build = _Builder(blueprint, weights, numbers, device)
        total = len(blueprint.layers) + 1
        build.embed()
        for index, layer in enumerate(blueprint.layers):
            if progress is not None:
                progress(index, total)
            build.layer(index, layer, self.pool.class_of[index])
        if progress is not None:
            progress(total - 1, total)
        self._logits = Logits(
            build.norm("final_norm", blueprint.final_norm),
            blueprint.final_norm.eps,
            build.linear(["embedding" if blueprint.head.tied else "head"]),
            blueprint.head.softcap,
        )
        if progress is not None:
            progress(total, total)
        self.steps = tuple(build.steps)
        self.weight_bytes = build.bytes
        self.forms = dict(build.forms)

    def session(self) -> Session:
        """A session at position 0."""
        return Session(self.pool, self.blueprint.max_context)

    @torch.inference_mode()
    def run(self, spans: Sequence[Span], want: Literal["last", "all", "none"] = "last") -> list[Tensor]:
        """One ragged call: advances every session by its span and returns logits per span, float32.

        What a session cannot take is refused before any work is done. A call of more than `CALL_ROWS` tokens runs in
        pieces; if one fails or is interrupted, the sessions stand where the pieces before it left them.

        want  `last`: [1, vocabulary] of each span's last token; `all`: [n, vocabulary]; `none`: [0, vocabulary]
        """
        for span in spans:
            self._check(span)
        if len({id(span.session) for span in spans}) != len(spans):
            raise UsageError("a session stands twice in one call")
        rows: list[list[Tensor]] = [[] for _ in spans]
        for piece in _pieces(spans):
            self._piece(piece, want, rows)
        empty = torch.empty(0, self.blueprint.vocabulary)
        return [torch.cat(found) if found else empty for found in rows]

    def _check(self, span: Span) -> None:
        if not span.tokens:
            raise UsageError("a call needs at least one token per sequence")
        for token in (min(span.tokens), max(span.tokens)):
            if not 0 <= token < self.blueprint.vocabulary:
                raise UsageError(f"token id {token} is outside the vocabulary of {self.blueprint.vocabulary}")
        span.session.check(len(span.tokens))

    def _piece(self, piece: Iterable[tuple[int, Span, bool]], want: str, rows: list[list[Tensor]]) -> None:
        parts = list(piece)
        spans = tuple(span for _, span, _ in parts)
        try:
            for span in spans:
                span.session.prepare(len(span.tokens))
            h, starts = self._forward(spans)
            for (index, span, ends), start in zip(parts, starts, strict=True):
                stop = start + len(span.tokens)
                if want == "all":
                    rows[index].append(self._logits(h[start:stop]).float())
                elif want == "last" and ends:
                    rows[index].append(self._logits(h[stop - 1 : stop]).float())
        except BaseException:
            for span in spans:
                span.session.trim()
            raise
        for span in spans:
            span.session.advance(span.tokens)

    def _forward(self, spans: tuple[Span, ...]) -> tuple[Tensor, list[int]]:
        positions: list[int] = []
        tokens: list[int] = []
        starts: list[int] = []
        for span in spans:
            starts.append(len(tokens))
            tokens.extend(span.tokens)
            at = span.session.position
            positions.extend(range(at, at + len(span.tokens)))
        call = Call(
            spans,
            torch.tensor(tokens, dtype=torch.int64, device=self.device),
            torch.tensor(positions, dtype=torch.int64, device=self.device),
            max(positions),
        )
        for step in self.steps:
            step(call)
        return call.registers["h"], starts


def _pieces(spans: Sequence[Span]) -> Iterable[list[tuple[int, Span, bool]]]:
    """Cut a call into pieces of at most `CALL_ROWS` rows: (index of the span, part of it, is it the last part)."""
    piece: list[tuple[int, Span, bool]] = []
    room = CALL_ROWS
    for index, span in enumerate(spans):
        at = 0
        while at < len(span.tokens):
            taken = span.tokens[at : at + room]
            at += len(taken)
            room -= len(taken)
            piece.append((index, Span(span.session, taken), at == len(span.tokens)))
            if room == 0:
                yield piece
                piece, room = [], CALL_ROWS
    if piece:
        yield piece
