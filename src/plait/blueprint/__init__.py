"""What a model is: frozen dataclasses, read from its files.

The package is also the function that reads them: `plait.blueprint(model)` gives the Blueprint of a catalogue name,
a directory, a config.json or a .gguf file. So one word serves the package and its one main use, and submodules are
imported as ever.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.blueprint.spec import Blueprint


class _CallablePackage(ModuleType):
    """This package as a module that can be called (language reference, "Customizing module attribute access")."""

    def __call__(self, model: str | Path) -> Blueprint:
        """The Blueprint of MODEL; a UserError (`plait.errors`) says why there is none."""
        from plait.blueprint.source import open_model

        return open_model(model).blueprint


sys.modules[__name__].__class__ = _CallablePackage
