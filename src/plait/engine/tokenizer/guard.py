"""Taking control tokens out of reach of plain text."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

__all__ = ["out_of_reach"]


def out_of_reach(document: Mapping[str, Any], control: Mapping[str, int]) -> dict[str, Any]:
    """A tokenizer.json equal to `document`, in which no text spells a token of `control`.

    The tokens keep their ids (leaving them out would shift those of others) but get names made of
    128 random bits, in the vocabulary and among the added tokens alike, and merges that make or use
    them are dropped. So neither matching, nor merging, nor looking a whole word up can find them, and the
    text that spells them is cut like any other, including user-defined tokens inside it. A model that has none
    of them stays the same object.
    """
    secret = secrets.token_hex(16)
    names = {text: f"{secret}.{token}" for text, token in control.items()}
    model: dict[str, Any] = document["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        if not names.keys().isdisjoint(vocabulary):
            model = {**model, "vocab": {names.get(text, text): token for text, token in vocabulary.items()}}
            if isinstance(model.get("merges"), list):
                model["merges"] = [merge for merge in model["merges"] if not _touches(merge, names)]
    elif isinstance(vocabulary, list):
        model = {**model, "vocab": [[names.get(text, text), *rest] for text, *rest in vocabulary]}
    if model.get("unk_token") in names:
        model = {**model, "unk_token": names[model["unk_token"]]}
    added = [{**entry, "content": names.get(entry["content"], entry["content"])} for entry in document["added_tokens"]]
    return {**document, "model": model, "added_tokens": added}


def _touches(merge: object, names: Mapping[str, str]) -> bool:
    parts = merge.split(" ", 1) if isinstance(merge, str) else merge
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return False  # the library says what is wrong with it
    return "".join(parts) in names or any(part in names for part in parts)
