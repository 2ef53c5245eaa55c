"""`plait serve` as users run it: the official client, clients that leave, and signals at every stage."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket

import openai
import pytest
from chat_models import assistant, user
from server_process import answered, serving, until
from serving import write_server_model

from plait.cli.main import _status

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LONG = {"prompt": "the quick", "max_tokens": 16000, "ignore_eos": True, "temperature": 0}
CONTEXT = 1 << 14


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_server_model(tmp_path_factory.mktemp("process"), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def server(model):
    """One for all tests that do not end it; it is ended when idle, and leaves in order."""
    options = ("--served-name", "tiny", "--api-key", "key", "--sequences", 2, "--queue", 1, "--memory", "1GiB")
    with serving(model, *options) as made:
        yield made
        assert made.health()["status"] == "ok"
        made.end()
        assert made.ended() == (0, "")
        assert re.search(r"the weights take .*2 requests run at once, 1 may wait", made.ready[1])


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as made:
        yield made


def test_the_official_client(server, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    request = {"model": "tiny", "temperature": 1.5, "seed": 7, "max_tokens": 12}
    chat = client.chat.completions.create(messages=[user("hi")], logprobs=True, top_logprobs=2, **request)
    (choice,) = chat.choices
    assert choice.message.role == "assistant"
    assert chat.usage.prompt_tokens_details.cached_tokens <= chat.usage.prompt_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    # What the client sends back of an answer is taken as history.
    history = [user("hi"), choice.message.model_dump(), user("more")]
    client.chat.completions.create(messages=history, **request)
    text = ""
    with client.chat.completions.create(
        messages=[user("hi")], stream=True, stream_options={"include_usage": True}, **request
    ) as stream:
        for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            else:
                assert chunk.usage.completion_tokens == chat.usage.completion_tokens
    assert text == choice.message.content
    whole = client.completions.create(prompt="the quick", logprobs=1, **request)
    pieces = client.completions.create(prompt="the quick", stream=True, **request)
    assert "".join(chunk.choices[0].text for chunk in pieces) == whole.choices[0].text
    extra = client.completions.create(prompt="the quick", extra_body={"top_k": 1}, **request)
    assert (
        extra.choices[0].text
        == client.completions.create(prompt="the quick", **{**request, "temperature": 0}).choices[0].text
    )


def test_errors_are_those_of_the_official_client(server, client):
    good = {"model": "tiny", "messages": [user("hi")]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**good, temperature=9)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[5] * CONTEXT)
    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT) in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**good, "model": "other"})
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_the_asynchronous_client_and_a_full_queue(server):
    """Two run, one waits, the next is told when to come back; those that were cut off make room again."""

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as client:
            request = {"model": "tiny", "prompt": "the quick", "max_tokens": 16000, "stream": True}
            request["extra_body"] = {"ignore_eos": True}
            streams = [await client.completions.create(**request) for _ in range(3)]
            with pytest.raises(openai.RateLimitError) as caught:
                await client.completions.create(**request)
            assert int(caught.value.response.headers["retry-after"]) >= 1
            async for chunk in streams[0]:
                assert chunk.choices[0].index == 0
                break
            for stream in streams:
                await stream.close()
            end = asyncio.get_running_loop().time() + 60
            while True:
                try:
                    made = await client.completions.create(model="tiny", prompt="x", max_tokens=1)
                except openai.RateLimitError:
                    assert asyncio.get_running_loop().time() < end
                    await asyncio.sleep(0.05)
                else:
                    return made

    assert asyncio.run(main()).usage.completion_tokens <= 1
    server.wait(lambda found: found["running"] + found["queued"] == 0)


def idle(found):
    return found["running"] == found["queued"] == 0


def test_clients_that_leave_leave_no_work(model):
    """While it is queued, in the prompt, decoded, streamed; and half of a request is none."""
    with serving(model, "--sequences", 1, "--queue", 8) as server:
        before = server.wait(idle)
        assert '"id":"model"' in server.get("/v1/models")[1]
        for request in (
            LONG,
            {**LONG, "stream": True},
            {**LONG, "prompt": [5] * 15000, "max_tokens": 1},
            {**LONG, "prompt": [6] * 15000, "max_tokens": 1, "stream": True},
        ):
            running = server.send(TEXT, request)
            server.wait(lambda found: found["running"] == 1)
            waiting = [server.send(TEXT, {**LONG, "stream": stream}) for stream in (True, False)]
            server.wait(lambda found: found["queued"] == 2)
            for connection in (*waiting, running):
                connection.close()
            server.wait(idle)
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            half.sendall(b"Content-Length: 100\r\n\r\n{")
        with server.send(TEXT, {"prompt": "the quick", "max_tokens": 2}) as last:
            until(last, b'"choices"')
        assert server.wait(idle)["steps"] > before["steps"]
        # Idle connections are no reason to wait.
        with socket.create_connection(("127.0.0.1", server.port)):
            server.end(signal.SIGINT)
            assert server.ended() == (0, "")


def test_what_runs_may_end_what_comes_is_refused_and_a_second_signal_ends_at_once(model):
    with serving(model, "--sequences", 2, "--grace", 600) as server:
        endless = server.send(TEXT, {**LONG, "stream": True})
        streaming = server.send(TEXT, {**LONG, "max_tokens": 600, "stream": True})
        for connection in (endless, streaming):
            until(connection, b"data: ")
        queued = server.send(CHAT, {"messages": [user("hi"), assistant("x"), user("y")], "max_tokens": 3})
        server.wait(lambda found: found["queued"] == 1)
        server.end()
        server.wait(lambda found: found["status"] == "draining")
        with server.send(TEXT, LONG) as late:
            status, rest = answered(late)
        assert status == 503
        assert "retry-after: 600" in rest.lower()
        assert until(streaming, b"data: [DONE]").count(b'"finish_reason":"length"') == 1
        assert b'"chat.completion"' in until(queued, b'"usage"')
        assert server.health()["running"] == 1
        server.end(signal.SIGINT)
        until(endless, b'"code":"stopping"')
        assert server.ended() == (0, "")


def test_what_does_not_end_in_time_is_cut_off(model):
    """Queued, in the prompt, decoded, streamed: all are told."""
    with serving(model, "--sequences", 3, "--grace", 0) as server:
        streaming = server.send(TEXT, {**LONG, "stream": True})
        decoding = server.send(TEXT, LONG)
        until(streaming, b"data: ")
        prompt = server.send(TEXT, {**LONG, "prompt": [5] * 15000})
        server.wait(lambda found: found["running"] == 3)
        queued = server.send(TEXT, LONG)
        server.wait(lambda found: found["queued"] == 1)
        server.end()
        for connection in (decoding, prompt, queued):
            status, rest = answered(connection)
            assert (status, json.loads(rest.partition("\r\n\r\n")[2])["error"]["code"]) == (503, "stopping")
        until(streaming, b'"code":"stopping"')
        assert server.ended() == (0, "")


def test_what_cannot_be_served_is_said_in_one_line(model, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, status, words in (
            (["--port", port], 1, f"port {port}"),
            (["--host", "no such host"], 2, "host"),
            (["--api-key", " "], 2, "API key"),
            (["--port", "0", "--chat-template", "/none.jinja"], 2, "/none.jinja"),
            (["--port", "0", "--memory", "1KiB"], 1, "memory cap"),
            (["--port", "70000"], 2, "--port"),
        ):
            assert _status(["serve", str(model), *arguments]) == status
            said = capsys.readouterr().err
            assert words in said and said.count("\n") == 1
