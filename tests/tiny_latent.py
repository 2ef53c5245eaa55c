"""Tiny random models: latent."""

from __future__ import annotations

from types import MappingProxyType

from tiny_model import Tiny

MODELS: MappingProxyType[str, Tiny] = MappingProxyType({})
