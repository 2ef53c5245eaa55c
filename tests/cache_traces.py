"""What agents ask, as token arrays: prompts that share beginnings in the ways conversations do.

Every piece of text is a run of tokens nobody else has. A prompt ends in a generation prompt of 3 tokens that opens the
thinking; history holds the answers without it, so a prompt is not a beginning of the next one. `marks` say what a chat
template knows: where system text ends, and up to where the next request of this chat will be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from cache_oracle import Memory, request

from plait.cache import Mark, Placement, Shape, Stats, Store

__all__ = ["TRACES", "Ask", "Outcome", "ideal", "run"]

OPEN, THINK, USER = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Ask:
    tokens: tuple[int, ...]
    reply: tuple[int, ...]
    marks: tuple[Mark, ...]


@dataclass
class Writer:
    """Makes text nobody has written before."""

    random: Random = field(default_factory=lambda: Random(7))
    fresh: Iterable[int] = field(default_factory=lambda: count(10))

    def text(self, low: int, high: int | None = None) -> list[int]:
        length = low if high is None else self.random.randint(low, high)
        return [token for token, _ in zip(self.fresh, range(length), strict=False)]


@dataclass
class Chat:
    """A conversation: `say` asks and puts the answer into the history, without its thinking."""

    writer: Writer
    head: list[int]
    history: list[int] = field(default_factory=list)

    def ask(self, message: Sequence[int]) -> tuple[Ask, list[int]]:
        same = [*self.head, *self.history, USER, *message]
        answer = self.writer.text(20, 200)
        marks = (Mark(len(self.head), "system"), Mark(len(same), "turn"))
        reply = (*self.writer.text(50, 300), THINK, *answer)
        return Ask((*same, OPEN, THINK, THINK), reply, marks), [USER, *message, OPEN, *answer]

    def say(self, message: Sequence[int]) -> Ask:
        asked, turn = self.ask(message)
        self.history += turn
        return asked


def growing() -> list[Ask]:
    w = Writer()
    chat = Chat(w, w.text(1500))
    return [chat.say(w.text(20, 300)) for _ in range(12)]


def edited() -> list[Ask]:
    """The last turn edited three times, then gone on with."""
    w = Writer()
    chat = Chat(w, w.text(1500))
    asks = [chat.say(w.text(20, 300)) for _ in range(4)]
    for _ in range(3):
        asks += [chat.ask(w.text(30, 200))[0] for _ in range(3)]
        asks += [chat.say(w.text(30, 200)), chat.say(w.text(30, 200))]
    return asks


def repeated() -> list[Ask]:
    w = Writer()
    chat = Chat(w, w.text(1500))
    message = w.text(100)
    return [chat.ask(message)[0] for _ in range(3)]


def alternating() -> list[Ask]:
    """Two agents take turns over one head of system text and tools."""
    w = Writer()
    head = w.text(1500)
    chats = [Chat(w, [*head, *w.text(40)]) for _ in range(2)]
    return [chats[number % 2].say(w.text(20, 300)) for number in range(14)]


def tails() -> list[Ask]:
    """One document, many unrelated questions; no template, so nobody knows where it ends."""
    w = Writer()
    head = w.text(2000)
    return [Ask((*head, *w.text(20, 400)), tuple(w.text(20, 200)), ()) for _ in range(12)]


def rewound() -> list[Ask]:
    """Back to an early turn, a few turns another way, and back to the first way again."""
    w = Writer()
    chat = Chat(w, w.text(1500))
    asks, histories = [], []
    for _ in range(8):
        histories.append(list(chat.history))
        asks.append(chat.say(w.text(20, 300)))
    other = Chat(w, chat.head, histories[2])
    asks += [other.say(w.text(20, 300)) for _ in range(3)]
    asks += [chat.say(w.text(20, 300)) for _ in range(3)]
    return asks


def verbatim() -> list[Ask]:
    """Two conversations in turn, as tool calls make them: what was generated stands in the next prompt as it was."""
    w = Writer()
    head = w.text(1500)
    histories = [[*head, *w.text(40)] for _ in range(2)]
    asks = []
    for number in range(14):
        history = histories[number % 2]
        history += [USER, *w.text(20, 300), OPEN]
        reply = w.text(30, 300)
        asks.append(Ask(tuple(history), tuple(reply), (Mark(len(head), "system"), Mark(len(history), "turn"))))
        history += reply
    return asks


TRACES: dict[str, Callable[[], list[Ask]]] = {
    "growing": growing,
    "edited": edited,
    "repeated": repeated,
    "alternating": alternating,
    "tails": tails,
    "rewound": rewound,
    "verbatim": verbatim,
}


def ideal(asks: Sequence[Ask]) -> int:
    """Tokens reused at best: the longest beginning shared with any earlier text, all but the prompt's last token."""
    total = 0
    texts: list[tuple[int, ...]] = []
    for ask in asks:
        best = 0
        for text in texts:
            if text[:best] == ask.tokens[:best]:
                while best < min(len(text), len(ask.tokens) - 1) and text[best] == ask.tokens[best]:
                    best += 1
        total += best
        texts.append(ask.tokens + ask.reply)
    return total


@dataclass(frozen=True, slots=True)
class Outcome:
    reused: int
    ideal: int
    stats: Stats

    @property
    def share(self) -> float:
        return self.reused / self.ideal


def run(
    asks: Sequence[Ask],
    model: Shape,
    *,
    budget: int = 1 << 60,
    row_bytes: int | tuple[int, ...] = 12 << 10,
    snapshot_bytes: int = 0,
    placement: Placement | None = None,
    marked: bool = False,
    verify: bool = False,
) -> Outcome:
    """A trace through a new store with pages of 64; `marked`: with what the template knows."""
    memory = Memory(64, row_bytes, snapshot_bytes)
    store = Store(model, budget, page_size=64, placement=placement)
    reused = 0
    for ask in asks:
        marks = ask.marks if marked else ()
        reused += request(
            store, memory, ask.tokens, ask.reply, marks=marks, dense=False, verify=verify
        ).resume
    store.check()
    assert store.stats().bytes == memory.nbytes
    return Outcome(reused, ideal(asks), store.stats())
