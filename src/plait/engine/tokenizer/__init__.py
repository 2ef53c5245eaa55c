"""Tokenizers: text to ids and back, safe against forged control tokens, and streaming."""

from __future__ import annotations

from plait.engine.tokenizer.base import Tokenizer
from plait.engine.tokenizer.load import load_tokenizer, tokenizer_from_gguf
from plait.engine.tokenizer.stream import TextStream

__all__ = ["TextStream", "Tokenizer", "load_tokenizer", "tokenizer_from_gguf"]
