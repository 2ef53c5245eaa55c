"""SigLIP vision tower and Gemma 3's projector, as counted parts.

Reference: transformers 5.24, models/siglip/modeling_siglip.py, SiglipVisionModel.
"""

from __future__ import annotations

from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Tower, TowerTensor

__all__ = ["siglip_tower"]


def siglip_tower(vision: ConfigReader, text_hidden: int) -> Tower:
    """The tower of a `siglip_vision_model` config and the projection to `text_hidden`."""
    vision.use("model_type")
    vision.irrelevant("hidden_act", "layer_norm_eps", "num_attention_heads", "dtype", "torch_dtype")
    hidden = vision.integer("hidden_size", field="vision.hidden", default=768)
    width = vision.integer("intermediate_size", field="vision.width", default=3072)
    layers = vision.integer("num_hidden_layers", field="vision.layers", default=12)
    channels = vision.integer("num_channels", field="vision.channels", default=3)
    image = vision.integer("image_size", field="vision.image_size", default=224)
    patch = vision.integer("patch_size", field="vision.patch_size", default=16)
    pooled = vision.boolean("vision_use_head", field="vision.pooling_head", default=True)
    patches = (image // patch) ** 2
    tensors = [
        TowerTensor("patch_embedding", (hidden, channels, patch, patch)),
        TowerTensor("patch_embedding_bias", (hidden,)),
        TowerTensor("position_embedding", (patches, hidden)),
        TowerTensor("layers.{}.norms", (hidden,), 4 * layers),
        TowerTensor("layers.{}.attention", (hidden, hidden), 4 * layers),
        TowerTensor("layers.{}.attention_bias", (hidden,), 4 * layers),
        TowerTensor("layers.{}.up", (width, hidden), layers),
        TowerTensor("layers.{}.up_bias", (width,), layers),
        TowerTensor("layers.{}.down", (hidden, width), layers),
        TowerTensor("layers.{}.down_bias", (hidden,), layers),
        TowerTensor("final_norm", (hidden,), 2),
        TowerTensor("projector.norm", (hidden,)),
        TowerTensor("projector.weight", (hidden, text_hidden)),
    ]
    if pooled:
        tensors += [
            TowerTensor("head.probe", (1, 1, hidden)),
            TowerTensor("head.attention_in", (3 * hidden, hidden)),
            TowerTensor("head.attention_in_bias", (3 * hidden,)),
            TowerTensor("head.attention_out", (hidden, hidden)),
            TowerTensor("head.attention_out_bias", (hidden,)),
            TowerTensor("head.norm", (hidden,), 2),
            TowerTensor("head.up", (width, hidden)),
            TowerTensor("head.up_bias", (width,)),
            TowerTensor("head.down", (hidden, width)),
            TowerTensor("head.down_bias", (hidden,)),
        ]
    description = f"SigLIP, {layers} layers of {hidden}, {image}x{image} in patches of {patch}"
    return Tower("vision", description, tuple(tensors))
