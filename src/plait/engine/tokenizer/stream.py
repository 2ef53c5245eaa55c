"""Tokens to text, one token at a time, without ever showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable

__all__ = ["TextStream", "without_first_space"]


def without_first_space(data: bytes) -> bytes:
    """`data` less one leading space: the one that the tokenizer itself put before the text."""
    return data[1:] if data.startswith(b" ") else data


class TextStream:
    """The text of a growing sequence of tokens.

    The joined results of all `push` calls and of `finish` equal `Tokenizer.decode` of the same ids.
    Bytes that may still become a character are held back; bytes that cannot become U+FFFD, one for
    each maximal subpart (Unicode 16, section 3.9), as Python's and Rust's lossy decoders do.
    """

    __slots__ = ("_decoder", "_piece", "_strip")

    def __init__(self, piece: Callable[[int], bytes], *, strip: bool) -> None:
        """`piece` gives the bytes a token writes; `strip`: leave out one space at the very beginning."""
        self._piece = piece
        self._strip = strip
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is still incomplete."""
        data = self._piece(token)
        if self._strip and data:
            data = without_first_space(data)
            self._strip = False
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What was held back; a character that was never completed is U+FFFD. Further calls give ""."""
        return self._decoder.decode(b"", final=True)
