"""How byte-level tokenizers cut a text into words, by the names that GGUF files use.

`tokenizer.ggml.pre` names a cut, not its pattern; the patterns are those of the tokenizer.json files
that the names stand for. Each pattern cuts the pieces that the one before it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["PRETOKENIZERS", "Pretokenizer"]


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """patterns    regular expressions, applied one after the other
    gpt2          whether GPT-2's own pattern cuts last
    composes      whether text is first brought into Unicode's composed form (NFC)
    whole_words   a word that is a token is never merged from parts ("ignore_merges")
    adds_bos      what holds where the file says nothing
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    composes: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_GPT4O = (
    rf"{_CASED[0]}{_CONTRACTION}?|{_CASED[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SYMBOL = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK_WORD = rf"{_ASCII_SYMBOL}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK3 = rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"

_GPT2_CUT = Pretokenizer(gpt2=True)
_DIGITS_CUT = Pretokenizer((r"\p{N}",), gpt2=True)
_LLAMA3_CUT = Pretokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
_GLM4_CUT = Pretokenizer((_LLAMA3,))
_GPT4O_CUT = Pretokenizer((_GPT4O,))

PRETOKENIZERS: Final[Mapping[str, Pretokenizer]] = MappingProxyType(
    {
        "default": Pretokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        "gpt-2": _GPT2_CUT,
        "smollm": _DIGITS_CUT,
        "starcoder": _DIGITS_CUT,
        "llama-bpe": _LLAMA3_CUT,
        "llama3": _LLAMA3_CUT,
        "llama-v3": _LLAMA3_CUT,
        "tekken": Pretokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
        "qwen2": Pretokenizer((_QWEN2,), composes=True),
        "qwen35": Pretokenizer((_QWEN35,), composes=True),
        "deepseek-v3": Pretokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)),
        "spark3": Pretokenizer((r"\p{N}{1,3}", _HAN_KANA, _SPARK3, r"\p{N}")),
        "gpt-4o": _GPT4O_CUT,
        "minimax-m2": _GPT4O_CUT,
        "glm4": _GLM4_CUT,
        "chatglm-bpe": _GLM4_CUT,
    }
)
