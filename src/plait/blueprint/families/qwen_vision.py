"""The vision transformer of Qwen3.5 and the merger that joins it to the text model, as counted parts.

Reference: transformers 5.24, models/qwen3_5/modeling_qwen3_5.py, Qwen3_5VisionModel.
"""

from __future__ import annotations

from plait.blueprint.families.common import ignore_common
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import Tower, TowerTensor
from plait.errors import UnsupportedError, fault

__all__ = ["vision_tower"]


def _sizes(vision: ConfigReader, key: str, *, length: int, default: int, field: str) -> tuple[int, ...]:
    """One size for all axes, or one for each."""
    return vision.integers(key, field=field, length=length, minimum=1) or (default,) * length


def vision_tower(vision: ConfigReader) -> Tower:
    """The tower of a `vision_config`; defaults are those of Qwen3_5VisionConfig."""
    ignore_common(vision)
    vision.use("model_type")
    # Heads, activation and the rotation of patches change no shape, and the tower is counted, not run.
    vision.irrelevant("hidden_act", "num_heads", "num_attention_heads", "rope_parameters", "dtype", "torch_dtype")
    if vision.indices("deepstack_visual_indexes"):
        what = f"key {vision.dotted('deepstack_visual_indexes')!r}"
        raise UnsupportedError(fault(what, file=vision.file, expected="[]", found="layers that feed the text model"))
    hidden = vision.integer("hidden_size", field="vision.hidden", default=1152)
    width = vision.integer("intermediate_size", field="vision.width", default=4304)
    layers = vision.integer("depth", "num_hidden_layers", field="vision.layers", default=27)
    channels = vision.integer("in_channels", field="vision.channels", default=3)
    positions = vision.integer("num_position_embeddings", field="vision.positions", default=2304)
    merge = vision.integer("spatial_merge_size", field="vision.merge", default=2)
    joined = vision.integer("out_hidden_size", field="vision.out", default=3584)
    patch = _sizes(vision, "patch_size", length=2, default=16, field="vision.patch_size")
    frames = vision.integer("temporal_patch_size", field="vision.frames", default=2)
    merged = hidden * merge**2
    tensors = (
        TowerTensor("patch_embedding", (hidden, channels, frames, *patch)),
        TowerTensor("patch_embedding_bias", (hidden,)),
        TowerTensor("position_embedding", (positions, hidden)),
        TowerTensor("layers.{}.norms", (hidden,), 4 * layers),
        TowerTensor("layers.{}.attention_in", (3 * hidden, hidden), layers),
        TowerTensor("layers.{}.attention_in_bias", (3 * hidden,), layers),
        TowerTensor("layers.{}.attention_out", (hidden, hidden), layers),
        TowerTensor("layers.{}.attention_out_bias", (hidden,), layers),
        TowerTensor("layers.{}.up", (width, hidden), layers),
        TowerTensor("layers.{}.up_bias", (width,), layers),
        TowerTensor("layers.{}.down", (hidden, width), layers),
        TowerTensor("layers.{}.down_bias", (hidden,), layers),
        TowerTensor("merger.norm", (hidden,), 2),
        TowerTensor("merger.in", (merged, merged)),
        TowerTensor("merger.in_bias", (merged,)),
        TowerTensor("merger.out", (joined, merged)),
        TowerTensor("merger.out_bias", (joined,)),
    )
    description = f"ViT, {layers} layers of {hidden}, patches of {'x'.join(map(str, patch))} merged {merge}x{merge}"
    return Tower("vision", description, tensors)
