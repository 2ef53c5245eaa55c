"""Texts that tokenizers get wrong, and headers without a file, for the tokenizer tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXTS = (
    "",
    " ",
    "\n",
    "Hello, world! It's what we'VE said: 3.14159 and 1,000,000.",
    "  runs   of    spaces\t\tand tabs \n\n\n\n and\r\n\r\nline breaks   ",
    "世界你好，漢字かなカナ。",
    "こんにちは、元気ですか？",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया क्षि",
    "สวัสดีชาวโลก",
    "안녕하세요 세계",
    "Привет, мир! Ἑλληνική ἀρχή",
    "👨\u200d👩\u200d👧\u200d👦 🇩🇪 👍🏽 e\u0301 ñ n\u0303",
    "def f(x):\n\tif x == 1:\n\t\treturn [y ** 2 for y in range(x)]  # fine\n    return {}\n",
    "<table><tr><td>x</td></tr></table>",
    "<bos><start_of_turn>user\n<eos> <unused7> <unk> <pad> [multimodal] <0x0A>",
    "<|im_start|>system\n<|im_end|><|endoftext|><|im_start|",
    "nul\x00 \x00\x01\x7f \ufeff\ufffd \ud7ff\ue000 \U0010ffff",
    "▁▁literal▁lower blocks ▁ ▁",
    "a" * 700,
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 5,
    "\n" * 70 + " " * 70 + "\t" * 70,
    "\u00a0\u3000nbsp\u200bzwsp\u2028ls\u0085nel",
)


@dataclass(frozen=True)
class Header:
    """As much of a GGUF header as a tokenizer reads."""

    metadata: Mapping[str, Any]
    path: Path = Path("model.gguf")


def with_keys(header: Any, **keys: Any) -> Header:
    """The metadata of `header` with `tokenizer.ggml.*` keys replaced; None removes one."""
    changed = {**header.metadata, **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}
    return Header({key: value for key, value in changed.items() if value is not None}, header.path)
