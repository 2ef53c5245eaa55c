"""`plait chat --lint`: findings on a model's chat templates, as tables or JSON."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import click

from plait.cli.chat_model import ChatFiles, open_chat_files
from plait.cli.common import print_json, print_table
from plait.engine.chat import ChatTemplate, Lint, lint
from plait.engine.chat.lint import Case
from plait.engine.chat.read import SPECIAL_TOKENS
from plait.errors import UsageError, UserError, fault

__all__ = ["print_lint"]


def print_lint(model: str, template: str | None, *, as_json: bool) -> None:
    """Check every template of MODEL, or the one named. UsageError: there is none of that name."""
    files = open_chat_files(model)
    texts = files.templates.texts
    if template is not None and template not in texts:
        there = ", ".join(texts)
        raise UsageError(fault(f"chat template {template!r}", file=files.templates.file, expected=there, found="none"))
    chosen = [template] if template is not None else list(texts)
    found: dict[str, Lint] = {}
    refused: dict[str, str] = {}
    for name in chosen:
        try:
            made = ChatTemplate(texts[name], special=_special(files), file=files.templates.file)
            found[name] = lint(made, files.tokenizer, name)
        except UserError as error:
            # One template of several may be for other chats than the plainest.
            if len(chosen) == 1:
                raise
            refused[name] = str(error)
    if as_json:
        print_json(
            {
                "model": model,
                "tokenizer": files.tokenizer is not None,
                "templates": [result.as_json() for result in found.values()],
                "refused": refused,
            }
        )
        return
    for place, result in enumerate(found.values()):
        if place:
            click.echo()
        _print(result, files)
    for name, reason in refused.items():
        click.echo(f"\ntemplate {name}: {reason}")


def _special(files: ChatFiles) -> dict[str, str]:
    """The model's special tokens; a template alone gets names in their place, so that it can be rendered."""
    stand_in = {name: f"<{name}>" for name in SPECIAL_TOKENS} if files.tokenizer is None else {}
    return {**stand_in, **files.templates.special}


def _print(result: Lint, files: ChatFiles) -> None:
    rows = [("template", f"{result.name} of {result.file}")]
    if files.tokenizer is None:
        rows.append(("tokenizer", f"none, texts are compared instead of tokens: {files.without}"))
    ending = repr(result.generation_prompt) if result.generation_prompt else "nothing"
    rows += [
        ("message content", _CONTENT[result.content]),
        ("tools", "described to the model" if result.tools else "no place for them"),
        ("tool arguments", _ARGUMENTS[result.arguments]),
        ("tool results", "taken" if result.tool_results else "not taken"),
        ("system message", result.system),
        ("developer message", result.developer),
        ("system message between turns", result.mid_system),
        ("system text of its own", repr(result.default_system) if result.default_system else "none"),
        ("thoughts in history", result.reasoning),
        ("thoughts while tools are used", result.reasoning_with_tools),
        ("prompt ends with", ending),
        ("answer begins", _STATES[result.state]),
        *((f"  with {name}", _STATES[state]) for name, state in result.states.items()),
        ("depends on the day", "yes: after midnight nothing computed is reused" if result.date else "no"),
        ("variables", ", ".join(result.variables) or "none"),
        ("control tokens in messages", _TRACED[result.traced]),
    ]  # fmt: skip
    print_table(rows)
    click.echo()
    unit = "characters" if files.tokenizer is None else "tokens"
    header = ("turn", "repeated as it was", f"shared {unit}", "then", "becomes")
    print_table([_case(case) for case in result.prefix], header=header, right=(2,))


def _case(case: Case) -> tuple[str, ...]:
    same = case.text if case.tokens is None else case.text and case.tokens
    if case.text is None:
        return (case.name, "refused", "", "", "")
    said = "yes" if same else "no" if not case.text else "in text, not in tokens"
    return (
        case.name,
        said,
        f"{case.shared:,} of {case.of:,}",
        repr(case.here) if case.here else "",
        repr(case.there) if case.there else "",
    )


_ARGUMENTS: Final = MappingProxyType(
    {
        "both": "JSON text, or an object",
        "string": "JSON text (objects are written as text)",
        "object": "an object (JSON text is parsed)",
        "none": "no place for tool calls",
    }
)
_STATES: Final = MappingProxyType(
    {
        "open": "inside a thought",
        "closed": "after an empty thought",
        "none": "with speech, or with a thought that the model opens",
    }
)
_TRACED: Final = MappingProxyType(
    {
        True: "stay text",
        False: "cannot be told from the template's own; messages that begin to spell one are refused",
        None: "not checked: that takes a tokenizer",
    }
)
_CONTENT: Final = MappingProxyType(
    {"both": "text, or a list of parts", "parts": "a list of parts", "string": "text (parts are joined)"}
)
