"""Where files keep the tensors of the Qwen families with experts or Gated DeltaNet.

Three containers: safetensors of Qwen3-MoE and Qwen3-Next (an expert a tensor; DeltaNet projections fused key head by
key head), safetensors of Qwen3.5 (experts fused, or an expert a tensor where the weights are quantised), and GGUF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.families.common import HUB_ROOTS, LLAMA_NAMES
from plait.blueprint.layout import (
    ONE_ROOT,
    Binding,
    Chained,
    GroupedRows,
    Ignored,
    Layout,
    MinusOne,
    NegatedExp,
    Step,
    TiledHeads,
    Transform,
)
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, Layer, Mixture
from plait.blueprint.tensors import Tensor, inventory

__all__ = ["gguf_layout", "hub_layout"]

_QUERIES: Final = ("attention.query", "attention.gate")
_PROJECTIONS: Final = ("delta.query_key_value", "delta.gate")
_RATES: Final = ("delta.beta", "delta.decay")
_EXPERTS: Final = ("feed_forward.experts.gate", "feed_forward.experts.up")
_DOWN: Final = "feed_forward.experts.down"
_HUB_LAYER: Final = "{{body}}layers.{index}."
_GGUF_LAYER: Final = "blk.{index}."

# Names below `layers.N.`; `{expert}` stands for the number of an expert.
_HUB: Final[Mapping[str, str]] = MappingProxyType(
    {
        **LLAMA_NAMES,
        "delta.query_key_value": "linear_attn.in_proj_qkv.weight",
        "delta.gate": "linear_attn.in_proj_z.weight",
        "delta.beta": "linear_attn.in_proj_b.weight",
        "delta.decay": "linear_attn.in_proj_a.weight",
        "delta.convolution": "linear_attn.conv1d.weight",
        "delta.decay_log": "linear_attn.A_log",
        "delta.time_step_bias": "linear_attn.dt_bias",
        "delta.output_norm": "linear_attn.norm.weight",
        "delta.output": "linear_attn.out_proj.weight",
        "feed_forward.router": "mlp.gate.weight",
        "feed_forward.experts.gate": "mlp.experts.{expert}.gate_proj.weight",
        "feed_forward.experts.up": "mlp.experts.{expert}.up_proj.weight",
        "feed_forward.experts.down": "mlp.experts.{expert}.down_proj.weight",
        "feed_forward.shared.gate": "mlp.shared_expert.gate_proj.weight",
        "feed_forward.shared.up": "mlp.shared_expert.up_proj.weight",
        "feed_forward.shared.down": "mlp.shared_expert.down_proj.weight",
        "feed_forward.shared_gate": "mlp.shared_expert_gate.weight",
    }
)
_HUB_TOP: Final[Mapping[str, str]] = MappingProxyType(
    {"embedding": "{body}embed_tokens.weight", "final_norm": "{body}norm.weight", "head": "{head}lm_head.weight"}
)
_GGUF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mixer_norm": "attn_norm.weight",
        "attention.query": "attn_q.weight",
        "attention.key": "attn_k.weight",
        "attention.value": "attn_v.weight",
        "attention.output": "attn_output.weight",
        "attention.query_bias": "attn_q.bias",
        "attention.key_bias": "attn_k.bias",
        "attention.value_bias": "attn_v.bias",
        "attention.output_bias": "attn_output.bias",
        "attention.query_norm": "attn_q_norm.weight",
        "attention.key_norm": "attn_k_norm.weight",
        "delta.query_key_value": "attn_qkv.weight",
        "delta.gate": "attn_gate.weight",
        "delta.beta": "ssm_beta.weight",
        "delta.decay": "ssm_alpha.weight",
        "delta.convolution": "ssm_conv1d.weight",
        "delta.decay_log": "ssm_a",
        "delta.time_step_bias": "ssm_dt.bias",
        "delta.output_norm": "ssm_norm.weight",
        "delta.output": "ssm_out.weight",
        "feed_forward.gate": "ffn_gate.weight",
        "feed_forward.up": "ffn_up.weight",
        "feed_forward.down": "ffn_down.weight",
        "feed_forward.router": "ffn_gate_inp.weight",
        "feed_forward.experts.gate": "ffn_gate_exps.weight",
        "feed_forward.experts.up": "ffn_up_exps.weight",
        "feed_forward.experts.down": "ffn_down_exps.weight",
        "feed_forward.shared.gate": "ffn_gate_shexp.weight",
        "feed_forward.shared.up": "ffn_up_shexp.weight",
        "feed_forward.shared.down": "ffn_down_shexp.weight",
        "feed_forward.shared_gate": "ffn_gate_inp_shexp.weight",
    }
)
_GGUF_TOP: Final[Mapping[str, str]] = MappingProxyType(
    {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
)
_HUB_IGNORED: Final = (
    Ignored(r"(language_model\.)?lm_head\.weight", "a copy of the tied head"),
    Ignored(r".*rotary_emb\.inv_freq", "computed from the config"),
    Ignored(r"(model\.)?visual\..*", "vision tower; this version runs the text part"),
    Ignored(r"mtp\..*", "multi-token prediction, counted and not run", mtp=True),
)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Roles of one layer that lie in the tensor `name`, or in one of each expert."""

    roles: tuple[str, ...]
    name: str
    transform: Transform | None = None


@dataclass(frozen=True, slots=True)
class _Container:
    """How a container names tensors, and what it does to them.

    joints     roles of a layer that share a tensor; all others have their own, under `names`
    alone      transform of a tensor of its own, from its role below the layer
    variants   other ways to store roles of a layer
    """

    names: Mapping[str, str]
    top: Mapping[str, str]
    layer: str
    joints: Callable[[Layer], Iterator[_Stored]]
    alone: Callable[[str, Tensor, Layer], Transform | None]
    variants: Callable[[Layer], Iterator[tuple[_Stored, ...]]]


def _bindings(blueprint: Blueprint, container: _Container) -> Iterator[Binding]:
    joints = tuple({role: joint for joint in container.joints(x) for role in joint.roles} for x in blueprint.layers)
    done: set[str] = set()
    for tensor in inventory(blueprint):
        if tensor.part != "text" or tensor.role in done:
            continue
        if not tensor.role.startswith("layers."):
            transform = container.alone(tensor.role, tensor, blueprint.layers[0])
            yield Binding((tensor.role,), (container.top[tensor.role],), transform)
            continue
        _, number, below = tensor.role.split(".", 2)
        index = int(number)
        layer = blueprint.layers[index]
        stored = joints[index].get(below)
        if stored is None:
            stored = _Stored((below,), container.names[below], container.alone(below, tensor, layer))
        binding = _bound(stored, container.layer.format(index=index), index, layer)
        done.update(binding.roles)
        yield binding


def _bound(stored: _Stored, prefix: str, index: int, layer: Layer) -> Binding:
    roles = tuple(f"layers.{index}.{role}" for role in stored.roles)
    if "{expert}" not in stored.name:
        return Binding(roles, (prefix + stored.name,), stored.transform)
    mixture = layer.feed_forward
    assert isinstance(mixture, Mixture)
    before, after = (prefix + stored.name).split("{expert}")
    return Binding(roles, tuple(f"{before}{i}{after}" for i in range(mixture.experts)), stored.transform)


def _variants(blueprint: Blueprint, container: _Container) -> Iterator[tuple[Binding, ...]]:
    for index, layer in enumerate(blueprint.layers):
        prefix = container.layer.format(index=index)
        for variant in container.variants(layer):
            yield tuple(_bound(stored, prefix, index, layer) for stored in variant)


# -- what is joined ------------------------------------------------------------------------------------------------


def _queries(layer: Layer, weight: str, bias: str) -> Iterator[_Stored]:
    """Query and gate of each head in turn, as q_proj holds them."""
    mixer = layer.mixer
    if isinstance(mixer, Attention) and mixer.gate is not None:
        sections = GroupedRows(mixer.heads, (mixer.heads * mixer.qk_dim, mixer.heads * mixer.v_dim))
        yield _Stored(_QUERIES, weight, sections)
        if mixer.gate.bias:
            yield _Stored(tuple(f"{role}_bias" for role in _QUERIES), bias, sections)


def _projections(mixer: GatedDeltaNet, name: str) -> _Stored:
    """For each key head its q, k, and the v and z of its value heads."""
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    return _Stored(_PROJECTIONS, name, GroupedRows(mixer.key_heads, (keys, keys, values, values)))


def _rates(mixer: GatedDeltaNet, name: str) -> _Stored:
    """For each key head the beta and the decay of its value heads."""
    return _Stored(_RATES, name, GroupedRows(mixer.key_heads, (mixer.value_heads,) * 2))


def _fused(mixture: Mixture, name: str) -> _Stored:
    """For each expert its gate, then its up projection."""
    return _Stored(_EXPERTS, name, GroupedRows(mixture.experts, (mixture.experts * mixture.width,) * 2))


def _as_stored(below: str, tensor: Tensor, layer: Layer) -> None:
    return None


# -- safetensors ---------------------------------------------------------------------------------------------------


def _hub_queries(layer: Layer) -> Iterator[_Stored]:
    return _queries(layer, "self_attn.q_proj.weight", "self_attn.q_proj.bias")


def _next_joints(layer: Layer) -> Iterator[_Stored]:
    yield from _hub_queries(layer)
    if isinstance(layer.mixer, GatedDeltaNet):
        yield _projections(layer.mixer, "linear_attn.in_proj_qkvz.weight")
        yield _rates(layer.mixer, "linear_attn.in_proj_ba.weight")


def _hub_fused(layer: Layer) -> tuple[_Stored, ...]:
    """All experts of a layer in two tensors."""
    if not isinstance(layer.feed_forward, Mixture):
        return ()
    return (_fused(layer.feed_forward, "mlp.experts.gate_up_proj"), _Stored((_DOWN,), "mlp.experts.down_proj"))


def _fused_joints(layer: Layer) -> Iterator[_Stored]:
    yield from _hub_queries(layer)
    yield from _hub_fused(layer)


def _hub_fused_variant(layer: Layer) -> Iterator[tuple[_Stored, ...]]:
    if fused := _hub_fused(layer):
        yield fused


def _hub_expert_variant(layer: Layer) -> Iterator[tuple[_Stored, ...]]:
    if isinstance(layer.feed_forward, Mixture):
        yield tuple(_Stored((role,), _HUB[role]) for role in (*_EXPERTS, _DOWN))


_PER_EXPERT: Final = _Container(_HUB, _HUB_TOP, _HUB_LAYER, _hub_queries, _as_stored, _hub_fused_variant)
_NEXT: Final = _Container(_HUB, _HUB_TOP, _HUB_LAYER, _next_joints, _as_stored, _hub_fused_variant)
_FUSED: Final = _Container(_HUB, _HUB_TOP, _HUB_LAYER, _fused_joints, _as_stored, _hub_expert_variant)


def hub_layout(blueprint: Blueprint, *, fused_experts: bool = False, key_head_projections: bool = False) -> Layout:
    """Names in safetensors files.

    fused_experts         the experts of a layer lie in two tensors (Qwen3.5), not each in three of its own
    key_head_projections  DeltaNet projections are fused key head by key head (Qwen3-Next)
    """
    container = _FUSED if fused_experts else _NEXT if key_head_projections else _PER_EXPERT
    bindings = tuple(_with_input_axis(binding, blueprint) for binding in _bindings(blueprint, container))
    return Layout(bindings, HUB_ROOTS, _HUB_IGNORED, tuple(_variants(blueprint, container)))


def _with_input_axis(binding: Binding, blueprint: Blueprint) -> Binding:
    """A convolution of each channel by itself has one input channel, which is an axis of the file's tensor."""
    role = binding.roles[0]
    if not role.endswith(".delta.convolution"):
        return binding
    mixer = blueprint.layers[int(role.split(".")[1])].mixer
    assert isinstance(mixer, GatedDeltaNet)
    return replace(binding, axes=(mixer.conv_channels, 1, mixer.conv_kernel))


# -- GGUF ----------------------------------------------------------------------------------------------------------


def _gguf_queries(layer: Layer) -> Iterator[_Stored]:
    return _queries(layer, "attn_q.weight", "attn_q.bias")


def _gguf_next_joints(layer: Layer) -> Iterator[_Stored]:
    yield from _gguf_queries(layer)
    if isinstance(layer.mixer, GatedDeltaNet):
        yield _rates(layer.mixer, "ssm_ba.weight")


def _gguf_fused_variant(layer: Layer) -> Iterator[tuple[_Stored, ...]]:
    if isinstance(layer.feed_forward, Mixture):
        yield (_fused(layer.feed_forward, "ffn_gate_up_exps.weight"),)


def _no_variant(layer: Layer) -> Iterator[tuple[_Stored, ...]]:
    return iter(())


def _gguf_next_variants(layer: Layer) -> Iterator[tuple[_Stored, ...]]:
    yield from _gguf_fused_variant(layer)
    if isinstance(layer.mixer, GatedDeltaNet):  # files of the first converter
        yield (_projections(layer.mixer, "ssm_in.weight"),)


def _common_values(below: str, tensor: Tensor) -> tuple[Step, ...]:
    """Norms that scale by 1 + w are stored as that; the decay as the factor it is used as."""
    if below == "delta.decay_log":
        return (NegatedExp(),)
    if tensor.use == "norm" and below != "delta.output_norm":
        return (MinusOne(),)
    return ()


def _tiled(below: str, layer: Layer) -> tuple[Step, ...]:
    """Value heads lie repeat by repeat, where a key head serves several."""
    mixer = layer.mixer
    if not isinstance(mixer, GatedDeltaNet) or mixer.value_heads == mixer.key_heads:
        return ()
    heads = TiledHeads(mixer.key_heads, mixer.value_heads // mixer.key_heads)
    if below in ("delta.query_key_value", "delta.convolution"):
        return (replace(heads, start=2 * mixer.key_heads * mixer.key_dim),)
    if below in ("delta.gate", "delta.beta", "delta.decay", "delta.decay_log", "delta.time_step_bias"):
        return (heads,)
    return (replace(heads, axis="columns"),) if below == "delta.output" else ()


def _chain(steps: tuple[Step, ...]) -> Transform | None:
    return None if not steps else steps[0] if len(steps) == 1 else Chained(steps)


def _grouped_values(below: str, tensor: Tensor, layer: Layer) -> Transform | None:
    return _chain(_common_values(below, tensor))


def _tiled_values(below: str, tensor: Tensor, layer: Layer) -> Transform | None:
    return _chain((*_tiled(below, layer), *_common_values(below, tensor)))


_POST_NORM: Final[Mapping[str, str]] = MappingProxyType(
    {**_GGUF, "feed_forward_norm": "post_attention_norm.weight"}
)
_GGUF_MOE: Final = _Container(
    MappingProxyType({**_GGUF, "feed_forward_norm": "ffn_norm.weight"}),
    _GGUF_TOP,
    _GGUF_LAYER,
    _gguf_queries,
    _as_stored,
    _no_variant,
)
_GGUF_NEXT: Final = _Container(
    _POST_NORM, _GGUF_TOP, _GGUF_LAYER, _gguf_next_joints, _grouped_values, _gguf_next_variants
)
_GGUF_HYBRID: Final = _Container(
    _POST_NORM, _GGUF_TOP, _GGUF_LAYER, _gguf_queries, _tiled_values, _gguf_fused_variant
)


def gguf_layout(blueprint: Blueprint, kind: Literal["attention", "next", "hybrid"]) -> Layout:
    """Names in GGUF files.

    attention  Qwen3-MoE: everything as in safetensors
    next       Qwen3-Next: norms as 1 + w, the decay negated; beta and decay fused key head by key head
    hybrid     Qwen3.5: as Next, with separate beta and decay and the value heads tiled
    """
    container = {"attention": _GGUF_MOE, "next": _GGUF_NEXT, "hybrid": _GGUF_HYBRID}[kind]
    ignored = [Ignored(r"rope_freqs\.weight", "read with the header")]
    if blueprint.head.tied:
        ignored.append(Ignored(r"output\.weight", "a copy of the tied head"))
    if blueprint.mtp is not None:
        first = len(blueprint.layers)
        blocks = "|".join(str(first + i) for i in range(len(blueprint.mtp.layers)))
        ignored.append(Ignored(rf"blk\.({blocks})\..*", "multi-token prediction, counted and not run", mtp=True))
    return Layout(
        tuple(_bindings(blueprint, container)), ONE_ROOT, tuple(ignored), tuple(_variants(blueprint, container))
    )
