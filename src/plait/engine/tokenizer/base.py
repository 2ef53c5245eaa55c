"""What every tokenizer offers, whatever file it came from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from plait.engine.tokenizer.stream import TextStream, without_first_space
from plait.errors import UsageError, fault

__all__ = ["Facts", "Tokenizer"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a tokenizer's files say about it.

    vocabulary     one more than the highest token id
    bos            the token that begins a text, if there is one
    start          the tokens that the tokenizer's own rule puts before a text (mostly none, or BOS)
    eos            every token that ends generation, in ascending order
    adds_eos       the tokenizer's own rule ends a training text with EOS; prompts are never ended so
    control        tokens that text can never spell: only markup and the model itself produce them
    chat_template  the Jinja source, if the files hold one
    first_space    encoding puts a space before a text, so decoding takes one away
    """

    vocabulary: int
    bos: int | None
    start: tuple[int, ...]
    eos: tuple[int, ...]
    adds_eos: bool
    control: frozenset[int]
    chat_template: str | None
    first_space: bool


class Tokenizer(ABC):
    """Text to token ids and back. Instances do not change and may be shared between threads.

    Plain text (what a user or a tool wrote) and markup (what the chat template wrote) are two
    methods, so that a message that contains the spelling of a control token stays a message.
    """

    __slots__ = ("facts",)

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    @property
    def vocabulary(self) -> int:
        """One more than the highest token id."""
        return self.facts.vocabulary

    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self.facts.bos

    @property
    def eos(self) -> tuple[int, ...]:
        """Every token that ends generation, ascending."""
        return self.facts.eos

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer's own rule puts tokens before a text."""
        return bool(self.facts.start)

    @property
    def adds_eos(self) -> bool:
        """Whether the tokenizer's own rule ends a text with EOS. Prompts are left open all the same."""
        return self.facts.adds_eos

    @property
    def control(self) -> frozenset[int]:
        """The tokens that `encode` never yields."""
        return self.facts.control

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the (default) chat template."""
        return self.facts.chat_template

    def encode(self, text: str, *, start: bool = True) -> list[int]:
        """Token ids of plain text; never one of `control`, whatever the text says.

        `start` puts BOS first iff the tokenizer's own rule does. Characters that the vocabulary cannot
        spell become its unknown token; byte-level vocabularies that lack a byte leave it out, as the
        reference implementations do. Raises UsageError for a lone surrogate, which no file or
        protocol can carry, and where the only unknown token is a control token.
        """
        ids = self._plain(_checked(text))
        return [*self.facts.start, *ids] if start else ids

    def encode_markup(self, text: str, *, start: bool = True) -> list[int]:
        """Token ids of trusted text: control tokens that are written out become their ids.

        `start` as in `encode`, except that a beginning that the text already has is not doubled.
        """
        ids = self._markup(_checked(text))
        beginning = list(self.facts.start)
        if not start or ids[: len(beginning)] == beginning:
            return ids
        return beginning + ids

    def decode(self, ids: Iterable[int], *, control: bool = False, start: bool = True) -> str:
        """The text of `ids`. Control tokens write nothing unless `control`.

        `start`: the ids begin a text, so the space that some tokenizers put before a text is taken
        away again; say False for the continuation of a text. Bytes that are not UTF-8 become U+FFFD.
        An id that has no token (embedding tables are often padded) writes nothing; a negative one
        raises UsageError.
        """
        piece = self.token_bytes if control else self._shown
        data = b"".join(map(piece, ids))
        if start and self.facts.first_space:
            data = without_first_space(data)
        return data.decode("utf-8", errors="replace")

    def stream(self, *, control: bool = False, start: bool = True) -> TextStream:
        """A fresh stream whose pushes add up to `decode` with the same arguments."""
        return TextStream(self.token_bytes if control else self._shown, strip=start and self.facts.first_space)

    def token_bytes(self, token: int) -> bytes:
        """What this token writes; for a control token its spelling; empty for an id without a token."""
        if token < 0:
            raise UsageError(fault("token id", expected=f"0 to {self.vocabulary - 1}", found=token))
        return self._bytes(token)

    def token_text(self, token: int) -> str:
        """`token_bytes` for display: a token that holds part of a character shows U+FFFD."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def _shown(self, token: int) -> bytes:
        return b"" if token in self.facts.control else self.token_bytes(token)

    @abstractmethod
    def _plain(self, text: str) -> list[int]: ...

    @abstractmethod
    def _markup(self, text: str) -> list[int]: ...

    @abstractmethod
    def _bytes(self, token: int) -> bytes: ...


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise UsageError(
            fault("text", expected="Unicode text", found=f"a lone surrogate U+{code:04X} at character {error.start}")
        ) from None
    return text
