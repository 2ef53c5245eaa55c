"""The chat itself: lines in, answers out, and the commands that begin with a slash."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from plait.cli.chat import variable
from plait.cli.chat_answer import Answer, Coming
from plait.cli.common import printable
from plait.engine.engine import Engine
from plait.engine.sampling import Sampling
from plait.errors import PlaitError, UsageError, fault
from plait.units import binary_bytes

__all__ = ["COMMANDS", "Chat", "talk"]

_BLOCK: Final = '"""'
COMMANDS: Final = ("help", "system", "set", "retry", "undo", "new", "history", "save", "load", "stats", "exit")
_WITH_TEXT: Final = ("system", "set", "save", "load")
_FORMAT: Final = "plait chat 1"
_HELP: Final = """\
/help                 this list
/system [TEXT]        instructions that go before the chat; without TEXT: none
/set [NAME=VALUE ...] sampling (temperature=0.7 top_p=0.9 seed=1 ...), max_tokens, or a variable of the template
/retry                take the last answer back and give another
/undo                 take the last message and its answer back
/new                  begin a new chat
/history              the chat so far
/save FILE            write the chat as JSON;   /load FILE  read one
/stats                memory, and what was reused
/exit                 leave (or Ctrl-D)
A line that ends in \\ goes on in the next; \"\"\" on a line of its own begins and ends a message of many lines.
Ctrl-C stops the answer. A message that begins with a slash: write two."""


class Chat:
    """A conversation and its settings. Knows nothing of terminals but what `say` and `show` are given."""

    def __init__(
        self,
        engine: Engine,
        *,
        sampling: Sampling,
        max_tokens: int | None,
        stop: tuple[str, ...] = (),
        system: str | None = None,
        template: str | None = None,
        variables: Mapping[str, object] = MappingProxyType({}),
        say: Callable[[str], None] = print,
        show: Callable[[str, bool], None] | None = None,
    ) -> None:
        """`say` writes a line about the chat; `show` writes a piece of an answer and takes whether it is thought.

        UsageError: the model has no chat template, or it does not take the system text or the variables.
        """
        self.engine = engine
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.stop = stop
        self.template = template
        self.variables = dict(variables)
        self.messages: list[dict[str, Any]] = []
        self.say = say
        self.show = show if show is not None else lambda text, thought: None
        self.stoppable = False
        """Ctrl-C stops an answer and not the program."""
        self.last: Answer | None = None
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        # A model without a template, or settings it does not take, are said before the first message is typed.
        self._check()

    def _check(self) -> None:
        probe = [*self.messages[: self._head()], {"role": "user", "content": "hello"}]
        self.engine.chats.encode(probe, template=self.template, variables=self.variables)

    def _head(self) -> int:
        return 1 if self.messages and self.messages[0]["role"] == "system" else 0

    def line(self, text: str) -> bool:
        """Take a message or a command; False: the chat is over. PlaitError: it could not be done, nothing changed."""
        if text.startswith("/") and not text.startswith("//"):
            return self._command(text)
        text = text.removeprefix("/") if text.startswith("//") else text
        if text.strip():
            self._answer([*self.messages, {"role": "user", "content": text}])
        return True

    def _answer(self, messages: list[dict[str, Any]]) -> None:
        coming = Coming(self, messages)
        try:
            coming.show()
        except KeyboardInterrupt:
            # Once more, or a moment after it ended: what was shown is part of the chat all the same.
            self._keep(messages, coming.answer())
            raise
        self._keep(messages, coming.answer())

    def _keep(self, messages: list[dict[str, Any]], answer: Answer) -> None:
        self.last = answer
        if answer.message is not None:
            self.messages = [*messages, answer.message]

    def _command(self, text: str) -> bool:
        word, _, rest = text[1:].strip().partition(" ")
        rest = rest.strip()
        if word == "exit":
            return False
        if word not in COMMANDS:
            raise UsageError(f"no command /{word}; /help lists them, and // begins a message with a slash")
        if rest and word not in _WITH_TEXT:
            raise UsageError(f"/{word} takes nothing more, found {rest!r}")
        done: Callable[[str], None] = self.__getattribute__(f"_{word}")
        done(rest)
        return True

    def _help(self, _: str) -> None:
        self.say(_HELP)

    def _system(self, text: str) -> None:
        rest = self.messages[self._head() :]
        before = self.messages
        self.messages = [{"role": "system", "content": text}, *rest] if text else rest
        try:
            self._check()
        except BaseException:
            self.messages = before
            raise
        self.say("instructions set" if text else "no instructions")

    def _set(self, text: str) -> None:
        if not text:
            named = {f.name: self.sampling.__getattribute__(f.name) for f in fields(self.sampling)}
            settings = {**named, "max_tokens": self.max_tokens, **self.variables}
            self.say("  ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()))
            return
        before = self.sampling, self.max_tokens, dict(self.variables)
        names = {f.name for f in fields(self.sampling)}
        try:
            try:
                words = shlex.split(text)
            except ValueError as error:
                raise UsageError(f"/set: {error}") from None
            for word in words:
                name, value = variable(word)
                if name in names:
                    changed: dict[str, Any] = {name: value}
                    self.sampling = replace(self.sampling, **changed)
                elif name == "max_tokens":
                    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                        raise UsageError(fault("max_tokens", expected="a positive integer, or null", found=value))
                    self.max_tokens = value
                else:
                    self.variables[name] = value
                    self._known(name)
            self._check()
        except BaseException:
            self.sampling, self.max_tokens, self.variables = before
            raise
        self.say("set")

    def _known(self, name: str) -> None:
        template = self.engine.chats.format.template(self.template)
        if name not in template.variables:
            there = ", ".join((*(f.name for f in fields(self.sampling)), "max_tokens", *template.settable))
            raise UsageError(fault(f"setting {name!r}", expected=f"one of {there}", found="another"))

    def _retry(self, _: str) -> None:
        self._answer(self._before(self._last_user() + 1))

    def _undo(self, _: str) -> None:
        self.messages = self._before(self._last_user())
        self.say(f"{len(self.messages) - self._head()} messages left")

    def _before(self, place: int) -> list[dict[str, Any]]:
        return self.messages[:place]

    def _last_user(self) -> int:
        places = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        if not places:
            raise UsageError("there is no message yet")
        return places[-1]

    def _new(self, _: str) -> None:
        self.messages = self.messages[: self._head()]
        self.say("a new chat")

    def _history(self, _: str) -> None:
        for message in self.messages:
            self.say(f"{message['role']}: {_shown(message['content'])}")

    def _save(self, name: str) -> None:
        path = _path("save", name)
        text = json.dumps({"format": _FORMAT, "messages": self.messages}, indent=2, ensure_ascii=False) + "\n"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(fault(f"cannot be written ({error.strerror})", file=path)) from None
        self.say(f"{len(self.messages)} messages in {path}")

    def _load(self, name: str) -> None:
        path = _path("load", name)
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise UsageError(fault(f"cannot be read ({error.strerror})", file=path)) from None
        except (ValueError, RecursionError) as error:
            raise UsageError(fault("JSON", file=path, expected="a saved chat", found=str(error))) from None
        messages = content.get("messages") if isinstance(content, dict) else content
        if not isinstance(messages, list) or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        ):
            raise UsageError(fault("messages", file=path, expected="a list of objects with role and content as text"))
        if messages:
            self.engine.chats.encode(messages, template=self.template, variables=self.variables)
        self.messages = messages
        self.say(f"{len(messages)} messages")

    def _stats(self, _: str) -> None:
        stats = self.engine.stats()
        for name, value in stats.items():
            if isinstance(value, int):
                self.say(f"{name}: {binary_bytes(value) if name.endswith('bytes') else value}")
            elif isinstance(value, Mapping):
                self.say(f"{name}: " + ", ".join(f"{key} {item}" for key, item in value.items()))
        self.say(f"remembered answers: {self.engine.chats.replies.held} tokens")
        if self.last is not None and self.last.closing:
            self.say(self.last.closing)


def _shown(text: str) -> str:
    """Text of several lines that cannot steer a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def _path(command: str, name: str) -> Path:
    if not name:
        raise UsageError(f"/{command} needs a file")
    return Path(name).expanduser()


def _lines(read: Callable[[str], str]) -> Iterator[str]:
    """Messages from lines: a backslash at the end goes on, three quotes begin and end a block."""
    while True:
        try:
            line = read("> ")
            if line.strip() == _BLOCK:
                parts = []
                while (line := read(". ")).strip() != _BLOCK:
                    parts.append(line)
                line = "\n".join(parts)
            else:
                while line.endswith("\\"):
                    line = line[:-1] + "\n" + read(". ")
        except EOFError:
            return
        except KeyboardInterrupt:
            # Ctrl-C at the prompt throws away what was typed.
            print(file=sys.stderr)
            continue
        yield line


def talk(chat: Chat) -> None:
    """Read from the terminal or a pipe until the end."""
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if on_terminal:
        _editing()
        chat.stoppable = True
        chat.say(f"{chat.engine.blueprint.name}; /help lists commands, Ctrl-D leaves")
    else:
        chat.say = _aside
    chat.show = _Shown(on_terminal)
    for line in _lines(input if on_terminal else _read):
        try:
            if not chat.line(line):
                return
        except KeyboardInterrupt:
            # A moment after the answer ended, or again before it stopped: the chat itself is not to be lost.
            if not on_terminal:
                raise
            _aside("")
        except PlaitError as error:
            if not on_terminal:
                raise
            _aside(f"error: {error}")
    if on_terminal:
        print()


def _editing() -> None:
    """Line editing, history with the arrow keys, and commands completed with Tab."""
    import readline

    def complete(text: str, number: int) -> str | None:
        found = [name for name in map("/".__add__, COMMANDS) if name.startswith(text)] if text[:1] == "/" else []
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    readline.set_auto_history(True)


def _read(_: str) -> str:
    raw = sys.stdin.buffer.readline()
    if not raw:
        raise EOFError
    try:
        return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 (byte {error.start} of a line)") from None


def _aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Shown:
    """Answers on standard output; on a terminal thoughts are dim."""

    def __init__(self, on_terminal: bool) -> None:
        self._on_terminal = on_terminal

    def __call__(self, text: str, thought: bool) -> None:
        if self._on_terminal:
            text = _shown(text)
            text = f"\x1b[2m{text}\x1b[22m" if thought and text else text
        sys.stdout.write(text)
        sys.stdout.flush()
