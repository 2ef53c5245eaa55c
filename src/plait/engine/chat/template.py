"""One chat template: compiled once, rendered in the sandbox, with every failure as one clear error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes

from plait.engine.chat.sandbox import Environment, LimitExceeded, Meter
from plait.engine.chat.traced import TEMPLATE, Traced
from plait.errors import TokenizerError, UsageError, fault

__all__ = ["ChatTemplate", "Refused"]

# What a request has fields of its own for.
_OWN: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class Refused(UsageError):
    """The template does not take this conversation."""


class ChatTemplate:
    """A compiled template. Instances may be shared between threads."""

    __slots__ = ("_compiled", "_environment", "_special", "_uses", "file", "literals", "text", "variables")

    def __init__(self, text: str, *, special: Mapping[str, str], file: str) -> None:
        """`special`: spelling of special tokens by name. TokenizerError: no template that Jinja reads."""
        self.text = text
        self.file = file
        self._special = {name: Traced(value, TEMPLATE) for name, value in special.items()}
        self._environment = Environment()
        try:
            tree = self._environment.parse(text)
            self.variables = frozenset(meta.find_undeclared_variables(tree)) - _OWN - _set_by(tree)
            """Names a request can set: all that the template reads and does not always set itself."""
            self.literals = frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
            """The strings the template compares with, looks up or writes."""
            self._uses = frozenset(meta.find_undeclared_variables(tree)) & _OWN
            self._compiled = self._environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error.message}"
            raise TokenizerError(fault("chat template", file=file, expected="a Jinja template", found=where)) from None
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, OverflowError, MemoryError) as error:
            raise TokenizerError(
                fault("chat template", file=file, expected="a Jinja template", found=_line(error))
            ) from None

    def reads(self, name: str) -> bool:
        """Whether the template looks at a field of the request: tools, documents, add_generation_prompt."""
        return name in self._uses

    @property
    def settable(self) -> tuple[str, ...]:
        """Variables a request may set, sorted; special tokens and functions of the environment are not among them."""
        return tuple(sorted(self.variables - self._special.keys() - self._environment.globals.keys()))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> Traced:
        """The text of a conversation that is prepared (plain data, texts of messages traced).

        Refused: the template says no, or cannot cope with the conversation; TokenizerError: it uses too much.
        """
        return self.observed(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
            now=now,
        )[0]

    def observed(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> tuple[Traced, bool]:
        """`render`, and whether the template asked for the date."""
        given = {
            **self._special,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        meter = Meter(_size(given), now)
        try:
            return self._environment.metered(self._compiled, given, meter), meter.dated
        except LimitExceeded as error:
            raise TokenizerError(fault("chat template cannot be rendered", file=self.file, found=str(error))) from None
        except jinja2.exceptions.SecurityError as error:
            raise TokenizerError(
                fault("chat template reaches for what it may not use", file=self.file, found=_line(error))
            ) from None
        except jinja2.UndefinedError as error:
            raise Refused(
                fault("chat template cannot render this conversation", file=self.file, found=_line(error))
            ) from None
        except jinja2.TemplateError as error:
            raise Refused(
                fault("chat template refuses this conversation", file=self.file, found=_line(error))
            ) from None
        except MemoryError:
            raise TokenizerError(
                fault("chat template cannot be rendered", file=self.file, found="too much memory")
            ) from None
        except Exception as error:
            # Whatever a template's own expression raised: a wrong type, a missing key, a division by zero.
            found = f"{type(error).__name__}: {_line(error)}"
            raise Refused(fault("chat template cannot render this conversation", file=self.file, found=found)) from None


def _set_by(tree: nodes.Template) -> frozenset[str]:
    """Names the template sets whatever was given: it sets them and nowhere asks whether they are defined."""
    stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"}
    asked = {
        node.node.name
        for node in tree.find_all(nodes.Test)
        if node.name in ("defined", "undefined") and isinstance(node.node, nodes.Name)
    }
    return frozenset(stored - asked)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _size(value: object) -> int:
    """Characters of all texts in plain data."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 0
