"""What the lint finds in templates of many kinds, and how the command shows it."""

from __future__ import annotations

import json

import pytest
from chat_models import NAMES, TEMPLATES, chat_model, write_chat_model

from plait.cli.main import _status
from plait.engine.chat import ChatTemplate, lint


def found(name):
    ours, _ = chat_model(name)
    return lint(ours.template(), ours.tokenizer)


def cases(result):
    return {case.name: (case.text, case.tokens) for case in result.prefix}


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_answer_is_repeated_as_it_was(name):
    result = found(name)
    if result.state != "open":
        assert cases(result)["plain answer"] == (True, True)


def test_what_becomes_of_thoughts():
    left_out, kept = found("thought_left_out"), found("thought_kept")
    assert (left_out.reasoning, left_out.reasoning_with_tools) == ("left out", "kept")
    assert cases(left_out)["answer with a thought"] == (False, False)
    case = next(case for case in left_out.prefix if case.name == "answer with a thought")
    assert case.here.startswith("<think>") and case.there.startswith("An answer.") and case.shared < case.of
    assert (kept.reasoning, kept.reasoning_with_tools) == ("kept", "kept")
    assert cases(kept)["answer with a thought"] == (True, True)
    assert found("chatml").reasoning == "no place"


def test_how_a_prompt_ends():
    assert (found("thought_kept").generation_prompt, found("thought_kept").state) == (
        "<|assistant|>\n<think>\n",
        "open",
    )
    result = found("thought_left_out")
    assert (result.generation_prompt, result.state) == ("<|im_start|>assistant\n", "none")
    assert result.states == {"enable_thinking=false": "closed"}
    assert found("instruct").generation_prompt == ""


def test_what_templates_take():
    by_name = {name: found(name) for name in NAMES}
    assert {name: result.arguments for name, result in by_name.items()} == {
        "chatml": "none",
        "headers": "none",
        "instruct": "string",
        "pieces": "none",
        "thought_kept": "object",
        "thought_left_out": "both",
        "turns": "none",
        "untraceable": "none",
    }
    assert {name for name, result in by_name.items() if result.tools} == {
        "instruct",
        "thought_kept",
        "thought_left_out",
    }
    assert {name for name, result in by_name.items() if result.content == "both"} == {"thought_kept", "turns"}
    assert {name for name, result in by_name.items() if result.date} == {"headers"}
    assert {name for name, result in by_name.items() if not result.traced} == {"untraceable"}
    assert {name: result.variables for name, result in by_name.items() if result.variables} == {
        "headers": ("date_string",),
        "thought_left_out": ("enable_thinking",),
    }


def test_where_system_messages_go():
    assert found("chatml").system == "in place"
    assert found("chatml").mid_system == "in place"
    assert found("turns").mid_system == "refused"
    assert found("instruct").mid_system == "refused"
    assert found("thought_left_out").developer == "left out"
    one = "{% for m in messages if m.role == 'system' %}{{ m.content }};{% endfor %}"
    front = one + "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}"
    result = lint(ChatTemplate(front, special={}, file="t"))
    assert (result.system, result.mid_system) == ("in place", "moved to the front")
    only_first = (
        "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.content }};{% endif %}{% endfor %}"
    )
    assert lint(ChatTemplate(only_first, special={}, file="t")).mid_system == "left out"
    assert found("chatml").default_system == "You are a small model in a test."
    assert found("thought_left_out").default_system == ""


def test_a_call_that_moves_the_tools_is_told():
    case = next(case for case in found("instruct").prefix if case.name == "tool call")
    assert case.text is False and "AVAILABLE_TOOLS]" in case.here


def test_the_command_prints_json_of_stable_names(tmp_path, capsys):
    directory = write_chat_model(tmp_path / "m", "thought_left_out")
    assert _status(["chat", str(directory), "--lint", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content) == {"model", "tokenizer", "templates", "refused"} and content["tokenizer"] is True
    (result,) = content["templates"]
    places = {"system", "developer", "mid_system", "default_system", "reasoning", "reasoning_with_tools"}
    takes = {"content", "arguments", "tools", "tool_results", "variables", "traced"}
    assert set(result) == places | takes | {"file", "name", "prefix", "generation_prompt", "state", "states", "date"}
    assert set(result["prefix"][0]) == {"name", "text", "tokens", "shared", "of", "here", "there"}


@pytest.mark.parametrize("name", NAMES)
def test_a_template_alone_is_enough(name, capsys):
    assert _status(["chat", str(TEMPLATES / f"{name}.jinja"), "--lint"]) == 0
    out = capsys.readouterr().out
    assert "repeated as it was" in out and "tool arguments" in out and "none, texts are compared" in out


def test_several_templates_are_checked_each(tmp_path, capsys):
    directory = write_chat_model(tmp_path / "m", "chatml")
    (directory / "additional_chat_templates").mkdir()
    more = directory / "additional_chat_templates"
    (more / "rag.jinja").write_text("{{ documents[0].text }}{{ messages[0].content }}")
    (more / "broken.jinja").write_text("{{")
    assert _status(["chat", str(directory), "--lint", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [result["name"] for result in content["templates"]] == ["default"]
    assert set(content["refused"]) == {"rag", "broken"}
    assert _status(["chat", str(directory), "--lint", "--template", "broken"]) == 2
    assert "expected a Jinja template" in capsys.readouterr().err
    assert _status(["chat", str(directory), "--lint", "--template", "nope"]) == 2


def test_a_gguf_is_checked_without_its_weights(smollm_gguf, capsys):
    assert _status(["chat", str(smollm_gguf), "--lint", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["templates"]
    assert result["default_system"] == "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert result["traced"] is True and result["prefix"][0]["tokens"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jinja"], "no such file"),
        (["{}/empty"], "chat template"),
        (["{}/broken.jinja"], "expected a Jinja template"),
        (["{}/broken.json"], "JSON"),
        (["{}/good.jinja", "--set", "a=1"], "takes no --set"),
    ],
)
def test_what_cannot_be_checked_is_one_line(tmp_path, capsys, arguments, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jinja").write_text("{% for")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "good.jinja").write_text("{{ messages[0].content }}")
    assert _status(["chat", "--lint", *(argument.format(tmp_path) for argument in arguments)]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1
