"""Parameters: in the file, used by the graph, active per token.

    in_file = used + mtp + duplicates + unused_shared_kv + router_bias + layer_scalars + buffers
    used    = text + vision + audio, and the embedders where a model counts them apart

Block scales of quantised files (`fp8_scales`) are counted apart from all of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, get_args

from plait.account.headers import Headers, compare, headers_of
from plait.account.memory import block_scales
from plait.blueprint.source import Source
from plait.blueprint.spec import Attention, Blueprint
from plait.blueprint.tensors import Part, Tensor, Use, inventory
from plait.errors import ConfigError, fault

__all__ = ["Beyond", "ParameterAccount", "account_of", "parameters", "parameters_of"]

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


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
    differences  how files that were read differ from what the config lets expect, one line each
    counted_from what the counts were made from, in words
    ignored      elements of tensors in the files that are no part of the graph, by the reason why
    used_bytes   bytes of what the graph uses as the files store it; None where no files were read
    table_bytes  of these, the table of per-layer embeddings
    """

    in_file: int
    used: int
    active: int
    parts: Mapping[Part, int]
    beyond: Beyond
    roles: Mapping[Use, int]
    differences: tuple[str, ...] = ()
    counted_from: str = "the config alone"
    ignored: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    used_bytes: int | None = None
    table_bytes: int = 0

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
        {
            part: elements
            for part in get_args(Part)
            if (elements := _elements(t for t in weights if t.part == part)) or part != "embedders"
        }
    )
    router_bias = _elements(t for t in buffers if t.use == "router")
    layer_scalars = _elements(t for t in buffers if t.role.endswith(".scalar"))
    beyond = Beyond(
        mtp=parts["mtp"],
        duplicates=_duplicates(blueprint) + published.get("duplicate_head", 0),
        unused_shared_kv=_unused_shared_kv(blueprint, parts["text"]),
        router_bias=router_bias,
        layer_scalars=layer_scalars,
        fp8_scales=sum(block_scales(tensor, blueprint.quantization) for tensor in weights),
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


def parameters_of(source: Source) -> ParameterAccount:
    """The account of what a user named; reads the headers of its weights (`headers_of`) and compares (`account_of`)."""
    return account_of(source, headers_of(source))


def account_of(source: Source, headers: Headers | None) -> ParameterAccount:
    """The account of a model whose weights' headers were read; None: it has no weights at hand.

    Where weights are at hand (a directory with safetensors, a GGUF file, a model of the hub) `in_file` is what their
    headers list, and `differences` names every tensor that the inventory does not explain and every part that is not
    there; of a config alone, and of a catalogue entry, it is what such a file holds.
    """
    blueprint = source.blueprint
    if headers is None:
        found = parameters(blueprint, published=_NOTHING if source.entry is None else source.entry.published)
        return replace(found, counted_from="the config alone" if source.entry is None else "the catalogue entry")
    account = parameters(blueprint)
    compared = compare(blueprint, headers, account.beyond.unused_shared_kv)
    ahead = tuple(t for t in inventory(blueprint) if t.part == "mtp" and t.buffer)
    whole = compared.mtp == account.beyond.mtp + _elements(ahead)
    # Buffers of the layers that predict further tokens stand with the other buffers; without the layers there are none.
    absent = 0 if whole else _elements(t for t in ahead if t.use == "router")
    mtp = account.beyond.mtp if whole else compared.mtp
    beyond = replace(
        account.beyond,
        mtp=mtp,
        duplicates=compared.duplicates,
        unused_shared_kv=compared.unused_shared_kv,
        router_bias=account.beyond.router_bias - absent,
        fp8_scales=compared.scales,
        buffers=account.beyond.buffers - compared.lacking + compared.others,
    )
    differences = compared.differences
    if account.beyond.fp8_scales and compared.scales != account.beyond.fp8_scales:
        text = f"block scales: expected {account.beyond.fp8_scales} elements, found {compared.scales}"
        differences = (*differences, text)
    if not differences and compared.in_file != account.used + beyond.elements:
        explained = account.used + beyond.elements
        text = f"the files hold {compared.in_file} elements, the graph and what is known beside it explain {explained}"
        differences = (text,)
    return replace(
        account,
        in_file=compared.in_file,
        beyond=beyond,
        parts=MappingProxyType({**account.parts, "mtp": mtp}),
        differences=differences,
        counted_from=str(headers),
        ignored=compared.ignored,
        used_bytes=compared.used_bytes,
        table_bytes=compared.table_bytes,
    )
