"""What a chat template does that users and prefix caches should know: found by rendering, never by its name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

from plait.engine.chat.accepts import CALL_ID, Accepts, attempt, probe_tool, said, tool_call
from plait.engine.chat.encode import Encoder, bare
from plait.engine.chat.marks import common
from plait.engine.chat.template import ChatTemplate
from plait.engine.chat.thinking import markers_of, state_of
from plait.engine.chat.traced import TEMPLATE, Traced, joined
from plait.engine.tokenizer import Tokenizer

__all__ = ["Case", "Lint", "lint"]

Place = Literal["in place", "moved to the front", "moved", "left out", "refused"]
Reasoning = Literal["kept", "left out", "no place"]

_NOW: Final = datetime(2020, 2, 3, 4, 5, 6)
_LATER: Final = datetime(2031, 11, 27, 18, 9, 10)
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Case:
    """Whether one kind of turn is a prefix of the next request.

    text, tokens      the prompt with its answer begins the next prompt; None: the template refuses such a chat, or
                      there is no tokenizer
    shared, of        tokens (without a tokenizer: characters) that the next prompt shares, and of how many
    here, there       how the two go on where they part; empty where they do not
    """

    name: str
    text: bool | None
    tokens: bool | None
    shared: int
    of: int
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class Lint:
    """Findings on one template.

    prefix              the kinds of turns and whether history repeats them as they were
    content, arguments  forms it takes (see `Accepts`);  tools: it describes tools to the model
    tool_results        it takes results of tools
    system, developer   where instructions at the front go;  mid_system: where a system message between turns goes
    default_system      text it writes before the first message although no instruction was given
    generation_prompt   what it ends a prompt with;  state: whether the answer then begins inside a thought
    states              the same for each value of a variable that changes it
    reasoning           what becomes of a thought in history, and while tools are being used
    date                the prompt depends on the day
    variables           what a request can set
    traced              control tokens in messages can be told from the template's own; None: no tokenizer to ask
    """

    file: str
    name: str
    prefix: tuple[Case, ...]
    content: str
    arguments: str
    tools: bool
    tool_results: bool
    system: Place
    developer: Place
    mid_system: Place
    default_system: str
    generation_prompt: str
    state: str
    states: Mapping[str, str]
    reasoning: Reasoning
    reasoning_with_tools: Reasoning
    date: bool
    variables: tuple[str, ...]
    traced: bool | None

    def as_json(self) -> dict[str, Any]:
        """Plain data; the names are those of the fields."""
        return {**asdict(self), "states": dict(self.states)}


def lint(template: ChatTemplate, tokenizer: Tokenizer | None = None, name: str = "default") -> Lint:
    """Render small chats and say what becomes of them. Refused: not even the plainest chat can be rendered."""
    return _Linter(template, tokenizer).run(name)


class _Linter:
    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer | None) -> None:
        self.template = template
        self.accepts = Accepts.of(template)
        self.encoder = Encoder(tokenizer) if tokenizer is not None else None
        self.markers = markers_of(template)
        self.traced = True

    def said(self, role: str, text: str, **fields: object) -> dict[str, Any]:
        content: object = [{"type": "text", "text": text}] if self.accepts.content == "parts" else text
        return said(role, content, **fields)

    def text(self, messages: Sequence[Mapping[str, Any]], **given: Any) -> Traced | None:
        return attempt(self.template, messages, **{"now": _NOW, **given})

    def run(self, name: str) -> Lint:
        plain = [self.said("user", "first question")]
        # Where this fails the reader wants the template's own words.
        first, asks = self.template.observed(plain, now=_NOW)
        self.traced = self.encoder is None or all(t.trusted for t in self.encoder.control_tokens(first))
        later = self.text(plain, now=_LATER)
        ending = self._generation_prompt()
        return Lint(
            file=self.template.file,
            name=name,
            prefix=tuple(self._cases()),
            content=self.accepts.content,
            arguments=self.accepts.arguments,
            tools=self.accepts.tools,
            tool_results=self._tool_results(),
            system=self._front("system"),
            developer=self._front("developer"),
            mid_system=self._mid(),
            default_system=self._default_system(first),
            generation_prompt=ending,
            state=state_of(ending, self.markers),
            states=self._states(),
            reasoning=self._reasoning(tools=False),
            reasoning_with_tools=self._reasoning(tools=True),
            date=asks or first != later or "date_string" in self.template.variables,
            variables=self.template.settable,
            traced=None if self.encoder is None else self.traced,
        )

    def _cases(self) -> list[Case]:
        answer, question = "An answer.", "second question"
        cases: list[Case] = []
        # Where every answer begins inside a thought there is no plain one.
        if state_of(self._generation_prompt(), self.markers) != "open":
            before, message = [self.said("user", "first question")], self.said("assistant", answer)
            cases.append(self._case("plain answer", before, message, answer, self.said("user", question)))
        if self.markers is not None:
            cases.append(self._thinking_case(answer, question))
        if self.accepts.arguments != "none" and self._tool_results():
            arguments: object = {"probe_key": "value"}
            if self.accepts.arguments == "string":
                arguments = json.dumps(arguments)
            call = said("assistant", "", tool_calls=[tool_call(arguments)])
            cases.append(
                self._case(
                    "tool call",
                    [self.said("user", "first question")],
                    call,
                    None,
                    self.said("tool", "result", name="probe_tool", tool_call_id=CALL_ID),
                    tools=[probe_tool()],
                )
            )
        return cases

    def _thinking_case(self, answer: str, question: str) -> Case:
        assert self.markers is not None
        opening, closing = self.markers.opening, self.markers.closing
        before = [self.said("user", "first question")]
        generated = f"a thought\n{closing}\n\n{answer}"
        if state_of(self._generation_prompt(), self.markers) != "open":
            generated = f"{opening}\n{generated}"
        message = self.said("assistant", answer, reasoning_content="a thought", thinking="a thought")
        return self._case("answer with a thought", before, message, generated, self.said("user", question))

    def _case(
        self,
        name: str,
        before: list[dict[str, Any]],
        message: dict[str, Any],
        generated: str | None,
        after: dict[str, Any],
        **given: Any,
    ) -> Case:
        """`generated` is what the model wrote for `message`; None: what the template itself would write for it."""
        prompt, following = self.text(before, **given), self.text([*before, message, after], **given)
        if prompt is None or following is None:
            return Case(name, None, None, 0, 0, "", "")
        # What was generated is markup: the model's control tokens are real ones. An answer may begin with white space.
        begins = ("",) if generated is None else ("", " ", "\n", "\n\n")
        wholes = [joined((prompt, Traced(space + (generated or ""), TEMPLATE))) for space in begins]
        whole = next((text for text in wholes if following.startswith(text)), wholes[0])
        shared, of = common([*map(ord, bare(whole))], [*map(ord, bare(following))]), len(whole)
        here, there = bare(whole)[shared : shared + _SHOWN], bare(following)[shared : shared + _SHOWN]
        in_text, in_tokens = shared == of, None
        if self.encoder is not None:
            if not self.traced:
                whole, following = Traced(whole, TEMPLATE), Traced(following, TEMPLATE)
            one, other = self.encoder.encode(whole), self.encoder.encode(following)
            shared, of = common(one, other), len(one)
            in_tokens = shared == of
        return Case(name, in_text, in_tokens, shared, of, here if not in_text else "", there if not in_text else "")

    def _generation_prompt(self, variables: Mapping[str, Any] | None = None) -> str:
        messages = [self.said("user", "first question")]
        with_it = self.text(messages, variables=variables)
        without = self.text(messages, variables=variables, add_generation_prompt=False)
        if with_it is None or without is None:
            return ""
        one, other = bare(with_it), bare(without)
        return one[common([*map(ord, one)], [*map(ord, other)]) :]

    def _states(self) -> dict[str, str]:
        found: dict[str, str] = {}
        usual = self._generation_prompt()
        for name in self.template.settable:
            for value in (True, False):
                ending = self._generation_prompt({name: value})
                if ending and ending != usual:
                    found[f"{name}={json.dumps(value)}"] = state_of(ending, self.markers)
        return found

    def _tool_results(self) -> bool:
        text = self.text(
            [
                self.said("user", "first question"),
                self._call(),
                self.said("tool", "probe result", name="probe_tool", tool_call_id=CALL_ID),
            ],
            tools=[probe_tool()],
        )
        return text is not None and "probe result" in text

    def _call(self, **fields: object) -> dict[str, Any]:
        arguments: object = {"probe_key": "value"}
        if self.accepts.arguments == "string":
            arguments = json.dumps(arguments)
        calls = {} if self.accepts.arguments == "none" else {"tool_calls": [tool_call(arguments)]}
        return self.said("assistant", "", **calls, **fields)

    def _front(self, role: str) -> Place:
        return self._placed([self.said(role, "instruction"), self.said("user", "first question")], 0, "instruction")

    def _mid(self) -> Place:
        chat = [
            self.said("system", "rules"),
            self.said("user", "first question"),
            self.said("assistant", "An answer."),
            self.said("system", "instruction"),
            self.said("user", "second question"),
        ]
        return self._placed(chat, 3, "instruction")

    def _placed(self, messages: list[dict[str, Any]], number: int, word: str) -> Place:
        text = self.text(messages)
        if text is None:
            return "refused"
        place = bare(text).find(word)
        if place < 0:
            return "left out"
        before = "An answer." if number else None
        after = bare(text).find("second question" if number else "first question")
        if before is not None and place < bare(text).find(before):
            return "moved to the front"
        return "in place" if place < after else "moved"

    def _default_system(self, text: Traced) -> str:
        """Words before the first message: none of a control token, so only what reads as a sentence."""
        place = bare(text).find("first question")
        head = text[: max(place, 0)]
        plain = bare(head)
        if self.encoder is not None:
            for control in reversed(list(self.encoder.control_tokens(head))):
                plain = plain[: control.start] + "\n" + plain[control.stop :]
        sentences = [line.strip() for line in plain.splitlines() if line.strip().count(" ") >= 2]
        return " ".join(sentences)

    def _reasoning(self, *, tools: bool) -> Reasoning:
        """What becomes of a thought: after the next question, or while the results of tools come in."""
        thought = {"reasoning_content": "zebra thought", "thinking": "zebra thought"}
        question = self.said("user", "first question")
        if tools:
            if self.accepts.arguments == "none":
                return "no place"
            chat = [
                question,
                self._call(**thought),
                self.said("tool", "probe result", name="probe_tool", tool_call_id=CALL_ID),
            ]
        else:
            chat = [question, self.said("assistant", "An answer.", **thought), self.said("user", "second question")]
        text = self.text(chat, **({"tools": [probe_tool()]} if tools else {}))
        if text is not None and "zebra thought" in text:
            return "kept"
        last = self.text([question, self.said("assistant", "An answer.", **thought)], add_generation_prompt=False)
        return "left out" if (last is not None and "zebra thought" in last) or self.markers is not None else "no place"
