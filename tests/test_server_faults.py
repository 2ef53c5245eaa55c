"""What the HTTP server refuses, and how it says so."""

from __future__ import annotations

import json

import pytest
from chat_models import user
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import CHAT, MESSAGES, NAME, PROMPT, TEXT, events, refused, served, write_server_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_server_model(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def client(model):
    with served(model, places=(str(model),)) as (client, _):
        yield client


@pytest.mark.parametrize(
    ("param", "code", "fields"),
    [
        ("promt", "unknown_parameter", {"promt": "x"}),
        ("temprature", "unknown_parameter", {"temprature": 0}),
        ("suffix", "unsupported_parameter", {"suffix": "."}),
        ("user", "unsupported_parameter", {"user": "me"}),
        ("logit_bias", "invalid_value", {"logit_bias": {"5": -100}}),
        ("best_of", "invalid_value", {"best_of": 3}),
        ("n", "invalid_value", {"n": 0}),
        ("n", "invalid_value", {"n": 17}),
        ("max_tokens", "invalid_value", {"max_tokens": 0}),
        ("max_tokens", "invalid_value", {"max_tokens": "5"}),
        ("temperature", "invalid_value", {"temperature": -0.1}),
        ("temperature", "invalid_value", {"temperature": 2.5}),
        ("top_p", "invalid_value", {"top_p": 1.01}),
        ("min_p", "invalid_value", {"min_p": -1}),
        ("top_k", "invalid_value", {"top_k": 1.5}),
        ("seed", "invalid_value", {"seed": 2**64}),
        ("seed", "invalid_value", {"seed": True}),
        ("presence_penalty", "invalid_value", {"presence_penalty": 3}),
        ("repetition_penalty", "invalid_value", {"repetition_penalty": 0}),
        ("repetition_penalty", "invalid_value", {"repetition_penalty": 2.2e-313}),
        ("logprobs", "invalid_value", {"logprobs": 21}),
        ("echo", "unsupported_parameter", {"echo": True, "logprobs": 0}),
        ("stop", "invalid_value", {"stop": ["x"] * 17}),
        ("stop[1]", "invalid_value", {"stop": ["x", 5]}),
        ("stream", "invalid_value", {"stream": 1}),
        ("stream_options", "invalid_value", {"stream_options": {"include_usage": True}}),
        ("stream_options.usage", "unknown_parameter", {"stream": True, "stream_options": {"usage": True}}),
        ("prompt", "invalid_value", {"prompt": []}),
        ("prompt", "invalid_value", {"prompt": ""}),
        ("prompt", "invalid_value", {"prompt": [100000]}),
        ("prompt", "invalid_value", {"prompt": None}),
        ("prompt[1]", "invalid_value", {"prompt": ["x", 5]}),
        ("prompt[0][1]", "invalid_value", {"prompt": [[1, "x"]]}),
        ("model", "invalid_value", {"model": 5}),
    ],
)
def test_fields_of_completions_are_refused_by_name(client, param, code, fields):
    error = refused(client, TEXT, {**PROMPT, **fields})
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")


def part(**fields):
    return {"messages": [user("hi"), user([{"type": "text", "text": "a"}, fields])]}


def tool(**fields):
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


@pytest.mark.parametrize(
    ("param", "code", "fields"),
    [
        ("messages", "missing_required_parameter", {"messages": ...}),
        ("messages", "invalid_value", {"messages": []}),
        ("messages[0]", "invalid_value", {"messages": ["hi"]}),
        ("messages[0].role", "missing_required_parameter", {"messages": [{"content": "x"}]}),
        ("messages[0]", "invalid_value", {"messages": [{"role": "root", "content": "x"}]}),
        ("messages[0].texts", "unknown_parameter", {"messages": [user("x", texts="y")]}),
        ("messages[0].audio", "unsupported_parameter", {"messages": [user("x", audio={"id": "y"})]}),
        ("messages[1].content[1].type", "invalid_value", part(type="image_url", image_url={"url": "x"})),
        ("messages[1].content[1].text", "missing_required_parameter", part(type="text")),
        ("messages[1].content[1].cache", "unknown_parameter", part(type="text", text="b", cache=1)),
        ("tools[0].function.parameterz", "unknown_parameter", tool(parameterz={})),
        ("tools[0].function.strict", "invalid_value", tool(strict=True)),
        ("tools", "invalid_value", tool()),
        ("tool_choice", "invalid_value", {"tool_choice": "required"}),
        ("tool_choice", "invalid_value", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ("parallel_tool_calls", "invalid_value", {"parallel_tool_calls": False}),
        ("response_format.type", "invalid_value", {"response_format": {"type": "json_object"}}),
        ("functions", "unsupported_parameter", {"functions": []}),
        ("top_logprobs", "invalid_value", {"top_logprobs": 2}),
        ("max_tokens", "invalid_value", {"max_tokens": 5, "max_completion_tokens": 6}),
        ("modalities[0]", "invalid_value", {"modalities": ["audio"]}),
        ("store", "invalid_value", {"store": True}),
        ("prompt", "unknown_parameter", {"prompt": "x"}),
    ],
)
def test_fields_of_chats_are_refused_by_name(client, param, code, fields):
    request = {key: value for key, value in {**MESSAGES, **fields}.items() if value is not ...}
    error = refused(client, CHAT, request)
    assert (error["param"], error["code"]) == (param, code)


def test_fields_that_are_null_are_fields_that_are_not_there(client):
    """Clients that write all fields of a request send those they do not mean as null."""
    described = client.get("/openapi.json").json()["components"]["schemas"]
    for path, request, kind in ((TEXT, PROMPT, "CompletionRequest"), (CHAT, MESSAGES, "ChatRequest")):
        nulls = dict.fromkeys(described[kind]["properties"], None)
        done = client.post(path, json={**nulls, **request, "temperature": 0})
        assert done.status_code == 200, done.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "line 1"),
        (b"{", "line 1"),
        (b"\xff{}", "UTF-8"),
        (b"[]", "a JSON object"),
        (b'"x"', "a JSON object"),
        (b'{"prompt": "a", "prompt": "b"}', "'prompt' twice"),
        (b'{"prompt": "a", "odd\\ud800": 1}', "Unicode"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN"),
        (b'{"prompt": "a", "temperature": -Infinity}', "Infinity"),
        (b'{"prompt": "a", "temperature": 1e999}', "finite"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "too long"),
        (b'{"prompt": ' + b"[" * 20000 + b"]" * 20000 + b"}", "deep"),
    ],
)
def test_bodies_that_are_no_request_are_refused(client, body, words):
    done = client.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert done.status_code == 400, done.text
    assert words in done.json()["error"]["message"]


def test_a_body_is_announced_and_bounded(client, model):
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        assert client.post(TEXT, content=b"{}", headers=headers).status_code == 415
    good = {"content-type": "application/json; charset=utf-8"}
    assert client.post(TEXT, content=json.dumps(PROMPT).encode(), headers=good).status_code == 200
    with served(model, body_bytes=100) as (small, _):
        assert refused(small, TEXT, {**PROMPT, "prompt": "x" * 100}, 413)["code"] == "body_too_long"
        assert small.post(TEXT, json=PROMPT).status_code == 200


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(client):
    for path, param, request in (
        (TEXT, "prompt", {"prompt": [5] * 512}),
        (CHAT, "messages", {"messages": [user("word " * 600)]}),
    ):
        error = refused(client, path, request)
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert "512" in error["message"]
    assert "513 tokens" in refused(client, TEXT, {"prompt": [5] * 512})["message"]
    assert client.post(TEXT, json={"prompt": [5] * 511}).json()["choices"][0]["finish_reason"] == "length"


def test_another_model_is_not_served(client):
    for path, request in ((TEXT, PROMPT), (CHAT, MESSAGES)):
        error = refused(client, path, {**request, "model": "gpt-5"}, 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert NAME in error["message"]
        assert client.post(path, json={**request, "model": NAME}).status_code == 200


def test_no_answer_tells_where_the_model_lies(client, model):
    error = refused(client, CHAT, {**MESSAGES, **tool()})
    assert str(model) not in error["message"] and NAME in error["message"]


def test_paths_and_methods_that_are_none(client):
    for method, path, status, allow in (
        ("GET", "/nowhere", 404, None),
        ("POST", "/v1/completions/", 404, None),
        ("GET", TEXT, 405, {"POST"}),
        ("DELETE", CHAT, 405, {"POST"}),
        ("POST", "/health", 405, {"GET", "HEAD"}),
    ):
        done = client.request(method, path)
        assert done.status_code == status
        assert set(done.json()["error"]) == {"message", "type", "param", "code"}
        if allow is not None:
            assert set(done.headers["allow"].replace(" ", "").split(",")) == allow
    options = client.options(TEXT)
    assert (options.status_code, options.headers["allow"], options.content) == (204, "POST", b"")
    for path in ("/health", "/v1/models", "/metrics"):
        head, got = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_value_of_any_field_is_honoured_or_refused(client, data):
    """Never a failure, and a refusal says which field."""
    path, kind, base = data.draw(
        st.sampled_from([(TEXT, "CompletionRequest", PROMPT), (CHAT, "ChatRequest", MESSAGES)])
    )
    names = sorted(client.get("/openapi.json").json()["components"]["schemas"][kind]["properties"])
    fields = data.draw(st.dictionaries(st.sampled_from([*names, "odd\ud800", "messages"]), VALUES, max_size=2))
    body = json.dumps({**base, **fields}).encode()
    done = client.post(path, content=body, headers={"content-type": "application/json"})
    assert done.status_code in (200, 400, 404), done.text
    if done.status_code == 200:
        if fields.get("stream") is True:
            events(done.text)
        return
    error = done.json()["error"]
    if error["param"] is not None:
        assert error["param"].split(".")[0].split("[")[0] in {*names, *fields, "chat_template_kwargs"}
