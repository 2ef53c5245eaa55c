"""What the Qwen families with experts or Gated DeltaNet share: their parts, read from config keys.

References: transformers 5.24, models/qwen3_moe, models/qwen3_next and models/qwen3_5;
https://arxiv.org/abs/2412.06464 (Gated DeltaNet).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal

from plait.blueprint.families.common import ACTIVATIONS, FULL
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.rope import half_rope, read_rope
from plait.blueprint.spec import (
    Attention,
    FeedForward,
    Gated,
    GatedDeltaNet,
    Mixture,
    Norm,
    OutputGate,
    QKNorm,
    Rope,
    Router,
    SharedExperts,
)
from plait.blueprint.spec_feed_forward import Activation

__all__ = [
    "LINEAR",
    "activation",
    "delta_net",
    "feed_forwards",
    "gated_attention",
    "hybrid_kinds",
    "image_axes",
    "mixture",
    "three_axes",
]

LINEAR: Final = "linear_attention"
# What describes experts, and nothing in a model of dense layers only.
_EXPERT_KEYS: Final = (
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
    "output_router_logits",
    "router_aux_loss_coef",
    "shared_expert_intermediate_size",
)
_INTERVAL: Final = 4
# The convolution of the reference uses hidden_act, its output gate SiLU always: only SiLU means one thing.
_SILU: Final = MappingProxyType({"silu": "silu", "swish": "silu"})
# The key stands in later files only; vLLM's Qwen3.5 reads it, transformers knows SiLU alone.
_OUTPUT_GATES: Final[Mapping[str, Literal["silu", "sigmoid"]]] = MappingProxyType(
    {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}
)
# 64 of 256 dims: what the reference sets where the key is absent.
_ROTATED_SHARE: Final = 0.25
_THETA: Final = 10_000.0
# Default of the reference where a file has no `mrope_section`.
_SECTIONS: Final = (11, 11, 10)


def activation(config: ConfigReader) -> Activation:
    """Of the feed-forward layers."""
    return config.choice("hidden_act", among=ACTIVATIONS, field="feed_forward.activation", default="silu")  # type: ignore[arg-type]


def hybrid_kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    """Kind of each layer: `layer_types`, or every `full_attention_interval`-th layer is full, the others DeltaNet."""

    def every(interval: int) -> tuple[str, ...]:
        return tuple(LINEAR if (i + 1) % interval else FULL for i in range(layers))

    given = config.words("layer_types", field="layers.kind", length=layers)
    if given is None:
        return every(config.integer("full_attention_interval", field="layers.kind", default=_INTERVAL))
    for index, word in enumerate(given):
        if word not in (FULL, LINEAR):
            raise config.error("layer_types", expected=f"{FULL} or {LINEAR}", found=f"{word!r} at layer {index}")
    if config.given("full_attention_interval"):
        interval = config.integer("full_attention_interval")
        if given != every(interval):
            raise config.error(
                "full_attention_interval",
                expected="the pattern of layer_types",
                found=interval,
                advice="the two keys disagree",
            )
    config.use("full_attention_interval")
    return given


def three_axes(sections: Sequence[int], pairs: int) -> tuple[int, int, int]:
    """How many of `pairs` pairs turn by time, height and width: pair i by axis i mod 3 while that axis has pairs left,
    the others by time (Qwen3_5TextRotaryEmbedding.recomposition_frequencies)."""
    height, width = (len(range(axis, min(3 * sections[axis], pairs), 3)) for axis in (1, 2))
    return pairs - height - width, height, width


def image_axes(config: ConfigReader, rope: Rope) -> Rope:
    """The rotation with the three axes of image positions, from `mrope_section` in any of the places it stands in."""
    places = [config, *filter(None, (config.section(key) for key in ("rope_parameters", "rope_scaling")))]
    found: tuple[ConfigReader, tuple[int, ...]] | None = None
    for place in places:
        if place.given("mrope_interleaved") and not place.boolean("mrope_interleaved"):
            raise place.error("mrope_interleaved", expected="true, as the family knows no other order", found="false")
        place.use("mrope_interleaved")
        sections = place.integers("mrope_section", field="rope.axes", length=3) if "mrope_section" in place else None
        if sections is None:
            continue
        if found is not None and found[1] != sections:
            raise place.error(
                "mrope_section",
                expected=f"{list(found[1])}, as {found[0].dotted('mrope_section')!r} says",
                found=list(sections),
            )
        found = (place, sections)
    if found is None:
        config.record("rope.axes", "default", "mrope_section", list(_SECTIONS))
    elif sum(found[1]) != rope.pairs:
        # The reference cuts what is too long and gives what is too short to time.
        config.record("rope.axes", "derived", found[0].dotted("mrope_section"), three_axes(found[1], rope.pairs))
    sections = _SECTIONS if found is None else found[1]
    return replace(rope, axes=three_axes(sections, rope.pairs), interleaved_axes=True)


def gated_attention(
    config: ConfigReader, norm: Norm, *, heads: int, kv_heads: int, gated: bool = True
) -> Attention:
    """Full attention with q/k norms, a rotated quarter of each head, and a gate per element of the output.

    heads, kv_heads  the family's defaults
    gated            the family's files may turn the gate off with `attn_output_gate`
    """
    head_dim = config.integer("head_dim", field="attention.qk_dim", default=256)
    bias = config.boolean("attention_bias", field="attention.bias", default=False)
    settings = read_rope(config, field="rope", default_theta=_THETA, default_share=_ROTATED_SHARE)
    if "rope.rotated" not in config.evidence:
        config.record("rope.rotated", "default", "partial_rotary_factor", settings.share)
    config.record("attention.scale", "derived", "head_dim", head_dim)
    if not gated:
        config.record("attention.gate", "convention", "per element of each head, sigmoid", True)
    on = config.boolean("attn_output_gate", field="attention.gate", default=True) if gated else True
    return Attention(
        heads=config.integer("num_attention_heads", field="attention.heads", default=heads),
        kv_heads=config.integer("num_key_value_heads", field="attention.kv_heads", default=kv_heads),
        qk_dim=head_dim,
        v_dim=head_dim,
        scale=head_dim**-0.5,
        rope=half_rope(settings, head_dim),
        qk_norm=QKNorm(norm),
        gate=OutputGate("element", "sigmoid", bias=bias) if on else None,
        qkv_bias=bias,
        output_bias=bias,
    )


def delta_net(config: ConfigReader, norm: Norm) -> GatedDeltaNet:
    """The Gated DeltaNet of a config; its output norm scales by w, whatever the other norms do."""
    config.choice("hidden_act", among=_SILU, field="delta.activation", default="silu")
    config.irrelevant("mamba_ssm_dtype")  # the state is at least float32 in any case
    return GatedDeltaNet(
        key_heads=config.integer("linear_num_key_heads", field="delta.key_heads", default=16),
        value_heads=config.integer("linear_num_value_heads", field="delta.value_heads", default=32),
        key_dim=config.integer("linear_key_head_dim", field="delta.key_dim", default=128),
        value_dim=config.integer("linear_value_head_dim", field="delta.value_dim", default=128),
        conv_kernel=config.integer("linear_conv_kernel_dim", field="delta.conv_kernel", default=4),
        output_norm=Norm(norm.eps),
        activation=config.choice("output_gate_type", among=_OUTPUT_GATES, field="delta.gate", default="silu"),
    )


def mixture(
    config: ConfigReader, *, experts: int, active: int, width: int, renormalise: bool, shared_width: int | None
) -> Mixture:
    """Experts chosen by a softmax over all of them; the arguments are the family's defaults.

    renormalise   the weights of the chosen are divided by their sum, as far as the caller has read it
    shared_width  None: the family has no shared expert; its own is gated by one number per token
    """
    shared = None
    if shared_width is not None:
        own = config.integer("shared_expert_intermediate_size", field="experts.shared.width", default=shared_width)
        shared = SharedExperts(1, own, gated=True)
        config.record("experts.shared.gate", "convention", "one sigmoid per token", True)
    config.irrelevant("output_router_logits", "router_aux_loss_coef")
    config.record("router.scores", "convention", "softmax over all experts", "softmax")
    return Mixture(
        experts=config.integer("num_experts", "num_local_experts", field="experts.count", default=experts),
        active=config.integer("num_experts_per_tok", field="experts.active", default=active),
        width=config.integer("moe_intermediate_size", field="experts.width", default=width),
        activation=activation(config),
        router=Router("softmax", renormalise=renormalise),
        shared=shared,
    )


def feed_forwards(
    config: ConfigReader, layers: int, *, width: int, experts: Callable[[], Mixture]
) -> tuple[FeedForward, ...]:
    """Of each layer: experts, but dense in the layers `mlp_only_layers` names and off the `decoder_sparse_step`.

    width    default width of the dense layers; where there are none, `intermediate_size` is unused
    experts  reads the mixture, which a model of dense layers only does not have
    """
    only = frozenset(config.indices("mlp_only_layers", field="feed_forward.dense_layers"))
    step = config.integer("decoder_sparse_step", field="feed_forward.step", default=1)
    none = config.given("num_experts") and config.integer("num_experts", minimum=0) == 0
    sparse = tuple(not none and i not in only and (i + 1) % step == 0 for i in range(layers))
    mixed = experts() if any(sparse) else None
    if mixed is None:
        config.irrelevant(*_EXPERT_KEYS)
    if all(sparse):
        config.irrelevant("intermediate_size")
        dense = None
    else:
        dense = Gated(
            config.integer("intermediate_size", field="feed_forward.width", default=width), activation(config)
        )
    chosen = tuple(mixed if is_sparse else dense for is_sparse in sparse)
    return tuple(part for part in chosen if part is not None)
