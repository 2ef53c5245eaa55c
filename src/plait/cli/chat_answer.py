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

__all__ = ["Answer", "show_answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """message  what goes into the history; None: not one token came;  closing: speed and reuse, one line"""

    message: dict[str, Any] | None
    closing: str


def show_answer(chat: Chat, messages: list[dict[str, Any]]) -> Answer:
    """Generate the answer to `messages` and show it as it comes. Ctrl-C ends it, what came stays."""
    form = chat.engine.chats.format
    request = form.request(messages, tools=None, documents=None, template=chat.template, variables=chat.variables)
    markers = markers_of(request.template)
    state = state_of(generation_prompt(request), markers)
    thoughts = Thoughts(form.tokenizer, markers, state)
    options: Options = {"sampling": chat.sampling, "max_tokens": chat.max_tokens, "stop": chat.stop}
    asked = chat.engine.chats.request(messages, options, template=chat.template, variables=chat.variables)
    ticket = chat.engine.take(asked, stepwise=True)
    tokens: list[int] = []
    results: list[Result] = []

    def read() -> None:
        for event in ticket:
            if isinstance(event, Token):
                tokens.append(event.id)
                thoughts.push(event.id)
                chat.show(event.text, thoughts.inside)
            elif isinstance(event, Tail):
                chat.show(event.text, thoughts.inside)
            elif isinstance(event, Result):
                results.append(event)

    try:
        read()
    except KeyboardInterrupt:
        if not chat.stoppable:
            raise
        read()  # what was under way
    finally:
        ticket.close()
        chat.show("\n", False)
    result = results[0] if results else None
    whole = result is not None and result.finish_reason != "cancelled"
    closing = closing_line(result) if result is not None and whole else f"stopped after {len(tokens)} tokens"
    chat.say(f"[{closing}]")
    if not tokens:
        return Answer(None, closing)
    thought, speech = spoken(tokens, form.tokenizer, markers, state)
    if result is not None and result.stop is not None:
        # The tokens go on to the end of the stop string, the answer does not.
        thought, speech = (text.partition(result.stop)[0] for text in (thought, speech))
    message: dict[str, Any] = {"role": "assistant", "content": speech}
    if thought:
        message["reasoning_content"] = thought
    return Answer(message, closing)
