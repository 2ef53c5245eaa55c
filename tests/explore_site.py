"""The page over the whole catalogue, made once for all tests of a run."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from plait.explore.site import explore

__all__ = ["catalogue_page", "data_of", "models"]


@cache
def catalogue_page() -> str:
    """The page without any model given."""
    return explore(())[0]


def data_of(page: str) -> dict[str, Any]:
    """The data in a page."""
    text = page.split('<script id="plait-data" type="application/json">', 1)[1].split("</script>", 1)[0]
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def models() -> dict[str, dict[str, Any]]:
    """Models of the catalogue by id, as the page has them."""
    return {model["id"]: model for model in data_of(catalogue_page())["models"]}
