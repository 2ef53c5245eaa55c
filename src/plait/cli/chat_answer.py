"""One answer of a chat: streamed, stopped by Ctrl-C, and kept as a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plait.cli.generate import closing_line
from plait.engine.chat.thinking import Thoughts, generation_prompt, markers_of, spoken, state_of
from plait.engine.events import Result, Tail, Token

if TYPE_CHECKING:
    from plait.cli.chat_repl import Chat
    from plait.engine.request import Options

__all__ = ["Answer", "Coming"]


@dataclass(frozen=True, slots=True)
class Answer:
    """message  what goes into the history; None: not one token came;  closing: speed and reuse, one line"""

    message: dict[str, Any] | None
    closing: str


class Coming:
    """The answer to `messages`, on its way. However it ends, what came is `answer()`."""

    def __init__(self, chat: Chat, messages: list[dict[str, Any]]) -> None:
        self._chat = chat
        self._form = form = chat.engine.chats.format
        request = form.request(messages, tools=None, documents=None, template=chat.template, variables=chat.variables)
        self._markers = markers_of(request.template)
        self._state = state_of(generation_prompt(request), self._markers)
        self._thoughts = Thoughts(form.tokenizer, self._markers, self._state)
        options: Options = {"sampling": chat.sampling, "max_tokens": chat.max_tokens, "stop": chat.stop}
        asked = chat.engine.chats.request(messages, options, template=chat.template, variables=chat.variables)
        self._ticket = chat.engine.take(asked, stepwise=True)
        self._tokens: list[int] = []
        self._result: Result | None = None

    def show(self) -> None:
        """Show it as it comes. Ctrl-C ends it where the chat is `stoppable`, else is raised."""
        try:
            self._read()
        except KeyboardInterrupt:
            if not self._chat.stoppable:
                raise
            self._read()  # what was under way
        finally:
            self._ticket.close()
            self._chat.show("\n", False)
        self._chat.say(f"[{self.answer().closing}]")

    def _read(self) -> None:
        for event in self._ticket:
            if isinstance(event, Token):
                self._tokens.append(event.id)
                self._thoughts.push(event.id)
                self._chat.show(event.text, self._thoughts.inside)
            elif isinstance(event, Tail):
                self._chat.show(event.text, self._thoughts.inside)
            elif isinstance(event, Result):
                self._result = event

    def answer(self) -> Answer:
        """What came so far."""
        result, tokens = self._result, self._tokens
        whole = result is not None and result.finish_reason != "cancelled"
        closing = closing_line(result) if result is not None and whole else f"stopped after {len(tokens)} tokens"
        if not tokens:
            return Answer(None, closing)
        thought, speech = spoken(tokens, self._form.tokenizer, self._markers, self._state)
        if result is not None and result.stop is not None:
            # The tokens go on to the end of the stop string, the answer does not.
            thought, speech = (text.partition(result.stop)[0] for text in (thought, speech))
        message: dict[str, Any] = {"role": "assistant", "content": speech}
        if thought:
            message["reasoning_content"] = thought
        return Answer(message, closing)
