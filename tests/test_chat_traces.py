"""Whole chats through the model's template, its tokenizer and the prefix store: how much of the ideal is reused.

What is generated are ids that no tokenizer would choose in every third answer, and thoughts that the history may lose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cache_oracle import shape
from cache_traces import Ask, Outcome, run
from chat_models import TOOL, assistant, call, chat_model, system, user

from plait.blueprint.source import open_model
from plait.cache import Shape
from plait.engine.chat import ChatFormat, Replies, templates_from_gguf
from plait.engine.tokenizer import tokenizer_from_gguf

WORDS = ("the", "quick", "brown", "fox", "lazy", "rests", "first", "question", "answer", "today", "think", "rules")

SYSTEM = (20, 300)

# Does the template open a thought, and does the history keep it?
TEMPLATES = {"SmolLM2": False, "thought_left_out": True, "thought_kept": True}
MODELS: dict[str, tuple[Shape, float]] = {
    "rows": (shape(rows=1), 0.98),
    "rows and windows": (shape((512,), rows=1), 0.98),
    "rows and snapshots": (shape(rows=1, snapshots=1), 0.95),
}


@dataclass
class Client:
    """Keeps a history as a client of the API does, and the engine's side of it: prompts, ids, remembered answers."""

    format: ChatFormat
    thinks: bool
    replies: Replies = field(default_factory=Replies)
    random: Random = field(default_factory=lambda: Random(11))
    asks: list[Ask] = field(default_factory=list)

    def words(self, low: int, high: int) -> str:
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randint(low, high)))

    def ask(self, chat: list[Mapping[str, Any]], *, tools: Any = None, arguments: Any = None) -> Mapping[str, Any]:
        """One request; the answer as a client puts it into its history."""
        prompt = self.format.prompt(chat, tools=tools, replies=self.replies)
        thought, answer = self.words(20, 80), self.words(20, 80)
        text = answer
        if self.thinks:
            opened = "" if prompt.text.endswith("<think>\n") else "<think>\n"
            text = f"{opened}{thought}\n</think>\n\n{answer}"
        tokenizer = self.format.tokenizer
        ids = tuple(tokenizer.encode_markup(text, start=False))
        if len(self.asks) % 3 == 2:
            ids = (*ids[:-1], *tokenizer.encode_markup(answer[-3:-1], start=False)) if len(ids) > 4 else ids
        self.replies.remember(tokenizer, chat, ids)
        self.asks.append(Ask(prompt.tokens, ids, prompt.marks))
        said = tokenizer.decode(ids, start=False, control=True).split("</think>\n\n")[-1]
        fields: dict[str, Any] = {"reasoning_content": thought} if self.thinks else {}
        if arguments is not None:
            fields["tool_calls"] = [call(arguments)]
        return assistant(said, **fields)


def growing(c: Client) -> None:
    chat = [system(c.words(*SYSTEM))]
    for _ in range(6):
        chat.append(user(c.words(10, 80)))
        chat.append(c.ask(chat))


def edited(c: Client) -> None:
    """The last turn is written anew three times, and asked again as it is."""
    chat = [system(c.words(*SYSTEM))]
    for _ in range(3):
        for _ in range(2):
            c.ask([*chat, user(c.words(10, 80))])
        chat.append(user(c.words(10, 80)))
        c.ask(chat)
        chat.append(c.ask(chat))


def alternating(c: Client) -> None:
    """Two chats in turn under one system text."""
    head = system(c.words(*SYSTEM))
    chats = [[head, user(c.words(10, 80))] for _ in range(2)]
    for turn in range(8):
        chat = chats[turn % 2]
        chat.append(c.ask(chat))
        chat.append(user(c.words(10, 80)))


def tools(c: Client) -> None:
    """Answers that call a tool, whose result comes back: several steps between two messages of the user."""
    chat: list[Mapping[str, Any]] = [system(c.words(*SYSTEM))]
    for _ in range(3):
        chat.append(user(c.words(10, 80)))
        for _ in range(2):
            chat.append(c.ask(chat, tools=[TOOL], arguments={"word": c.words(1, 1)}))
            chat.append({"role": "tool", "tool_call_id": "abcdef123", "content": c.words(20, 100)})
        chat.append(c.ask(chat, tools=[TOOL]))


CHATS: dict[str, Callable[[Client], None]] = {
    "growing": growing,
    "edited": edited,
    "alternating": alternating,
    "tools": tools,
}


@pytest.fixture(scope="module")
def client(smollm_gguf: Path) -> Callable[[str], Client]:
    header = open_model(smollm_gguf).header
    assert header is not None
    smol = ChatFormat(templates_from_gguf(header), tokenizer_from_gguf(header))

    @cache
    def of(template: str) -> ChatFormat:
        return smol if template == "SmolLM2" else chat_model(template)[0]

    return lambda template: Client(of(template), TEMPLATES[template])


# SmolLM2's template has no tools.
CASES = [(template, chat) for template in TEMPLATES for chat in CHATS if (template, chat) != ("SmolLM2", "tools")]


@pytest.mark.parametrize(("template", "chat"), CASES)
def test_chats_reuse_what_they_share(client: Callable[[str], Client], template: str, chat: str) -> None:
    for seed in range(3):
        c = client(template)
        c.random.seed(seed)
        CHATS[chat](c)
        for name, (model, least) in MODELS.items():
            snapshots = 20 << 20 if model.snapshots else 0
            bytes_ = (12 << 10,) * len(model.rows)
            found: Outcome = run(c.asks, model, row_bytes=bytes_, snapshot_bytes=snapshots, marked=True)
            assert found.share >= least, (name, seed, found.share)
