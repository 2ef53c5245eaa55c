"""The tokenizer of a random checkpoint: every byte a token, a few merges, control tokens where the config has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from plait.blueprint.spec import Blueprint

__all__ = ["SMALLEST", "ByteTokenizer", "byte_tokenizer"]

SMALLEST: Final = 260
"""The smallest vocabulary that gets a tokenizer: the bytes, three control tokens and a merge."""

_MERGES: Final = (
    ("Ġ", "t"),
    ("h", "e"),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("a", "n"),
    ("a", "t"),
    ("e", "n"),
    ("o", "u"),
    ("an", "d"),
)
_CONTROL: Final = 3  # token_type of GGUF, as in SentencePiece: normal 1, control 3, unused 5
_NORMAL: Final = 1
_UNUSED: Final = 5


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A byte-level BPE tokenizer in both spellings.

    tokens   spelling by id; ids may have gaps
    control  ids of the control tokens, by what they are for: bos, eos (the first), pad; and further ends
    """

    tokens: Mapping[int, str]
    merges: tuple[tuple[str, str], ...]
    bos: int
    eos: tuple[int, ...]
    pad: int | None

    @property
    def control(self) -> tuple[int, ...]:
        """All control tokens, each once."""
        return tuple(dict.fromkeys((self.bos, *self.eos, *(() if self.pad is None else (self.pad,)))))

    def write(self, directory: Path) -> tuple[Path, ...]:
        """tokenizer.json and tokenizer_config.json."""
        built = Tokenizer(models.BPE({text: token for token, text in self.tokens.items()}, list(self.merges)))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        built.decoder = decoders.ByteLevel()
        control = [self.tokens[token] for token in self.control]
        built.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
        start = self.tokens[self.bos]
        built.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A {start} $B", special_tokens=[(start, self.bos)]
        )
        settings: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": start,
            "eos_token": self.tokens[self.eos[0]],
        }
        if self.pad is not None:
            settings["pad_token"] = self.tokens[self.pad]
        files = directory / "tokenizer.json", directory / "tokenizer_config.json"
        files[0].write_text(built.to_str(pretty=True) + "\n", encoding="utf-8")
        files[1].write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        return files

    def gguf_metadata(self, vocabulary: int) -> dict[str, object]:
        """The same under `tokenizer.ggml.`, with an unused token for each id that has none."""
        control = frozenset(self.control)
        keys: dict[str, object] = {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": [self.tokens.get(token, f"[PAD{token}]") for token in range(vocabulary)],
            "token_type": [
                _CONTROL if token in control else _NORMAL if token in self.tokens else _UNUSED
                for token in range(vocabulary)
            ],
            "merges": [" ".join(merge) for merge in self.merges],
            "bos_token_id": self.bos,
            "add_bos_token": True,
            "add_eos_token": False,
        }
        keys.update(zip(("eos_token_id", "eot_token_id", "eom_token_id"), self.eos, strict=False))
        if self.pad is not None:
            keys["padding_token_id"] = self.pad
        return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def byte_tokenizer(blueprint: Blueprint) -> ByteTokenizer | str:
    """The tokenizer that fits the vocabulary and the config's special tokens, or why there is none."""
    vocabulary, named = blueprint.vocabulary, blueprint.tokens
    if vocabulary < SMALLEST:
        return f"no tokenizer: it needs a vocabulary of at least {SMALLEST}, the model has {vocabulary}"
    for what, ids in (("bos", () if named.bos is None else (named.bos,)), ("eos", named.eos)):
        for token in ids:
            if not 0 <= token < vocabulary:
                return f"no tokenizer: {what}_token_id is {token}, outside the vocabulary of {vocabulary}"
    pad = named.pad if named.pad is not None and 0 <= named.pad < vocabulary else None
    taken = {token for token in (named.bos, *named.eos, pad) if token is not None}
    free = (token for token in count() if token not in taken)
    bos = named.bos if named.bos is not None else next(free)
    eos = named.eos or (next(free),)
    tokens = {bos: "<s>"}
    for i, token in enumerate(eos):
        tokens.setdefault(token, "</s>" if i == 0 else f"</s{i}>")
    if pad is not None:
        tokens.setdefault(pad, "<pad>")
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        tokens[next(free)] = letter
    merges = []
    for merge in _MERGES[: vocabulary - len(tokens)]:
        tokens[next(free)] = "".join(merge)
        merges.append(merge)
    return ByteTokenizer(tokens, tuple(merges), bos, tuple(eos), pad)
