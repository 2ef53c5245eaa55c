"""Token mixers: attention in its forms, Gated DeltaNet, and the norms and rotations they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Attention",
    "FactorScaling",
    "GatedDeltaNet",
    "Indexer",
    "LatentAttention",
    "LinearScaling",
    "Llama3Scaling",
    "Mixer",
    "Norm",
    "OutputGate",
    "QKNorm",
    "Rope",
    "RopeScaling",
    "YarnScaling",
]


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm or LayerNorm over the last axis: x / rms(x) * (offset + w), w absent where `weight` is False."""

    eps: float
    offset: float = 0.0
    weight: bool = True
    bias: bool = False
    kind: Literal["rms", "layer"] = "rms"


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: every frequency divided by `factor` (https://arxiv.org/abs/2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (https://arxiv.org/abs/2309.00071).

    attention_factor  what cos and sin are multiplied by
    softmax_scale     what the attention scale is multiplied by (DeepSeek's mscale, squared)
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    softmax_scale: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling by wavelength: `rope_type: llama3`."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Each frequency divided by its own stored factor (GGUF `rope_freqs.weight`)."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | YarnScaling | Llama3Scaling | FactorScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of some dims of a head (https://arxiv.org/abs/2104.09864).

    `pairs` pairs are rotated; pair i turns by position * theta^(-2i / divisor). With pairing `half` pair i is
    (start + i, start + i + distance), with `adjacent` it is (start + 2i, start + 2i + 1).
    `axes`: how many of the pairs turn by time, height and width of an image position (their sum is `pairs`);
    for text all three positions are equal and the axes change nothing. `interleaved_axes`: pair i belongs to
    axis i mod 3 as long as that axis has pairs left, instead of consecutive sections.
    """

    theta: float
    pairs: int
    divisor: int
    pairing: Literal["half", "adjacent"] = "half"
    distance: int = 0
    start: int = 0
    scaling: RopeScaling | None = None
    axes: tuple[int, ...] | None = None
    interleaved_axes: bool = False

    @property
    def rotated(self) -> int:
        """How many dims of the head are rotated."""
        return 2 * self.pairs


@dataclass(frozen=True, slots=True)
class QKNorm:
    """Norm of queries and keys before the rotation, over each head or over all heads at once."""

    norm: Norm
    over: Literal["head", "all"] = "head"


@dataclass(frozen=True, slots=True)
class OutputGate:
    """Gate on the attention output: one number per head, or one per element of each head.

    bias     the gate's projection has a bias
    """

    per: Literal["head", "element"]
    activation: Literal["sigmoid", "silu"]
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with grouped queries.

    window           None: full; W: query p sees keys p-W+1 .. p
    scale            factor on q . k
    softcap          c: scores become c * tanh(score / c), before the mask
    keys_are_values  no V projection: K = RoPE(norm(kx) * w), V = norm(kx) (Gemma 4)
    v_norm           weightless norm of the values
    value_scale      factor on the values (MiMo)
    sinks            one learned score per head that takes part in the softmax and adds no value
    kv_source        None: own keys and values; i: those of layer i are read, nothing is stored
    qkv_bias, output_bias  biases of the projections
    bidirectional_images   the tokens of one image see each other
    """

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    window: int | None = None
    rope: Rope | None = None
    qk_norm: QKNorm | None = None
    v_norm: Norm | None = None
    keys_are_values: bool = False
    gate: OutputGate | None = None
    sinks: bool = False
    value_scale: float = 1.0
    softcap: float | None = None
    kv_source: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    bidirectional_images: bool = False


@dataclass(frozen=True, slots=True)
class Indexer:
    """Chooses the `top_k` keys a sparse layer attends to (DeepSeek sparse attention).

    score = sum over heads of weight_h * relu(q_h . k) with one key of `dim` per token;
    source: None: own weights and key rows; i: the choice of layer i is used.
    """

    heads: int
    dim: int
    top_k: int
    rope: Rope
    key_norm: Norm
    source: int | None = None


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (https://arxiv.org/abs/2405.04434): one latent of `kv_rank` and one rotated
    key of `rope_dim` per token serve all heads. q_rank None: queries are projected directly."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    rope: Rope
    latent_norm: Norm
    bias: bool = False
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated DeltaNet (https://arxiv.org/abs/2412.06464): a [value_heads, key_dim, value_dim] state per sequence.

    Key head i serves value heads i * r .. i * r + r - 1, r = value_heads / key_heads. A causal depthwise
    convolution of `conv_kernel` taps runs over q, k and v; `l2_eps` stands inside the square root of q's and k's norm.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    output_norm: Norm
    activation: Literal["silu", "sigmoid"] = "silu"
    l2_eps: float = 1e-6

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: all of q, k and v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


Mixer = Attention | LatentAttention | GatedDeltaNet
