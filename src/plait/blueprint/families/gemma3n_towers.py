"""Encoders of Gemma 3n with the embedders that join them to the text model, as counted parts.

Reference: transformers 5.24, models/gemma3n/modeling_gemma3n.py, Gemma3nAudioEncoder and Gemma3nMultimodalEmbedder.
The vision encoder is no family of networks but one fixed network, `mobilenetv5_300m_enc` of timm, whose size is stated.
"""

from __future__ import annotations

from typing import Final

from plait.blueprint.families.common import ignore_common
from plait.blueprint.families.conformer import conformer_layers
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Tower, TowerTensor
from plait.errors import UnsupportedError, fault

__all__ = ["MOBILENET_PARAMETERS", "audio_tower", "vision_tower"]

_MOBILENET: Final = "mobilenetv5_300m_enc"
MOBILENET_PARAMETERS: Final = 294_126_912


def _embedder(part: ConfigReader, field: str, hidden: int, text_hidden: int) -> tuple[TowerTensor, ...]:
    """Embeddings of the part's own tokens, a norm for them and one for the encoder's output, and the projection."""
    part.irrelevant("vocab_offset")
    rows = part.integer("vocab_size", field=f"{field}.vocabulary", default=128)
    return (
        TowerTensor("embedder.embedding", (rows, hidden), embedder=True),
        TowerTensor("embedder.norms", (hidden,), 2, embedder=True),
        TowerTensor("embedder.projection", (text_hidden, hidden), embedder=True),
    )


def vision_tower(vision: ConfigReader, text_hidden: int) -> Tower:
    """The tower of a `gemma3n_vision` config, whose encoder must be the one all published models have."""
    ignore_common(vision)
    vision.use("model_type")
    vision.irrelevant("do_pooling", "dtype", "label_names", "num_classes", "rms_norm_eps", "torch_dtype")
    name = vision.text("architecture", field="vision.architecture", default=_MOBILENET)
    if name != _MOBILENET:
        raise UnsupportedError(
            fault(f"key {vision.dotted('architecture')!r}", file=vision.file, expected=_MOBILENET, found=repr(name))
        )
    if vision.given("model_args"):
        raise UnsupportedError(
            fault(f"key {vision.dotted('model_args')!r}", file=vision.file, expected="null", found="arguments")
        )
    vision.use("model_args")
    vision.record("vision.parameters", "convention", "mobilenetv5_300m_enc is one fixed network", MOBILENET_PARAMETERS)
    hidden = vision.integer("hidden_size", field="vision.hidden", default=2048)
    tensors = (
        TowerTensor("encoder", (MOBILENET_PARAMETERS,)),
        *_embedder(vision, "vision", hidden, text_hidden),
    )
    return Tower("vision", f"MobileNet-V5 (timm {_MOBILENET}), {hidden} channels out", tensors)


def audio_tower(audio: ConfigReader, text_hidden: int) -> Tower:
    """The tower of a `gemma3n_audio` config."""
    ignore_common(audio)
    audio.use("model_type")
    audio.irrelevant(
        "conf_attention_chunk_size",
        "conf_attention_context_left",
        "conf_attention_context_right",
        "conf_attention_logit_cap",
        "conf_reduction_factor",
        "conf_residual_weight",
        "dtype",
        "gradient_clipping",
        "rms_norm_eps",
        "sscp_conv_group_norm_eps",
        "torch_dtype",
    )
    hidden = audio.integer("hidden_size", field="audio.hidden", default=1536)
    layers = audio.integer("conf_num_hidden_layers", field="audio.layers", default=12)
    heads = audio.integer("conf_num_attention_heads", field="audio.heads", default=8)
    kernel = audio.integer("conf_conv_kernel_size", field="audio.convolution", default=5)
    bins = audio.integer("input_feat_size", field="audio.bins", default=128)
    channels = audio.integers("sscp_conv_channel_size", field="audio.channels", length=2, minimum=1) or (128, 32)
    kernels = audio.pairs("sscp_conv_kernel_size", field="audio.kernels", default=((3, 3), (3, 3)))
    strides = audio.pairs("sscp_conv_stride_size", field="audio.strides", default=((2, 2), (2, 2)))
    tensors = []
    before = 1
    for i, (after, taps, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        tensors.append(TowerTensor(f"subsampling.{i}.convolution", (after, before, *taps)))
        tensors.append(TowerTensor(f"subsampling.{i}.norm", (after,)))
        # One bin of padding on either side.
        bins = (bins + 2 - taps[1]) // stride[1] + 1
        before = after
    if bins < 1:
        raise audio.error("input_feat_size", expected="bins left after both convolutions", found=bins)
    tensors += [
        TowerTensor("subsampling.projection", (hidden, before * bins)),
        *conformer_layers(hidden, heads, kernel, layers),
        *_embedder(audio, "audio", hidden, text_hidden),
    ]
    return Tower("audio", f"conformer, {layers} layers of {hidden}", tuple(tensors))
