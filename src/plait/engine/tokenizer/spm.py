"""SentencePiece's byte-pair encoding, from pieces and scores alone (no merge list)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import neg

from plait.engine.tokenizer.base import Facts, Tokenizer
from plait.engine.tokenizer.matcher import Matcher
from plait.engine.tokenizer.spelling import SPACE
from plait.errors import UsageError, fault

__all__ = ["PieceMerger", "SentencePieceTokenizer"]


class PieceMerger:
    """Merges characters into pieces as sentencepiece's `bpe::Model::SampleEncode` does (alpha 0).

    Of all neighbours whose union is a piece, those with the highest score are joined first, the
    leftmost on ties. User-defined pieces are matched beforehand and never joined with anything.
    Unused pieces take part in merging and are taken apart again at the end.
    """

    __slots__ = ("_fixed", "_ids", "_rank", "_unused")

    def __init__(
        self, ids: Mapping[str, int], scores: Sequence[float], fixed: Mapping[str, int], unused: frozenset[int]
    ) -> None:
        """`ids`: every piece that merging may yield (`fixed` ones included); `scores` by id."""
        self._ids = ids
        self._rank = array("d", map(neg, scores))
        self._fixed = Matcher(fixed)
        self._unused = unused

    def pieces(self, text: str) -> list[tuple[str, int | None]]:
        """(piece, id) in order; the id is None for a character that is no piece."""
        symbols, breaks = self._symbols(text)
        halves = self._merge(symbols, breaks)
        get = self._ids.get
        joined = [(symbol, get(symbol)) for symbol in symbols if symbol]
        if not self._unused:
            return joined
        return [part for symbol, token in joined for part in self._apart(symbol, token, halves)]

    def _symbols(self, text: str) -> tuple[list[str], list[int]]:
        """Characters and user-defined pieces; and the places between symbols that stay apart."""
        symbols: list[str] = []
        breaks: list[int] = []
        for piece, token in self._fixed.split(text):
            if token is None:
                symbols.extend(piece)
            else:
                breaks.append(len(symbols) - 1)
                breaks.append(len(symbols))
                symbols.append(piece)
        return symbols, breaks

    def _merge(self, symbols: list[str], breaks: list[int]) -> dict[str, tuple[str, str]]:
        """Joins `symbols` in place (an absorbed one becomes ""); returns the halves of unused pieces."""
        count = len(symbols)
        after = list(range(1, count + 1))
        before = list(range(-1, count - 1))
        for place in [*breaks, count - 1]:
            # -1 ends a chain: no pair is ever formed across such a place.
            if 0 <= place < count:
                after[place] = -1
            if 0 <= place + 1 < count:
                before[place + 1] = -1
        get, rank, unused = self._ids.get, self._rank, self._unused
        halves: dict[str, tuple[str, str]] = {}
        heap: list[tuple[float, int, int]] = []

        def consider(left: int, right: int) -> None:
            pair = symbols[left] + symbols[right]
            token = get(pair)
            if token is not None:
                heappush(heap, (rank[token], left, len(pair)))
                if token in unused:
                    halves[pair] = symbols[left], symbols[right]

        for left in range(count - 1):
            if after[left] >= 0:
                pair = symbols[left] + symbols[left + 1]
                token = get(pair)
                if token is not None:
                    heap.append((rank[token], left, len(pair)))
                    if token in unused:
                        halves[pair] = symbols[left], symbols[left + 1]
        heapify(heap)
        while heap:
            _, left, size = heappop(heap)
            right = after[left]
            # A symbol only grows by swallowing its neighbour, so an unchanged size means an unchanged pair.
            if not symbols[left] or right < 0 or len(symbols[left]) + len(symbols[right]) != size:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = beyond = after[right]
            if before[left] >= 0:
                consider(before[left], left)
            if beyond >= 0:
                before[beyond] = left
                consider(left, beyond)
        return halves

    def _apart(
        self, symbol: str, token: int | None, halves: Mapping[str, tuple[str, str]]
    ) -> list[tuple[str, int | None]]:
        """`symbol` itself, or the parts of an unused piece, from left to right."""
        done: list[tuple[str, int | None]] = []
        open_ = [(symbol, token)]
        while open_:
            piece, id_ = open_.pop()
            if id_ not in self._unused or piece not in halves:
                done.append((piece, id_))
                continue
            left, right = halves[piece]
            open_ += [(right, self._ids.get(right)), (left, self._ids.get(left))]
        return done


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece BPE vocabulary as GGUF files hold it (`tokenizer.ggml.model` = "llama")."""

    __slots__ = ("_byte_of", "_control", "_fallback", "_merger", "_tokens", "_unknown")

    def __init__(
        self,
        facts: Facts,
        *,
        merger: PieceMerger,
        control: Mapping[str, int],
        tokens: Sequence[str],
        fallback: Sequence[int],
        unknown: int | None,
    ) -> None:
        """`control`: spellings that markup turns into ids; `tokens`: the vocabulary by id; `fallback`: the
        256 ids of single bytes, or none; `unknown`: the id for what cannot be spelled otherwise."""
        super().__init__(facts)
        self._merger = merger
        self._control = Matcher(control)
        self._tokens = tokens
        self._fallback = fallback
        self._byte_of = {token: byte for byte, token in enumerate(fallback)}
        self._unknown = unknown

    def _plain(self, text: str) -> list[int]:
        if not text:
            return []
        escaped = text.replace(" ", SPACE)
        if self.facts.first_space:
            escaped = SPACE + escaped
        ids: list[int] = []
        unknown_before = False
        for piece, token in self._merger.pieces(escaped):
            if token is not None:
                ids.append(token)
            elif self._fallback:
                ids.extend(self._fallback[byte] for byte in piece.encode())
            elif not unknown_before:
                # sentencepiece joins neighbouring unknown characters into one unknown piece.
                ids.append(self._unknown_for(piece))
            unknown_before = token is None and not self._fallback
        return ids

    def _markup(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece, token in self._control.split(text):
            if token is None:
                ids += self._plain(piece)
            else:
                ids.append(token)
        return ids

    def _unknown_for(self, piece: str) -> int:
        if self._unknown is None:
            raise UsageError(
                fault("text", expected="characters that the vocabulary can spell", found=f"U+{ord(piece[0]):04X}")
            )
        return self._unknown

    def _bytes(self, token: int) -> bytes:
        if token >= len(self._tokens):
            return b""
        text = self._tokens[token]
        if token in self.facts.control:
            return text.encode()
        byte = self._byte_of.get(token)
        return text.replace(SPACE, " ").encode() if byte is None else bytes((byte,))
