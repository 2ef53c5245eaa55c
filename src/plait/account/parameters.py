"""Parameters: in the file, used by the graph, active per token.

    in_file = used + mtp + duplicates + unused_shared_kv + router_bias + layer_scalars + buffers
    used    = text + vision + audio

Block scales of quantised files (`fp8_scales`) are counted apart from all of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Final, get_args

from plait.blueprint.families import family
from plait.blueprint.layout import Layout
from plait.blueprint.read.stored import StoredTensor
from plait.blueprint.source import Source
from plait.blueprint.spec import Attention, Blueprint, Quantization
from plait.blueprint.tensors import Part, Tensor, Use, inventory
from plait.errors import ConfigError, fault

__all__ = ["Beyond", "ParameterAccount", "parameters", "parameters_of"]

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
# Uses whose matrices are stored in the declared block format; routers, embeddings and heads stay whole.
_QUANTISED: Final = ("mixer", "feed_forward", "experts")


@dataclass(frozen=True, slots=True)
class Beyond:
    """Elements a file holds that are not used parameters.

    mtp               multi-token-prediction layers
    duplicates        copies of the embedding or the head
    unused_shared_kv  key and value weights of layers that read another layer's keys and values
    router_bias       biases that only choose experts
    layer_scalars     one number per layer
    fp8_scales        scales of weight blocks; not part of `in_file`
    buffers           constants stored beside the weights
    """

    mtp: int = 0
    duplicates: int = 0
    unused_shared_kv: int = 0
    router_bias: int = 0
    layer_scalars: int = 0
    fp8_scales: int = 0
    buffers: int = 0

    @property
    def elements(self) -> int:
        """What `in_file` holds beyond the used parameters."""
        counted = (self.mtp, self.duplicates, self.unused_shared_kv, self.router_bias, self.layer_scalars, self.buffers)
        return sum(counted)


@dataclass(frozen=True, slots=True)
class ParameterAccount:
    """Counts of elements.

    in_file      elements of the weights in the file, block scales apart
    used         what the graph needs: tied weights once, no multi-token prediction, duplicates or buffers
    active       `used` less the experts a token is not routed to; embedding and head whole
    parts        by part of the model; text, vision and audio are the used ones, mtp is beyond them
    roles        `used` by what the tensors do
    differences  how a file that was read differs from what its header lets expect, one line each
    """

    in_file: int
    used: int
    active: int
    parts: Mapping[Part, int]
    beyond: Beyond
    roles: Mapping[Use, int]
    differences: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert sum(n for part, n in self.parts.items() if part != "mtp") == self.used
        assert self.parts["mtp"] == self.beyond.mtp
        assert sum(self.roles.values()) == self.used
        assert 0 <= self.active <= self.used
        assert self.differences or self.in_file == self.used + self.beyond.elements


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _per_token(tensor: Tensor) -> int:
    """Elements one token uses: whole experts, so the share always comes out even."""
    share, whole = tensor.per_token
    active, rest = divmod(tensor.elements * share, whole)
    assert rest == 0
    return active


def _unused_shared_kv(blueprint: Blueprint, text: int) -> int:
    """What the text part would have more of if every layer had keys and values of its own."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, kv_source=None)) if isinstance(layer.mixer, Attention) else layer
        for layer in blueprint.layers
    )
    if layers == blueprint.layers:
        return 0
    whole = inventory(replace(blueprint, layers=layers))
    return _elements(t for t in whole if t.part == "text" and not t.buffer) - text


def _scales(tensors: Iterable[Tensor], quantization: Quantization | None) -> int:
    """Scales of the declared blocks: one per started block of the last axes of each quantised matrix.

    `excluded` names roles, or dotted parts of them, that stay in full precision.
    """
    if quantization is None or not quantization.block:
        return 0
    block = quantization.block
    total = 0
    for tensor in tensors:
        excluded = any(f".{words}." in f".{tensor.role}." for words in quantization.excluded)
        if tensor.use in _QUANTISED and not tensor.vector and len(tensor.shape) >= len(block) and not excluded:
            rest, last = tensor.shape[: -len(block)], tensor.shape[-len(block) :]
            total += tensor.copies * prod(rest) * prod(-(-n // b) for n, b in zip(last, block, strict=True))
    return total


def _duplicates(blueprint: Blueprint) -> int:
    if blueprint.mtp is None:
        return 0
    copies = len(blueprint.mtp.layers) * (blueprint.mtp.copies_embedding + blueprint.mtp.copies_head)
    return copies * blueprint.vocabulary * blueprint.hidden


def parameters(blueprint: Blueprint, *, published: Mapping[str, int] = _NOTHING) -> ParameterAccount:
    """The account of a blueprint alone.

    published  facts of a published file that no config tells: `in_file`, and `duplicate_head`, a copy of the tied
               head; ConfigError where they contradict the blueprint
    """
    tensors = inventory(blueprint)
    weights = tuple(t for t in tensors if not t.buffer)
    buffers = tuple(t for t in tensors if t.buffer)
    used = tuple(t for t in weights if t.part != "mtp")
    parts: Mapping[Part, int] = MappingProxyType(
        {part: _elements(t for t in weights if t.part == part) for part in get_args(Part)}
    )
    router_bias = _elements(t for t in buffers if t.use == "router")
    layer_scalars = _elements(t for t in buffers if t.role.endswith(".scalar"))
    beyond = Beyond(
        mtp=parts["mtp"],
        duplicates=_duplicates(blueprint) + published.get("duplicate_head", 0),
        unused_shared_kv=_unused_shared_kv(blueprint, parts["text"]),
        router_bias=router_bias,
        layer_scalars=layer_scalars,
        fp8_scales=_scales(weights, blueprint.quantization),
        buffers=_elements(buffers) - router_bias - layer_scalars,
    )
    count = _elements(used)
    in_file = count + beyond.elements
    if published.get("in_file", in_file) != in_file:
        raise ConfigError(
            fault("published 'in_file'", expected=in_file, found=published["in_file"], advice="correct the entry")
        )
    return ParameterAccount(
        in_file=in_file,
        used=count,
        active=sum(map(_per_token, used)),
        parts=parts,
        beyond=beyond,
        roles=MappingProxyType({use: _elements(t for t in used if t.use == use) for use in get_args(Use)}),
    )


def _compared(
    stored: Mapping[str, StoredTensor], layout: Layout, tensors: tuple[Tensor, ...]
) -> tuple[tuple[str, ...], int, int]:
    """(differences, elements of copies of the head, elements of other ignored tensors) of a file's tensors."""
    sizes = {tensor.role: tensor.elements for tensor in tensors}
    faults: list[str] = []
    bound: set[str] = set()
    for binding in layout.bindings:
        bound.update(binding.names)
        missing = [name for name in binding.names if name not in stored]
        faults += [f"tensor {name!r} is missing" for name in missing]
        expected = sum(sizes[role] for role in binding.roles)
        found = sum(prod(stored[name].shape) for name in binding.names if name in stored)
        if not missing and expected != found:
            faults.append(f"{' + '.join(map(repr, binding.names))}: expected {expected} elements, found {found}")
    copies = others = 0
    for name, tensor in stored.items():
        if name in bound:
            continue
        if not any(re.fullmatch(item.pattern, name) for item in layout.ignored):
            faults.append(f"tensor {name!r} of {prod(tensor.shape)} elements is no part of the graph")
        elif name == "output.weight":
            copies += prod(tensor.shape)
        else:
            others += prod(tensor.shape)
    return tuple(faults), copies, others


def parameters_of(source: Source) -> ParameterAccount:
    """The account of what a user named.

    For a GGUF file with tensors `in_file` is what the header lists, and `differences` names every tensor that the
    inventory does not explain; a text-only file of a model with towers has none of the towers' tensors.
    """
    blueprint = source.blueprint
    if source.header is None or not source.header.tensors:
        return parameters(blueprint, published=_NOTHING if source.entry is None else source.entry.published)
    stored = source.header.tensors
    account = parameters(blueprint)
    layout = family(blueprint.family).gguf_layout(blueprint)
    differences, copies, others = _compared(stored, layout, inventory(blueprint))
    in_file = sum(prod(tensor.shape) for tensor in stored.values())
    beyond = replace(account.beyond, duplicates=copies, buffers=others, unused_shared_kv=0)
    if not differences and in_file != account.used + beyond.elements:
        differences = (f"the header lists {in_file} elements, the graph and what is known beside it explain "
                       f"{account.used + beyond.elements}",)
    return replace(account, in_file=in_file, beyond=beyond, differences=differences)
