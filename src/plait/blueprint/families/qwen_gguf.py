"""GGUF metadata of the Qwen families with experts or Gated DeltaNet.

Keys are those of llama.cpp's qwen3moe, qwen3next, qwen35 and qwen35moe; without the architecture's prefix.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plait.blueprint.families.common import FULL, gguf_rope_scaling, gguf_vocabulary
from plait.blueprint.families.gguf_keys import linear_scaling
from plait.blueprint.families.qwen_parts import LINEAR, three_axes
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import (
    Attention,
    Blueprint,
    Embedding,
    FeedForward,
    Gated,
    GatedDeltaNet,
    Head,
    Layer,
    Mixture,
    MultiTokenPrediction,
    Norm,
    OutputGate,
    QKNorm,
    Rope,
    Router,
    SharedExperts,
)
from plait.errors import UnsupportedError, fault

__all__ = ["hybrid_keys", "mixture_keys", "parse_experts", "parse_hybrid"]

_INTERVAL: Final = 4
_THETA: Final = 10_000.0


def _kv_heads(meta: ConfigReader, blocks: int, heads: int) -> tuple[int, tuple[int, ...] | None]:
    """(KV heads of the attention layers, KV heads of each block where the file lists them: 0 for a DeltaNet)."""
    listed = meta.integers("attention.head_count_kv", field="attention.kv_heads", length=blocks)
    if listed is None:
        meta.record("attention.kv_heads", "convention", "attention.head_count", heads)
        return heads, None
    sizes = {count for count in listed if count}
    if len(sizes) != 1:
        raise meta.error("attention.head_count_kv", expected="one size in all attention layers", found=sorted(sizes))
    return sizes.pop(), listed if 0 in listed else None


def _rope(meta: ConfigReader, header: GGUFHeader, rotated: int) -> Rope:
    count = meta.integer("rope.dimension_count", field="rope.rotated", default=rotated)
    return Rope(
        theta=meta.number("rope.freq_base", field="rope.theta", default=_THETA),
        pairs=count // 2,
        divisor=2 * (count // 2),
        distance=count // 2,
        scaling=gguf_rope_scaling(meta, header),
    )


def _attention(meta: ConfigReader, header: GGUFHeader, norm: Norm, kv_heads: int, share: float) -> Attention:
    heads = meta.integer("attention.head_count", field="attention.heads")
    qk_dim = meta.integer("attention.key_length", field="attention.qk_dim")
    biased = any(name.endswith(".attn_q.bias") for name in header.tensors)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=meta.integer("attention.value_length", field="attention.v_dim", default=qk_dim),
        scale=qk_dim**-0.5,
        rope=_rope(meta, header, int(qk_dim * share)),
        qk_norm=QKNorm(norm),
        qkv_bias=biased,
        output_bias=any(name.endswith(".attn_output.bias") for name in header.tensors),
    )


def _delta(meta: ConfigReader, norm: Norm) -> GatedDeltaNet:
    heads = meta.integer("ssm.time_step_rank", field="delta.value_heads")
    inner = meta.integer("ssm.inner_size", field="delta.value_dim")
    if inner % heads:
        raise meta.error("ssm.inner_size", expected=f"a multiple of {heads} value heads", found=inner)
    return GatedDeltaNet(
        key_heads=meta.integer("ssm.group_count", field="delta.key_heads"),
        value_heads=heads,
        key_dim=meta.integer("ssm.state_size", field="delta.key_dim"),
        value_dim=inner // heads,
        conv_kernel=meta.integer("ssm.conv_kernel", field="delta.conv_kernel"),
        output_norm=Norm(norm.eps),
    )


def _experts(meta: ConfigReader, *, shared: bool) -> Mixture:
    meta.record("router.scores", "convention", "softmax over all experts, renormalised", "softmax")
    width = meta.integer("expert_feed_forward_length", field="experts.width")
    own = None
    if shared:
        size = meta.integer("expert_shared_feed_forward_length", field="experts.shared.width", default=width)
        own = SharedExperts(1, size, gated=True)
    meta.irrelevant("expert_gating_func", "expert_weights_norm", "expert_shared_count")
    return Mixture(
        experts=meta.integer("expert_count", field="experts.count"),
        active=meta.integer("expert_used_count", field="experts.active"),
        width=width,
        activation="silu",
        router=Router("softmax", renormalise=True),
        shared=own,
    )


def _kinds(meta: ConfigReader, layers: int, kv_heads: tuple[int, ...] | None) -> tuple[str, ...]:
    if kv_heads is not None:
        meta.use("full_attention_interval")
        return tuple(FULL if count else LINEAR for count in kv_heads[:layers])
    interval = meta.integer("full_attention_interval", field="layers.kind", default=_INTERVAL)
    return tuple(LINEAR if (i + 1) % interval else FULL for i in range(layers))


def _blueprint(
    meta: ConfigReader, header: GGUFHeader, family: str, layers: tuple[Layer, ...], norm: Norm
) -> Blueprint:
    meta.record("feed_forward.activation", "convention", "silu in every file of this architecture", "silu")
    return Blueprint(
        family=family,
        vocabulary=gguf_vocabulary(meta, header),
        hidden=meta.integer("embedding_length", field="hidden"),
        max_context=meta.integer("context_length", field="max_context"),
        embedding=Embedding(),
        layers=layers,
        final_norm=norm,
        head=Head(tied="output.weight" not in header.tensors),
    )


def parse_experts(meta: ConfigReader, header: GGUFHeader, family: str) -> Blueprint:
    """A model of full attention and experts in every layer (qwen3moe)."""
    count = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    heads = meta.integer("attention.head_count", field="attention.heads")
    kv_heads, _ = _kv_heads(meta, count, heads)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"))
    meta.irrelevant("feed_forward_length")  # of dense layers, which such files do not have
    layer = Layer(_attention(meta, header, norm, kv_heads, 1.0), _experts(meta, shared=False), norm, norm)
    return _blueprint(meta, header, family, (layer,) * count, norm)


def parse_hybrid(meta: ConfigReader, header: GGUFHeader, family: str, *, experts: bool, images: bool) -> Blueprint:
    """A model of Gated DeltaNet and full attention (qwen3next, qwen35, qwen35moe).

    experts  all feed-forward layers are mixtures, or all are dense
    images   the rotation has three axes

    Multi-token-prediction layers are the last blocks of the file. By convention of the format the norms scale by
    1 + w, the output gate is a sigmoid per element, and a quarter of each head is rotated.
    """
    blocks = meta.integer("block_count", field="layers", maximum=MAX_LAYERS)
    extra = meta.integer("nextn_predict_layers", field="mtp.layers", default=0, minimum=0)
    if extra >= blocks:
        raise meta.error("nextn_predict_layers", expected=f"less than {blocks} blocks", found=extra)
    count = blocks - extra
    heads = meta.integer("attention.head_count", field="attention.heads")
    kv_heads, listed = _kv_heads(meta, blocks, heads)
    norm = Norm(meta.number("attention.layer_norm_rms_epsilon", field="norm.eps"), offset=1.0)
    plain = _attention(meta, header, norm, kv_heads, 0.25)
    full = replace(plain, gate=OutputGate("element", "sigmoid", bias=plain.qkv_bias))
    meta.record("attention.gate", "convention", "per element of each head, sigmoid", True)
    if images:
        assert full.rope is not None
        sections = meta.indices("rope.dimension_sections", field="rope.axes")
        if len(sections) not in (3, 4):
            raise meta.error("rope.dimension_sections", expected="3 or 4 entries", found=len(sections))
        # The fourth is a place llama.cpp keeps for a further axis; some converters leave it out.
        if sum(sections) != full.rope.pairs or any(sections[3:]):
            raise meta.error(
                "rope.dimension_sections", expected=f"three that make {full.rope.pairs}", found=list(sections)
            )
        full = replace(
            full, rope=replace(full.rope, axes=three_axes(sections, full.rope.pairs), interleaved_axes=True)
        )
    delta = _delta(meta, norm)
    part: FeedForward
    if experts:
        part = _experts(meta, shared=True)
        meta.irrelevant("feed_forward_length")
    else:
        part = Gated(meta.integer("feed_forward_length", field="feed_forward.width"), "silu")
    layers = tuple(
        Layer(full if kind == FULL else delta, part, norm, norm) for kind in _kinds(meta, count, listed)
    )
    made = _blueprint(meta, header, family, layers, norm)
    if not extra:
        return made
    prediction = (Layer(full, part, norm, norm),) * extra
    return replace(made, mtp=MultiTokenPrediction(prediction, False, False, one_projection=True))


def _keys(blueprint: Blueprint) -> tuple[dict[str, object], Attention]:
    """Sizes, and the attention layers' mixer. UnsupportedError: there is none."""
    full = next((layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)), None)
    if full is None:
        raise UnsupportedError(fault("GGUF metadata", expected="at least one attention layer", found="none"))
    keys: dict[str, object] = {
        "vocab_size": blueprint.vocabulary,
        "context_length": blueprint.max_context,
        "embedding_length": blueprint.hidden,
        "block_count": len(blueprint.layers),
        "attention.head_count": full.heads,
        "attention.head_count_kv": full.kv_heads,
        "attention.key_length": full.qk_dim,
        "attention.value_length": full.v_dim,
        "attention.layer_norm_rms_epsilon": blueprint.final_norm.eps,
    }
    if full.rope is not None:
        keys |= {"rope.dimension_count": full.rope.rotated, "rope.freq_base": full.rope.theta}
        keys |= linear_scaling(full.rope)
        if full.rope.axes is not None:
            keys["rope.dimension_sections"] = [*full.rope.axes, 0]
    return keys, full


def _part_keys(blueprint: Blueprint) -> dict[str, object]:
    part = blueprint.layers[0].feed_forward
    if any(layer.feed_forward != part for layer in blueprint.layers):
        raise UnsupportedError(
            fault("GGUF metadata", expected="feed-forward layers that are all alike", found="dense ones beside experts")
        )
    if isinstance(part, Gated):
        return {"feed_forward_length": part.width}
    if not isinstance(part, Mixture):
        raise UnsupportedError(fault("GGUF metadata", expected="dense layers or experts", found=type(part).__name__))
    keys: dict[str, object] = {
        "expert_count": part.experts,
        "expert_used_count": part.active,
        "expert_feed_forward_length": part.width,
    }
    if part.shared is not None:
        keys["expert_shared_feed_forward_length"] = part.shared.width
    return keys


def mixture_keys(blueprint: Blueprint) -> dict[str, object]:
    """The keys of a model of full attention and experts. UnsupportedError: the format has no words for it."""
    keys, full = _keys(blueprint)
    if full.window is not None:
        raise UnsupportedError(fault("GGUF metadata", expected="no windows", found=f"a window of {full.window}"))
    return keys | _part_keys(blueprint)


def hybrid_keys(blueprint: Blueprint) -> dict[str, object]:
    """The keys of a model of Gated DeltaNet and full attention, without multi-token prediction."""
    keys, full = _keys(blueprint)
    kinds = tuple(isinstance(layer.mixer, Attention) for layer in blueprint.layers)
    interval = kinds.index(True) + 1
    keys["full_attention_interval"] = interval
    if kinds != tuple((i + 1) % interval == 0 for i in range(len(kinds))):
        del keys["full_attention_interval"]
        keys["attention.head_count_kv"] = [full.kv_heads if is_full else 0 for is_full in kinds]
    delta = next((layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, GatedDeltaNet)), None)
    if delta is None:
        raise UnsupportedError(fault("GGUF metadata", expected="at least one Gated DeltaNet layer", found="none"))
    keys |= {
        "ssm.conv_kernel": delta.conv_kernel,
        "ssm.inner_size": delta.value_heads * delta.value_dim,
        "ssm.state_size": delta.key_dim,
        "ssm.time_step_rank": delta.value_heads,
        "ssm.group_count": delta.key_heads,
    }
    return keys | _part_keys(blueprint)
