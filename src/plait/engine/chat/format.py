"""A model's chat format: its templates and its tokenizer, from messages to prompt tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from plait.cache import Mark
from plait.engine.chat.accepts import CALL_ID, Accepts, attempt, probe_tool, said, tool_call
from plait.engine.chat.encode import Encoder, bare
from plait.engine.chat.marks import marks_of
from plait.engine.chat.messages import prepared, prepared_objects, prepared_variables
from plait.engine.chat.read import Templates
from plait.engine.chat.replies import Kept, Replies, place_reply
from plait.engine.chat.template import ChatTemplate
from plait.engine.chat.traced import TEMPLATE, Traced, origins_of
from plait.engine.tokenizer import Tokenizer
from plait.errors import PlaitError, UsageError, fault

__all__ = ["ChatFormat", "ChatPrompt", "Rendering"]

_BEGINNING: Final = 24  # characters by which a rewritten text is found


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered chat.

    text    as the template wrote it
    tokens  its ids; those of remembered answers are the ones that were generated
    marks   positions that later requests will share: `system` and `turn`
    kept    how many of the tokens are generated ids of remembered answers
    """

    text: str
    tokens: tuple[int, ...]
    marks: tuple[Mark, ...]
    kept: int


@dataclass(frozen=True, slots=True)
class Rendering:
    """A checked request, which can be rendered with other messages."""

    template: ChatTemplate
    messages: tuple[Mapping[str, Any], ...]
    tools: list[Any] | None
    documents: list[Any] | None
    variables: Mapping[str, Any]
    now: datetime

    def text(self, messages: Sequence[Mapping[str, Any]] | None = None, *, answer: bool = True) -> Traced:
        """The text of `messages` (default: the request's own); `answer` ends it with the generation prompt."""
        return self.template.render(
            self.messages if messages is None else messages,
            tools=self.tools,
            documents=self.documents,
            add_generation_prompt=answer,
            variables=self.variables,
            now=self.now,
        )


class ChatFormat:
    """Templates and tokenizer of one model. May be shared between threads."""

    def __init__(self, templates: Templates, tokenizer: Tokenizer) -> None:
        self.templates = templates
        self.tokenizer = tokenizer
        self.encoder = Encoder(tokenizer)
        self._lock = threading.Lock()
        self._made: dict[str, tuple[ChatTemplate, Accepts, bool]] = {}

    def template(self, name: str | None = None, *, tools: bool = False) -> ChatTemplate:
        """The template of that name, or the one for a request with or without tools."""
        return self._of(self.templates.choose(name, tools))[0]

    def accepts(self, name: str | None = None, *, tools: bool = False) -> Accepts:
        """What that template takes."""
        return self._of(self.templates.choose(name, tools))[1]

    def _of(self, name: str) -> tuple[ChatTemplate, Accepts, bool]:
        with self._lock:
            if name not in self._made:
                texts = self.templates
                where = texts.file if name == "default" else f"{texts.file} ({name})"
                template = ChatTemplate(texts.texts[name], special=texts.special, file=where)
                self._made[name] = template, Accepts.of(template), self._opaque(template)
            return self._made[name]

    def _opaque(self, template: ChatTemplate) -> bool:
        """Whether the template builds control tokens in a way that loses track of who wrote them."""
        question, thought = said("user", "hello"), {"reasoning_content": "hm", "thinking": "hm"}
        arguments: tuple[object, ...] = ({"a": "b"}, '{"a": "b"}')
        calls = [said("assistant", "", tool_calls=[tool_call(value)], **thought) for value in arguments]
        result = said("tool", "found", name="probe_tool", tool_call_id=CALL_ID)
        chats = [
            [question],
            [said("system", "rules"), question],
            [question, said("assistant", "An answer.", **thought), question],
            *([question, call, result] for call in calls),
        ]
        texts = (attempt(template, chat, tools=tools) for chat in chats for tools in (None, [probe_tool()]))
        return any(not t.trusted for text in texts if text is not None for t in self.encoder.control_tokens(text))

    def request(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        template: str | None,
        variables: Mapping[str, object] | None,
    ) -> Rendering:
        """Check a request. UsageError names what cannot be used."""
        chosen, accepts, _ = self._of(self.templates.choose(template, bool(tools)))
        return Rendering(
            chosen,
            tuple(prepared(messages, chosen, accepts)),
            prepared_objects(tools, "tools", chosen),
            prepared_objects(documents, "documents", chosen),
            prepared_variables(variables or {}, chosen),
            datetime.now(),
        )

    def rendered(self, request: Rendering, *, answer: bool = True) -> Traced:
        """The text of a request. UsageError: the template refuses it, or leaves a message out."""
        text = request.text(answer=answer)
        if any(made[2] for made in self._made.values() if made[0] is request.template):
            text = self._taken_whole(text, request)
        _nothing_dropped(text, request)
        return text

    def _taken_whole(self, text: Traced, request: Rendering) -> Traced:
        """Where control tokens cannot be traced: all is markup, if nothing that was given could be read as such."""
        for what, value in (
            *((f"message {i}", m) for i, m in enumerate(request.messages)),
            ("tools", request.tools),
            ("documents", request.documents),
            ("variables", request.variables),
        ):
            given = _characters(value)
            last = given.rstrip()[-1:]
            found = [begin for begin in sorted(self.encoder.beginnings) if begin in given or begin[0] == last]
            if found:
                expected = "nothing that begins like a control token, since this chat template hides who wrote what"
                raise UsageError(fault(what, file=request.template.file, expected=expected, found=repr(found[0])))
        return Traced(text, TEMPLATE)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        replies: Replies | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a chat; see `prompt`, which also finds marks."""
        request = self.request(messages, tools=tools, documents=documents, template=template, variables=variables)
        text = self.rendered(request, answer=add_generation_prompt)
        return tuple(self.encoder.encode(text, self._kept(text, messages, request, replies)))

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        replies: Replies | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> ChatPrompt:
        """The prompt for the next answer of a chat.

        messages   objects with `role`, `content` (text or text parts), and where they apply `tool_calls`,
                   `tool_call_id`, `name`, `reasoning_content`
        tools      JSON schemas of functions;  documents: objects with title and text
        template   name of one of the model's templates; None: `tool_use` with tools if there is one, else `default`
        replies    answers generated earlier; where the text is the same their ids are kept
        variables  what else the template reads, such as `enable_thinking`

        Only what the template itself writes becomes control tokens; their spelling in a message stays text.
        """
        request = self.request(messages, tools=tools, documents=documents, template=template, variables=variables)
        text = self.rendered(request)
        kept = self._kept(text, messages, request, replies)
        tokens = tuple(self.encoder.encode(text, kept))

        def encoded(other: Traced) -> list[int]:
            return self.encoder.encode(other, self._kept(other, messages, request, replies))

        marks = marks_of(request, tokens, encoded)
        return ChatPrompt(bare(text), tokens, marks, sum(len(part.tokens) for part in kept))

    @staticmethod
    def _kept(
        text: Traced, messages: Sequence[Mapping[str, Any]], request: Rendering, replies: Replies | None
    ) -> list[Kept]:
        """Stretches of the text that are remembered answers, in order."""
        kept: list[Kept] = []
        for place, found in (replies.recall(messages) if replies is not None else {}).items():

            def before(place: int = place) -> str | None:
                try:
                    return request.text(request.messages[:place]) if place else None
                except PlaitError:
                    return None

            floor = kept[-1].stop if kept else 0
            best = None
            for reply in found:
                part = place_reply(text, place, reply, floor, before)
                if part is not None and (best is None or part.stop - part.start > best.stop - best.start):
                    best = part
            if best is not None:
                kept.append(best)
        return kept


def _characters(value: object) -> str:
    """All texts in plain data but the names of roles, keys included."""
    if isinstance(value, str):
        return "" if isinstance(value, Traced) and set(origins_of(value)) == {TEMPLATE} else value
    if isinstance(value, Mapping):
        return "".join(_characters(key) + _characters(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return "".join(map(_characters, value))
    return ""


def _nothing_dropped(text: Traced, request: Rendering) -> None:
    """UsageError: a message whose content the template leaves out without a word."""
    there = set(origins_of(text))
    for place, message in enumerate(request.messages):
        content = message.get("content")
        said = content if isinstance(content, str) else _characters(content)
        # An assistant's earlier words may be left out; a text that was rewritten is looked for by its beginning.
        if place in there or message["role"] == "assistant" or not said.strip():
            continue
        begins = said.strip()[:_BEGINNING]
        if begins in text or json.dumps(begins, ensure_ascii=False)[1:-1] in text:
            continue
        raise UsageError(
            fault(
                f"message {place} (role {message['role']!s})",
                file=request.template.file,
                expected="a message that the chat template writes",
                found="one that it leaves out",
                advice="give its content another role",
            )
        )
