"""The Jinja environment of chat templates: a sandbox with bounds that traces who wrote what.

It has what `transformers` offers to templates (transformers 5.24, utils/chat_template_utils.py).

Templates come with model files and are not trusted. They reach no attribute that begins with an underscore, change no
list or dict, load nothing, and may use a bounded amount of time and memory.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from time import thread_time
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from plait.engine.chat.traced import TEMPLATE, Traced, joined

__all__ = ["Environment", "LimitExceeded", "Meter"]

_UNITS: Final = 16_000_000  # characters and items made, and steps taken, times a factor
_STEP: Final = 16
_SECONDS: Final = 10.0  # of this thread's own processor time, so a busy machine changes nothing
_WIDTH: Final = 10_000  # the largest number a function may get that pads, repeats or indents
_BITS: Final = 4096
_WIDE: Final = re.compile(r"\d{5,}|%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")
_RESULT: Final = 1 << 23


class LimitExceeded(Exception):
    """A template used more time, steps or memory than it may."""


class Meter:
    """What one rendering may still use, and whether it asked for the date."""

    __slots__ = ("dated", "left", "now", "until")

    def __init__(self, given: int, now: datetime | None) -> None:
        """`given`: characters that go in; the bound grows with them."""
        self.left = _UNITS + 64 * given
        self.until = thread_time() + _SECONDS
        self.now = now
        self.dated = False

    def charge(self, units: int) -> None:
        self.left -= units
        if self.left < 0 or thread_time() > self.until:
            raise LimitExceeded("it takes too many steps, too much text or too long")


class _Here(threading.local):
    """The meter of this thread's rendering."""

    meter: Meter | None = None


class _Generator(CodeGenerator):
    """Literals are traced as the template's own; every block counts as a step; `~` keeps origins."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802  (the name Jinja calls)
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(self._literal(value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self.write(self._literal(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat((")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.step()")
        super().blockvisit(nodes, frame)

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))

    def _literal(self, text: str) -> str:
        environment = self.environment
        assert isinstance(environment, Environment)
        return f"environment.literals[{environment.literal(text)}]"


class _Generation(Extension):
    """`{% generation %}`: marks what a model wrote, for training; for rendering it is its own content."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own way to say it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Names(Namespace):
    """`namespace()` without names that Python gives a meaning."""

    def __init__(*args: Any, **names: Any) -> None:  # the object is args[0], so that `self` can be a name
        given = dict(*args[1:], **names)
        for name in given:
            _Names._check(name)
        Namespace.__init__(args[0], given)

    def __setitem__(self, name: str, value: Any) -> None:
        _Names._check(name)
        Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: object) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold the name {name!r}")


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the type."""

    def __call__(self, *args: Any, **names: Any) -> dict[Any, Any]:
        return dict(*args, **names)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class Environment(ImmutableSandboxedEnvironment):
    """One for each template: it holds the template's literals."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Without the optimizer nothing of the template is computed while it is compiled, so nothing escapes the bounds.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols])
        self._here = _Here()
        self.literals: list[Traced] = []
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}
        self.filters["tojson"] = self._bounded("tojson", _tojson)
        self.filters["join"] = self._bounded("join", self._join)
        self.globals.pop("lipsum", None)
        self.globals["range"] = self._range
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Names
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = self._strftime

    def literal(self, text: str) -> int:
        """The number under which a literal of the template is kept."""
        self.literals.append(Traced(text, TEMPLATE))
        return len(self.literals) - 1

    def metered(self, template: jinja2.Template, variables: dict[str, Any], meter: Meter) -> Traced:
        """Render. Raises what Jinja raises, and LimitExceeded."""
        before = self._here.meter
        self._here.meter = meter
        try:
            parts: list[str] = []
            size = 0
            for part in template.root_render_func(template.new_context(variables)):
                meter.charge(len(part))
                size += len(part)
                parts.append(part)
            return joined(parts)
        finally:
            self._here.meter = before

    def concat(self, parts: Iterable[object]) -> Traced:
        """Joins pieces of output; compiled templates call it, for `~` too."""
        pieces = [part if isinstance(part, str) else str(part) for part in parts]
        self._charge(sum(map(len, pieces)))
        return joined(pieces)

    def step(self) -> None:
        """Called at the beginning of every block: a loop's body, a branch, a macro."""
        self._charge(_STEP)

    def _charge(self, units: int) -> None:
        meter = self._here.meter
        if meter is not None:
            meter.charge(units)

    def _charged(self, value: Any) -> Any:
        if isinstance(value, str | list | tuple | dict | range):
            self._charge(len(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _narrow(left)
        elif operator == "*":
            _bounded_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _bits(left.bit_length() * right)
        return self._charged(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __object: Any, *args: Any, **names: Any) -> Any:  # noqa: N805
        owner = __object.__self__ if hasattr(__object, "__self__") else None
        if isinstance(owner, str):
            _small((*args, *names.values()))
            if __object.__name__ == "replace" and len(args) >= 2 and all(isinstance(a, str) for a in args[:2]):
                _fits(len(owner) + owner.count(args[0]) * len(args[1]))
            elif __object.__name__ == "join" and len(args) == 1:
                args = (args[0] if isinstance(args[0], str) else list(args[0]),)
                _fits(len(args[0]) * len(owner))
        return __self._charged(super().call(__context, __object, *args, **names))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _narrow(value.__self__)
        return wrapped

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose numbers are small and whose result is counted."""
        first = 2 if hasattr(function, "jinja_pass_arg") else 1

        @wraps(function)
        def run(*args: Any, **names: Any) -> Any:
            _small((*args[first:], *names.values()))
            if name == "format":
                _narrow(str(args[0]))
            elif name == "replace" and len(args) == 4:
                text, old, new = map(str, args[1:])
                _fits(len(text) + text.count(old) * len(new))
            return self._charged(function(*args, **names))

        return run

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Traced:
        if attribute is not None:
            values = [self.getitem(value, attribute) for value in values]
        parts: list[object] = []
        for value in values:
            if parts:
                parts.append(d)
            parts.append(value)
        _fits(len(parts) * len(str(d)))
        return joined(parts)

    def _range(self, *args: int) -> range:
        made = range(*args)
        if len(made) > 100_000:
            raise LimitExceeded(f"a range of {len(made)} numbers")
        self._charge(len(made))
        return made

    def _strftime(self, form: str) -> str:
        _narrow(form)
        meter = self._here.meter
        now = None
        if meter is not None:
            meter.dated = True
            now = meter.now
        return (now or datetime.now()).strftime(form)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: characters of HTML and of other scripts are written as they are."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _small(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _WIDTH:
            raise LimitExceeded(f"a number above {_WIDTH} for a function that pads or repeats")


def _narrow(form: str) -> None:
    if _WIDE.search(form):
        raise LimitExceeded("a format that is too wide, or takes its width from a value")


def _fits(size: int) -> None:
    if size > _RESULT:
        raise LimitExceeded(f"a text or list of {size} parts")


def _bits(count: int) -> None:
    if count > _BITS:
        raise LimitExceeded(f"a number of {count} bits")


def _bounded_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _bits(left.bit_length() + right.bit_length())
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            _fits(len(one) * other)
