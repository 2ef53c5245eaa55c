"""Rotary settings in their spellings.

Old:  rope_theta, rope_scaling {rope_type | type, factor, ...}, partial_rotary_factor, rope_local_base_freq
New:  rope_parameters {rope_type, rope_theta, ...}, or one such object per layer type
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plait.blueprint.read.config import ConfigReader
from plait.blueprint.spec import LinearScaling, Llama3Scaling, Rope, RopeScaling, YarnScaling
from plait.errors import ConfigError, UnsupportedError, fault

__all__ = ["RopeSettings", "half_rope", "read_rope"]


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """theta, share of the head that is rotated, scaling."""

    theta: float
    share: float
    scaling: RopeScaling | None


def _yarn(section: ConfigReader, factor: float, field: str) -> YarnScaling:
    mscale = section.number("mscale", default=0.0, positive=False)
    mscale_all = section.number("mscale_all_dim", default=0.0, positive=False)

    for key, value in (("mscale", mscale), ("mscale_all_dim", mscale_all)):
        if value < 0:
            raise section.error(key, expected="a number of at least 0", found=value)

    def magnitude(scale: float, m: float) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    given = section.optional_number("attention_factor", field=f"{field}.attention_factor")
    if given is not None:
        attention = given
    elif mscale and mscale_all:
        attention = magnitude(factor, mscale) / magnitude(factor, mscale_all)
    else:
        attention = magnitude(factor, 1.0)
    softmax_scale = magnitude(factor, mscale_all) * magnitude(factor, mscale_all) if mscale_all else 1.0
    for key, factor_on_scores in (("mscale", attention), ("mscale_all_dim", softmax_scale)):
        if not math.isfinite(factor_on_scores):
            raise section.error(key, expected="a factor on the scores that is finite", found=factor_on_scores)
    return YarnScaling(
        factor=factor,
        original_context=section.integer("original_max_position_embeddings", field=f"{field}.original_context"),
        beta_fast=section.number("beta_fast", field=f"{field}.beta_fast", default=32.0),
        beta_slow=section.number("beta_slow", field=f"{field}.beta_slow", default=1.0),
        attention_factor=attention,
        softmax_scale=softmax_scale,
        truncate=section.boolean("truncate", default=True),
    )


def _scaling(section: ConfigReader, field: str) -> RopeScaling | None:
    kind = section.text("rope_type", "type", field=f"{field}.scaling", default="default")
    if kind == "default":
        return None
    factor = section.number("factor", field=f"{field}.factor")
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        return _yarn(section, factor, field)
    if kind == "llama3":
        return Llama3Scaling(
            factor=factor,
            low_frequency_factor=section.number("low_freq_factor", field=f"{field}.low_frequency_factor"),
            high_frequency_factor=section.number("high_freq_factor", field=f"{field}.high_frequency_factor"),
            original_context=section.integer("original_max_position_embeddings", field=f"{field}.original_context"),
        )
    key = section.dotted("rope_type" if "rope_type" in section else "type")
    raise UnsupportedError(
        fault(f"key {key!r}", file=section.file, expected="default, linear, llama3 or yarn", found=repr(kind))
    )


def read_rope(
    config: ConfigReader,
    *,
    field: str,
    layer_type: str | None = None,
    theta_key: str = "rope_theta",
    default_theta: float | None = None,
    scaled: bool = True,
    default_share: float = 1.0,
    partial: bool = True,
) -> RopeSettings:
    """Rotary settings of the layers of `layer_type` (None: the model has one kind).

    theta_key      old spelling of this kind's base frequency
    default_theta  the family's documented default; None: theta must be given
    partial        the family's heads may be rotated in part
    scaled         the old `rope_scaling` object speaks of this kind of layer
    """
    parameters = config.section("rope_parameters")
    section = parameters
    if parameters is not None and layer_type is not None:
        nested = parameters.section(layer_type)
        if nested is not None:
            section = nested
        elif parameters.holds_objects():
            section = None
    old_scaling = config.section("rope_scaling") if scaled else None
    if not scaled:
        config.use("rope_scaling")

    share = None
    theta = None
    scaling: RopeScaling | None = None
    if section is not None:
        theta = section.optional_number("rope_theta", field=f"{field}.theta")
        share = section.optional_number("partial_rotary_factor", field=f"{field}.rotated")
        scaling = _scaling(section, field)
    if config.given(theta_key):
        old = config.number(theta_key, field=f"{field}.theta")
        if theta is not None and old != theta:
            assert section is not None
            raise ConfigError(
                fault(
                    f"keys {section.dotted('rope_theta')!r} and {config.dotted(theta_key)!r} disagree",
                    file=config.file,
                    expected="two spellings of one fact to be equal",
                    found=f"{theta:g} and {old:g}",
                )
            )
        theta = old
    if theta is None:
        if default_theta is None:
            raise ConfigError(
                fault(f"key {config.dotted(theta_key)!r} is missing", file=config.file, advice="it has no default")
            )
        config.record(f"{field}.theta", "default", config.dotted(theta_key), default_theta)
        theta = default_theta
    if config.given("partial_rotary_factor"):
        outer = config.number("partial_rotary_factor", field=f"{field}.rotated")
        if share is not None and share != outer:
            raise ConfigError(
                fault(
                    f"key {config.dotted('partial_rotary_factor')!r} disagrees with rope_parameters",
                    file=config.file,
                    expected=f"{share:g}",
                    found=f"{outer:g}",
                )
            )
        share = outer
    if old_scaling is not None:
        old_value = _scaling(old_scaling, field)
        if section is not None and old_value != scaling:
            raise ConfigError(
                fault(
                    f"keys {config.dotted('rope_scaling')!r} and {section.dotted('rope_type')!r} disagree",
                    file=config.file,
                    expected="two spellings of one fact to be equal",
                    found=f"{old_value} and {scaling}",
                )
            )
        scaling = old_value
    if share is None:
        share = default_share
    if not partial and share != 1:
        raise config.error("partial_rotary_factor", expected="1: this family rotates whole heads", found=share)
    if not 0 < share <= 1:
        raise config.error("partial_rotary_factor", expected="a share in (0, 1]", found=share)
    return RopeSettings(theta, share, scaling)


def half_rope(settings: RopeSettings, head_dim: int) -> Rope:
    """Half-split rotation of the first int(head_dim * share) dims, frequencies over the rotated dims.

    Of an odd number of dims the reference code makes one pair more than whole ones, and keeps the odd divisor.
    """
    rotated = int(head_dim * settings.share)
    pairs = (rotated + 1) // 2
    return Rope(theta=settings.theta, pairs=pairs, divisor=rotated, distance=pairs, scaling=settings.scaling)
