"""Templates: where they are found, what they may do, and what they say no to."""

from __future__ import annotations

import json
from datetime import datetime
from types import SimpleNamespace

import pytest
from chat_models import TOOL, assistant, call, chat_model, system, user, write_chat_model
from hypothesis import given
from hypothesis import strategies as st

from plait.engine.chat import ChatFormat, ChatTemplate, read_templates, templates_from_gguf
from plait.engine.chat.accepts import Accepts, said
from plait.engine.chat.traced import TEMPLATE, UNKNOWN, Traced, joined, origins_of
from plait.engine.tokenizer import load_tokenizer
from plait.errors import PlaitError, TokenizerError, UnsupportedError, UsageError


def made(text, **special):
    return ChatTemplate(text, special=special, file="t.jinja")


def rendered(text, *messages, **given):
    return str.replace(made(text).render(messages or [said("user", "hi")], **given), "", "")


# Files


def test_one_template_or_several_by_name(tmp_path):
    config = {"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B{{ tools }}"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": {"content": "<s>"}}))
    found = read_templates(tmp_path)
    assert dict(found.texts) == {"default": "A", "tool_use": "B{{ tools }}"}
    assert dict(found.special) == {"bos_token": "<s>"}
    assert found.choose(None, tools=True) == "tool_use" and found.choose(None, tools=False) == "default"
    with pytest.raises(UsageError, match="chat template 'rag'.*default, tool_use"):
        found.choose("rag", tools=False)
    assert read_templates(tmp_path / "tokenizer_config.json").texts == found.texts


def test_files_of_their_own_go_first(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "key", "eos_token": "</s>"}))
    assert read_templates(tmp_path).texts["default"] == "key"
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("more")
    assert dict(read_templates(tmp_path).texts) == {"default": "file", "rag": "more"}
    alone = read_templates(tmp_path / "chat_template.jinja")
    assert dict(alone.texts) == {"default": "file"} and alone.special["eos_token"] == "</s>"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert read_templates(tmp_path / "chat_template.json").texts["default"] == "json"


def test_a_gguf_holds_them_in_its_metadata(tmp_path):
    metadata = {
        "tokenizer.chat_template": "A",
        "tokenizer.chat_template.tool_use": "B",
        "tokenizer.ggml.tokens": ("<s>", "</s>", "x"),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 99,
    }
    found = templates_from_gguf(SimpleNamespace(path=tmp_path / "m.gguf", metadata=metadata))
    assert dict(found.texts) == {"default": "A", "tool_use": "B"}
    assert dict(found.special) == {"bos_token": "<s>", "eos_token": "</s>"}
    with pytest.raises(TokenizerError, match="tokenizer.chat_template: expected a string"):
        templates_from_gguf(SimpleNamespace(path=tmp_path / "m.gguf", metadata={"tokenizer.chat_template": 3}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "JSON"),
        (b"[]", "JSON object"),
        (b'{"chat_template": 3}', "Jinja text"),
        (b'{"chat_template": [{"name": 1}]}', "Jinja text"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_broken_files_are_errors_naming_them(tmp_path, content, words):
    file = tmp_path / "tokenizer_config.json"
    file.write_bytes(content)
    for path in (file, tmp_path):
        with pytest.raises(TokenizerError, match=words) as error:
            read_templates(path)
        assert str(file) in str(error.value) and "\n" not in str(error.value)


# What templates may use


def test_they_have_what_transformers_offers():
    assert rendered("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert rendered("{{ [1, 2] | tojson(indent=1, separators=(',', ':')) }}") == "[\n 1,\n 2\n]"
    assert rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert rendered("  {% if true %}\nx\n  {% endif %}\n") == "x\n"
    assert rendered("{% generation %}a{{ 1 }}{% endgeneration %}") == "a1"
    assert rendered("{{ strftime_now('%Y-%m-%d') }}", now=datetime(2024, 2, 29)) == "2024-02-29"
    assert rendered("{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ dict(a=3).a }}") == "23"
    assert rendered("{{ dict.fromkeys(['a'], 1) }}") == "{'a': 1}"
    assert (
        rendered("{{ 'a b'.split()[1] ~ 'x'|upper ~ ('%s' % 3) ~ '{}'.format(4) ~ ['p', 'q']|join('-') }}") == "bX34p-q"
    )
    with pytest.raises(UsageError, match="refuses this conversation.*not like this"):
        rendered("{{ raise_exception('not like\nthis') }}")


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ range(10 ** 9) | list }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s.replace('a', n.s) %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s | replace('a', n.s) %}{% endfor %}",
        "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s.join(n.s) %}{% endfor %}",
        "{% set n = namespace(i=3) %}{% for i in range(99) %}{% set n.i = n.i * n.i %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'a' | indent(10 ** 9) }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ strftime_now('%999999999d') }}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_what_takes_too_much_is_an_error(text):
    with pytest.raises(PlaitError, match="t.jinja: chat template cannot") as error:
        rendered(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ messages[0].content.__class__.__bases__ }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ strftime_now.__self__._here }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ messages[0].content | attr('__class__') | attr('__mro__') }}",
    ],
)
def test_nothing_outside_is_reached(text):
    try:
        out = rendered(text)
    except PlaitError as error:
        assert "\n" not in str(error)
    else:
        assert "class" not in out and "module" not in out


@pytest.mark.parametrize(
    "text",
    ["{% for", "{{ x", "{% nonsense %}", "{{ 1 | nofilter }}", "{{ x is notest }}", "{{ 'a' 'b' + }}"],
)
def test_what_is_no_template_is_an_error_naming_the_file(text):
    with pytest.raises(TokenizerError, match="t.jinja: chat template: expected a Jinja template, found"):
        made(text)


@pytest.mark.parametrize(
    "text",
    ["{{ 1 / 0 }}", "{{ nothing.more }}", "{{ 'a' + 1 }}", "{{ messages[0]['content'] + none }}", "{{ none() }}"],
)
def test_what_an_expression_raises_is_one_error(text):
    with pytest.raises(UsageError, match="t.jinja: chat template cannot render this conversation"):
        rendered(text)


@given(st.text(alphabet="{}%|'\"[]()~+-*. \nabmessagesforinifendset0", max_size=60))
def test_any_text_as_a_template_ends_well(text):
    try:
        assert isinstance(rendered(text), str)
    except PlaitError as error:
        assert "\n" not in str(error)


# Origins


CUTS = (
    lambda t: t.strip(),
    lambda t: t.lstrip("a"),
    lambda t: t.rstrip("b "),
    lambda t: t[1:-1],
    lambda t: t[::2],
    lambda t: joined(t.split("a")),
    lambda t: joined(t.split()),
    lambda t: joined(t.rsplit("b", 1)),
    lambda t: joined(t.rsplit(None, 1)),
    lambda t: joined(t.splitlines()),
    lambda t: joined(t.splitlines(True)),
    lambda t: joined(t.partition("b")),
    lambda t: joined(t.rpartition("b")),
    lambda t: joined(list(t)),
    lambda t: t.removeprefix("a").removesuffix("b"),
    lambda t: t.replace("a", ""),
    lambda t: t * 2,
    lambda t: t + t,
    lambda t: t.upper(),
)


@given(text=st.text("ab \n\r\u2028ß", max_size=20), which=st.integers(0, len(CUTS) - 1))
def test_every_operation_gives_the_plain_result_and_each_character_its_origin(text, which):
    traced = Traced(text, origins_of(Traced("x" * len(text))))
    traced._origins[:] = type(traced._origins)("i", range(len(text)))
    cut, plain = CUTS[which], CUTS[which](text)
    result = cut(traced)
    assert result == plain
    for place, origin in enumerate(origins_of(result)):
        if origin != UNKNOWN:
            assert str.upper(text[origin]) == str.upper(str.__getitem__(result, place))
    if which != len(CUTS) - 1:
        assert UNKNOWN not in origins_of(result)


def test_what_is_put_in_keeps_its_own_origin():
    text = Traced("a-b", 3).replace("-", Traced("<>", TEMPLATE))
    assert (text, list(origins_of(text))) == ("a<>b", [3, TEMPLATE, TEMPLATE, 3])
    text = "x" + Traced("y", 1) + "z"
    assert list(origins_of(text)) == [UNKNOWN, 1, UNKNOWN]
    assert hash(Traced("abc", 1)) == hash("abc") and {"abc": 1}[Traced("abc", 1)] == 1


# Requests


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ("hi", "messages: expected a list"),
        ({"role": "user"}, "messages: expected a list"),
        (["hi"], "message 0: expected an object"),
        ([{"content": "x"}], "message 0: role"),
        ([{"role": 3, "content": "x"}], "message 0: role"),
        ([user("x"), {"role": "user", "content": 3}], "message 1: content"),
        ([{"role": "user", "content": b"x"}], "message 0.content"),
        ([{"role": "user", "content": "x", "extra": object()}], "message 0.extra: expected JSON data"),
        ([{"role": "user", "content": "x", 3: 4}], "message 0: key"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"message 0: content\[0\].text"),
        ([user("x"), assistant("", tool_calls=[call("{}")])], "message 1: tool_calls"),
        ([user("x"), assistant("", tool_calls="f")], "message 1: tool_calls: expected a list"),
    ],
)
def test_what_is_no_chat_is_an_error_naming_the_message(messages, words):
    ours, _ = chat_model("chatml")
    with pytest.raises(UsageError, match=words):
        ours.encode(messages)


def test_pictures_are_refused():
    ours, _ = chat_model("thought_kept")
    with pytest.raises(UnsupportedError, match="type image_url"):
        ours.encode([user([{"type": "image_url", "image_url": {"url": "x"}}])])


def test_fields_that_are_null_are_fields_that_are_not_there():
    ours, _ = chat_model("thought_left_out")
    chat = [
        user("x"),
        {"role": "assistant", "content": None, "tool_calls": [call({"a": 1})], "reasoning_content": None},
    ]
    assert "None" not in ours.prompt([*chat, {"role": "tool", "content": "r"}]).text


def test_arguments_as_text_and_as_an_object():
    ours, _ = chat_model("thought_kept")  # reads items of an object
    chat = [user("x"), assistant("", tool_calls=[call({"word": "x"})]), {"role": "tool", "content": "r"}]
    as_text = [chat[0], assistant("", tool_calls=[call('{"word": "x"}')]), chat[2]]
    assert ours.encode(chat) == ours.encode(as_text)
    for broken in ('{"word": ', "[1]", "3", "{" * 100_000):
        with pytest.raises(
            UsageError, match=r"message 1: tool_calls\[0\].arguments: expected the text of a JSON object"
        ):
            ours.encode([chat[0], assistant("", tool_calls=[call(broken)]), chat[2]])
    strings, _ = chat_model("instruct")  # adds to a text
    chat = [user("x"), assistant("", tool_calls=[call({"word": "é"})]), {"role": "tool", "content": "r"}]
    as_text = [chat[0], assistant("", tool_calls=[call('{"word": "é"}')]), chat[2]]
    assert strings.encode(chat) == strings.encode(as_text)
    both, _ = chat_model("thought_left_out")
    odd = '{"word":"x",   "n":1}'
    assert odd in both.prompt([user("x"), assistant("", tool_calls=[call(odd)]), {"role": "tool", "content": "r"}]).text


def test_what_would_be_left_out_is_refused():
    chatml, _ = chat_model("chatml")
    with pytest.raises(UsageError, match="tools.*no place"):
        chatml.encode([user("x")], tools=[TOOL])
    with pytest.raises(UsageError, match="documents.*no place"):
        chatml.encode([user("x")], documents=[{"title": "a", "text": "b"}])
    with pytest.raises(UsageError, match="variable 'enable_thinking'"):
        chatml.encode([user("x")], variables={"enable_thinking": True})
    thinking, _ = chat_model("thought_left_out")
    with pytest.raises(UsageError, match=r"message 1 \(role developer\).*leaves out"):
        thinking.encode([user("x"), {"role": "developer", "content": "be short"}])
    with pytest.raises(UsageError, match="must alternate"):
        chat_model("turns")[0].encode([user("a"), user("b")])
    with pytest.raises(UsageError, match="no place for the role system"):
        chat_model("instruct")[0].encode([user("a"), system("b")])


def test_parts_are_joined_where_a_template_takes_text():
    ours, _ = chat_model("chatml")
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert ours.encode([user(parts)]) == ours.encode([user("one two")])


def test_text_becomes_a_part_where_a_template_takes_parts(tmp_path):
    inner = "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }};{% endif %}{% endfor %}"
    text = "{% for m in messages %}" + inner + "{% endfor %}"
    directory = write_chat_model(tmp_path, "chatml", text=text)
    ours = ChatFormat(read_templates(directory), load_tokenizer(directory))
    assert Accepts.of(ours.template()).content == "parts"
    assert ours.prompt([user("hi")]).text == "hi;"


def test_a_model_without_a_template_says_so(tmp_path):
    directory = write_chat_model(tmp_path, "chatml")
    (directory / "chat_template.jinja").unlink()
    ours = ChatFormat(read_templates(directory), load_tokenizer(directory))
    with pytest.raises(UsageError, match="not made for chats"):
        ours.encode([user("x")])


def test_tools_choose_their_own_template(tmp_path):
    directory = write_chat_model(tmp_path, "chatml")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text(
        "T{{ tools[0].function.name }}{{ messages[0].content }}"
    )
    ours = ChatFormat(read_templates(directory), load_tokenizer(directory))
    assert ours.prompt([user("x")], tools=[TOOL]).text == "Tlook_upx"
    assert ours.prompt([user("x")]).text.startswith("<|im_start|>")
    assert ours.prompt([user("x")], template="tool_use", tools=[TOOL]).text == "Tlook_upx"
