"""Plait reads, explains and runs hybrid-attention language models.

    plait.blueprint(model)   what a model is: layers, attention, rotation, norms
    plait.load(model)        an engine that runs it (needs the extra `run`)

Parts are imported on first use: `import plait` alone costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["__version__", "blueprint", "load"]

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from pathlib import Path

    from plait.blueprint.spec import Blueprint
    from plait.engine.load import load

    def blueprint(model: str | Path) -> Blueprint:
        """The Blueprint of MODEL; at run time the package `plait.blueprint` itself, which is callable."""


def __getattr__(name: str) -> object:
    if name == "blueprint":
        return import_module("plait.blueprint")
    if name == "load":
        return import_module("plait.engine.load").load
    raise AttributeError(f"module 'plait' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
