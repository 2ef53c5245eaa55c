"""The HTTP server in process: answers, whole and in pieces, and what is said beside them."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import pytest
from chat_models import TOOL, assistant, call, system, user
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import NAME, events, served, write_server_model

from plait.engine.events import Token
from plait.engine.sampling import Sampling
from plait.engine.tokenizer import TextStream

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
WARM = {"temperature": 1.5, "seed": 7, "ignore_eos": True, "max_tokens": 24}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_server_model(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def both(model):
    with served(model) as made:
        yield made


@pytest.fixture(scope="module")
def client(both):
    return both[0]


@pytest.fixture(scope="module")
def engine(both):
    return both[1]


def answer(client, path, **request):
    done = client.post(path, json=request)
    assert done.status_code == 200, done.text
    return done.json()


def streamed(client, path, **request):
    done = client.post(path, json={**request, "stream": True})
    assert done.status_code == 200, done.text
    assert done.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(done.text)


def test_a_completion_is_what_the_engine_says(client, engine):
    *told, result = engine.generate(
        "the quick", sampling=Sampling(temperature=1.5, seed=7), max_tokens=24, ignore_eos=True, logprobs=3
    )
    found = answer(client, TEXT, model=NAME, prompt="the quick", logprobs=3, **WARM)
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"], choice["index"]) == (result.text, "length", 0)
    assert (found["object"], found["model"]) == ("text_completion", NAME)
    tokens = [event for event in told if isinstance(event, Token)]
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"] == [token.logprob for token in tokens]
    assert {len(values) for values in logprobs.values()} == {24}
    for token, tops in zip(tokens, logprobs["top_logprobs"], strict=True):
        assert 1 <= len(tops) <= 4
        assert max(tops.values()) == token.top[0][1]
    assert logprobs["text_offset"] == [sum(len(token.text) for token in tokens[:place]) for place in range(len(tokens))]
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (result.usage.prompt, 24)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24


def test_a_chat_is_what_the_engine_says(client, engine):
    chat = [system("rules"), user("First question?")]
    *told, result = engine.chat(
        chat, sampling=Sampling(temperature=1.5, seed=7), max_tokens=24, ignore_eos=True, logprobs=2
    )
    found = answer(client, CHAT, messages=chat, logprobs=True, top_logprobs=2, **WARM)
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": result.text}
    tokens = [event for event in told if isinstance(event, Token)]
    for entry, token in zip(choice["logprobs"]["content"], tokens, strict=True):
        assert entry["logprob"] == token.logprob
        assert bytes(entry["bytes"] or []) == engine.tokenizer.token_bytes(token.id)
        assert [top["logprob"] for top in entry["top_logprobs"]] == [logprob for _, logprob in token.top]
    assert choice["plait"]["seed"] == 7


def test_known_prompts_are_reused_and_said(model):
    with served(model) as (client, _):
        prompt = "the quick brown fox jumps over the lazy dog, then rests. " * 3
        first = answer(client, TEXT, prompt=prompt, **WARM)
        again = answer(client, TEXT, prompt=prompt, **WARM)
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    report = again["choices"][0]["plait"]
    assert 0 < report["resume"] == again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert report["resume"] <= report["common"] <= again["usage"]["prompt_tokens"]
    assert report["lost"] == min(report["common"], again["usage"]["prompt_tokens"] - 1) - report["resume"]
    assert min(report[name] for name in ("queued_seconds", "prompt_seconds", "decode_seconds")) >= 0


def test_several_prompts_and_answers_keep_their_places(client, engine):
    prompts = ["the quick", "brown fox jumps"]
    found = answer(client, TEXT, prompt=prompts, n=2, **WARM)
    alone = [
        answer(client, TEXT, prompt=prompt, **{**WARM, "seed": 7 + j})["choices"][0]["text"]
        for prompt in prompts
        for j in range(2)
    ]
    assert [choice["text"] for choice in found["choices"]] == alone
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert len(set(alone)) == 4
    lengths = [len(engine.tokenizer.encode(prompt)) for prompt in prompts]
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (sum(lengths), 96)
    ids = [engine.tokenizer.encode(prompt) for prompt in prompts]
    assert answer(client, TEXT, prompt=ids, n=2, **WARM)["choices"][0]["text"] == alone[0]
    assert answer(client, TEXT, prompt=ids[1], **WARM)["choices"][0]["text"] == alone[2]


def test_echo_begins_with_the_prompt(client, engine):
    plain = answer(client, TEXT, prompt="the quick", **WARM)["choices"][0]["text"]
    for prompt in ("the quick", engine.tokenizer.encode("the quick")):
        assert answer(client, TEXT, prompt=prompt, echo=True, **WARM)["choices"][0]["text"] == "the quick" + plain
        chunks = streamed(client, TEXT, prompt=prompt, echo=True, **WARM)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "the quick" + plain


def test_defaults_are_those_of_the_api(client):
    """16 tokens for a completion, temperature 1 with a fresh seed."""
    found = answer(client, TEXT, prompt="the quick", ignore_eos=True)
    assert found["usage"]["completion_tokens"] == 16
    other = answer(client, TEXT, prompt="the quick", ignore_eos=True)
    assert found["choices"][0]["plait"]["seed"] != other["choices"][0]["plait"]["seed"]
    assert found["choices"][0]["text"] != other["choices"][0]["text"]
    again = answer(client, TEXT, prompt="the quick", ignore_eos=True, seed=found["choices"][0]["plait"]["seed"])
    assert again["choices"][0]["text"] == found["choices"][0]["text"]
    rest = answer(client, CHAT, messages=[user("hi")], ignore_eos=True)
    assert rest["usage"]["total_tokens"] == 512
    assert rest["choices"][0]["finish_reason"] == "length"


def joined(chunks, whole):
    """A stream must tell of each choice what the whole answer tells; gives the whole one's choices."""
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        logprobs = [c["logprobs"] for c in mine if c["logprobs"] is not None]
        if "message" in choice:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in c["delta"] for c in mine[1:])
            text, said = "".join(c["delta"].get("content", "") for c in mine), choice["message"]["content"]
        else:
            text, said = "".join(c["text"] for c in mine), choice["text"]
        assert text == said
        if choice["logprobs"] is not None:
            keys = [key for key, value in choice["logprobs"].items() if isinstance(value, list)]
            assert keys
            for key in keys:
                assert [e for piece in logprobs for e in piece[key]] == choice["logprobs"][key]
        else:
            assert logprobs == []
        for key in ("seed", "stop"):
            assert mine[-1]["plait"][key] == choice["plait"][key]
    return whole["choices"]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    chat=st.booleans(),
    n=st.integers(1, 2),
    logprobs=st.booleans(),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    cut=st.tuples(st.integers(0, 40), st.integers(1, 6)) | st.none(),
)
def test_a_stream_says_what_the_whole_answer_says(client, seed, chat, n, logprobs, temperature, cut):
    """With a stop string cut out of the answer itself, so that it lies over the borders of tokens."""
    path = CHAT if chat else TEXT
    request = {"seed": seed, "n": n, "temperature": temperature, "ignore_eos": True, "max_tokens": 14}
    request |= {"messages": [user("Hello there!")]} if chat else {"prompt": "the 你好 🙂 fox"}
    if logprobs:
        request |= {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    if cut is not None:
        first = answer(client, path, **request)["choices"][0]
        text = first["message"]["content"] if chat else first["text"]
        if stop := text[cut[0] : cut[0] + cut[1]]:
            request["stop"] = [stop]
    whole = answer(client, path, **request)
    chunks = streamed(client, path, **request)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    for choice in joined(chunks, whole):
        text = choice["message"]["content"] if chat else choice["text"]
        assert not any(stop in text for stop in request.get("stop", ()))
        assert (choice["plait"]["stop"] is not None) == (choice["finish_reason"] == "stop")


class Written:
    """A tokenizer whose tokens write given bytes; for all else it is the model's."""

    def __init__(self, inner):
        self._inner = inner
        self.parts = {}

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def stream(self, *, control=False, start=True):
        return TextStream(self.token_bytes, strip=False)

    def token_bytes(self, token):
        return self.parts[token]


@pytest.fixture(scope="module")
def writer(model):
    """(client, tokenizer, request, ids): the request generates these ten ids, no two alike."""
    with served(model) as (client, engine):
        prompt = engine.tokenizer.encode("the quick")
        request = {"prompt": prompt, "temperature": 2, "ignore_eos": True}
        for seed in range(100):
            made = list(engine.generate(prompt, sampling=Sampling(2.0, seed=seed), max_tokens=10, ignore_eos=True))
            if len(set(made[-1].tokens)) == 10:
                break
        engine._tokenizer = Written(engine.tokenizer)
        yield client, engine.tokenizer, {**request, "seed": seed}, made[-1].tokens


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_split_of_a_text_shows_half_a_character_or_half_a_stop_string(writer, data):
    """Tokens write the pieces of any text, cut inside characters and stop strings."""
    client, tokenizer, request, ids = writer
    letters = st.sampled_from("ab🙂é你\n") | st.characters(exclude_categories=["Cs"])
    text = data.draw(st.text(letters, min_size=1, max_size=12))
    size = len(text.encode())
    cuts = [0, *sorted(data.draw(st.sets(st.integers(0, size), max_size=8)) - {0, size}), size]
    parts = [text.encode()[a:b] for a, b in pairwise(cuts)]
    stops = data.draw(st.lists(st.text(st.sampled_from(text), min_size=1, max_size=4), max_size=3))
    tokenizer.parts = dict(zip(ids, parts, strict=False))
    ends = [text.index(stop) for stop in stops if stop in text]
    wanted = text[: min(ends, default=len(text))]
    request = {**request, "max_tokens": len(parts), "stop": stops}
    found = answer(client, TEXT, **request)
    assert found["choices"][0]["text"] == wanted
    assert found["choices"][0]["finish_reason"] == ("stop" if ends else "length")
    joined(streamed(client, TEXT, **request), found)
    # Tokens that end inside a character or a stop string are told all the same.
    joined(streamed(client, TEXT, **request, logprobs=0), answer(client, TEXT, **request, logprobs=0))


def test_usage_comes_in_a_last_chunk_and_only_when_asked_for(client):
    request = {"messages": [user("hi")], **WARM}
    whole = answer(client, CHAT, **request)
    plain = streamed(client, CHAT, **request)
    assert all("usage" not in chunk and chunk["choices"] for chunk in plain)
    *others, last = streamed(client, CHAT, **request, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in others)
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """A model whose template writes tools, and reads whether to think."""
    with served(write_server_model(tmp_path_factory.mktemp("tools"), "thought_left_out")) as made:
        yield made


def test_messages_of_tools_reach_the_template(tools):
    """What the template writes of calls and tools is what the model reads: the prompts have the same length."""
    client, engine = tools
    tool = {"type": "function", "function": dict(TOOL["function"])}
    chat = [
        user("look it up"),
        assistant(None, tool_calls=[call('{"word": "fox"}')]),
        {"role": "tool", "content": "an animal", "tool_call_id": "abcdef123"},
        user([{"type": "text", "text": "and now?"}]),
    ]
    without = answer(client, CHAT, messages=chat, **WARM)["usage"]["prompt_tokens"]
    assert without == len(engine.encode_chat(chat))
    within = answer(client, CHAT, messages=chat, tools=[tool], tool_choice="auto", **WARM)["usage"]["prompt_tokens"]
    assert within == len(engine.encode_chat(chat, tools=[tool])) > without
    none = answer(client, CHAT, messages=chat, tools=[tool], tool_choice="none", **WARM)
    assert none["usage"]["prompt_tokens"] == without


def test_variables_reach_the_template_or_are_refused(tools):
    client, engine = tools
    chat = [user("hi")]
    lengths = []
    for value in (True, False):
        found = answer(client, CHAT, messages=chat, chat_template_kwargs={"enable_thinking": value}, **WARM)
        lengths.append(found["usage"]["prompt_tokens"])
        assert lengths[-1] == len(engine.encode_chat(chat, enable_thinking=value))
    assert lengths[0] != lengths[1]
    for name in ("enable_thinkin", "template", "sampling", "messages"):
        done = client.post(CHAT, json={"messages": chat, "chat_template_kwargs": {name: "x"}})
        assert (done.status_code, done.json()["error"]["param"]) == (400, f"chat_template_kwargs.{name}")
    done = client.post(CHAT, json={"messages": chat, "reasoning_effort": "low"})
    assert (done.status_code, done.json()["error"]["param"]) == (400, "chat_template_kwargs.reasoning_effort")


def test_models(client):
    (found,) = client.get("/v1/models").json()["data"]
    assert (found["id"], found["object"], found["max_model_len"]) == (NAME, "model", 512)
    assert client.get(f"/v1/models/{NAME}").json() == found
    assert client.get("/v1/models/other").status_code == 404


def test_health_and_metrics_follow_the_work(model):
    with served(model) as (client, _):
        before = client.get("/health").json()
        assert (before["status"], before["queued"], before["running"], before["steps"]) == ("ok", 0, 0, 0)
        for _ in range(2):
            answer(client, TEXT, prompt="the quick brown fox", **WARM)
        assert client.post(TEXT, json={}).status_code == 400
        assert client.get("/nowhere").status_code == 404
        after = client.get("/health").json()
        assert after["status"] == "ok" and after["steps"] > 1
        page = client.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        figures = dict(re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", page.text, re.MULTILINE))
        assert float(figures['plait_requests_total{path="/v1/completions",status="200"}']) == 2
        assert float(figures['plait_requests_total{path="/v1/completions",status="400"}']) == 1
        assert float(figures['plait_requests_total{path="other",status="404"}']) == 1
        assert float(figures["plait_generated_tokens_total"]) == 48
        assert float(figures["plait_time_to_first_token_seconds_count"]) == 2
        assert float(figures["plait_inter_token_seconds_count"]) == 46
        assert float(figures["plait_cache_reused_tokens_total"]) > 0
        assert float(figures['plait_memory_bytes{category="weights"}']) > 0
        assert all(math.isfinite(float(value)) for value in figures.values())


def test_a_model_without_a_tokenizer_or_template_continues_tokens(tmp_path):
    directory = write_server_model(tmp_path)
    (directory / "tokenizer.json").unlink()
    with served(directory) as (client, _):
        found = answer(client, TEXT, prompt=[5, 6, 7], logprobs=1, **WARM)
        assert found["choices"][0]["text"] == ""
        assert all(re.fullmatch(r"token_id:\d+", token) for token in found["choices"][0]["logprobs"]["tokens"])
        for path, request in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": [user("x")]})):
            done = client.post(path, json=request)
            assert done.status_code == 400 and "tokenizer" in json.dumps(done.json())
