"""How the HTTP server behaves toward keys, origins, crowds, clients that leave, failures and its own end."""

from __future__ import annotations

import asyncio
import json
import math
import time

import pytest
from serving import CHAT, MESSAGES, PROMPT, TEXT, refused, served, write_server_model

from plait.errors import PlaitError, QueueFull
from plait.server.lifecycle import Lifecycle


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_server_model(tmp_path_factory.mktemp("conduct"))


def test_an_api_key(model):
    with served(model, api_key="sésame") as (client, _):
        for header in (None, "Bearer ", "Bearer wrong", "Basic sésame", "sésame"):
            headers = {} if header is None else {"authorization": header.encode()}
            for done in (client.get("/v1/models", headers=headers), client.post(TEXT, json=PROMPT, headers=headers)):
                assert done.status_code == 401
                assert done.headers["www-authenticate"] == "Bearer"
                assert done.json()["error"]["code"] == "invalid_api_key"
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} sésame".encode()}
            assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/health").status_code == 200


def test_pages_of_other_origins(model):
    asked = {"origin": "http://app.test", "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization,content-type"
    with served(model) as (client, _):
        assert "access-control-allow-origin" not in client.options(CHAT, headers=asked).headers
    with served(model, cors_origins=("http://app.test",)) as (client, _):
        done = client.options(CHAT, headers=asked)
        assert (done.status_code, done.headers["access-control-allow-origin"]) == (200, "http://app.test")
        assert client.options(CHAT, headers={**asked, "origin": "http://other.test"}).status_code == 400
        done = client.post(CHAT, json=MESSAGES, headers={"origin": "http://app.test"})
        assert done.headers["access-control-allow-origin"] == "http://app.test"


def test_a_full_queue_says_when_to_come_back(model, monkeypatch):
    with served(model) as (client, engine):
        for wait in (0.01, 7.2):

            def full(*_, wait=wait, **__):
                raise QueueFull(waiting=3, retry_after=wait)

            monkeypatch.setattr(engine, "take", full)
            monkeypatch.setattr(engine, "submit", full)
            for path, request in ((TEXT, PROMPT), (CHAT, {**MESSAGES, "stream": True})):
                done = client.post(path, json=request)
                assert (done.status_code, done.headers["retry-after"]) == (429, str(math.ceil(wait)))
                assert done.json()["error"]["type"] == "rate_limit_error"


def test_of_several_answers_all_or_none_are_taken(model):
    with served(model, load={"queue": 1, "sequences": 1}) as (client, engine):
        assert refused(client, TEXT, {**PROMPT, "n": 8}, 429)["code"] == "queue_full"
        settle(engine)
        assert client.post(TEXT, json=PROMPT).status_code == 200


def settle(engine):
    """Wait until nothing is under way."""
    end = time.monotonic() + 60
    while engine.stats()["queued"] + engine.stats()["running"]:
        assert time.monotonic() < end
        time.sleep(0.005)


def bare(app, messages):
    """What an application sends to a client that sends these messages, None: then nothing for ever."""
    sent = []

    async def main():
        waiting = list(messages)

        async def receive():
            if not waiting or waiting[0] is None:
                await asyncio.Event().wait()
            return waiting.pop(0)

        async def send(message):
            sent.append(message)

        await app(
            {
                "type": "http",
                "method": "POST",
                "path": TEXT,
                "raw_path": TEXT.encode(),
                "query_string": b"",
                "headers": [(b"content-type", b"application/json")],
            },
            receive,
            send,
        )

    asyncio.run(main())
    return sent


def test_a_client_that_leaves_at_once_leaves_no_work(model):
    """While the body comes, and while the prompt is read: nobody is answered and nothing runs on."""
    body = json.dumps({**PROMPT, "max_tokens": 400, "ignore_eos": True}).encode()
    gone = {"type": "http.disconnect"}
    with served(model) as (client, engine):
        for messages in (
            [{"type": "http.request", "body": body[:10], "more_body": True}, gone],
            [{"type": "http.request", "body": body, "more_body": False}, gone],
        ):
            bare(client.app, messages)
            settle(engine)
            assert engine.stats()["tokens"] < 400


def test_a_body_that_does_not_come_is_not_waited_for(model):
    with served(model, body_seconds=0.05) as (client, _):
        sent = bare(client.app, [{"type": "http.request", "body": b"{", "more_body": True}, None])
        assert sent[0]["status"] == 408
        assert json.loads(sent[1]["body"])["error"]["code"] == "timeout"


class Broken(Exception):
    """Not one of ours."""


@pytest.mark.parametrize("error", [PlaitError("cannot choose a token"), Broken("secret")])
def test_a_failure_of_the_engine_is_an_error_of_the_api(model, monkeypatch, capsys, error):
    """Before the beginning with its status, after it as a last event; what nobody meant to say stays in the log."""
    with served(model) as (client, engine):
        taken = engine.submit

        def submit(*arguments, **options):
            ticket = taken(*arguments, **options)

            class Failing:
                cancel = ticket.cancel

                async def __aiter__(self):
                    async for event in ticket:
                        yield event
                        if type(event).__name__ == "Token":
                            raise error

            return Failing()

        monkeypatch.setattr(engine, "submit", submit)
        found = refused(client, TEXT, {**PROMPT, "ignore_eos": True}, 500)
        assert found["type"] == "server_error"
        done = client.post(TEXT, json={**PROMPT, "ignore_eos": True, "stream": True, "logprobs": 0})
        assert done.status_code == 200 and "[DONE]" not in done.text
        *chunks, last = [json.loads(line[6:]) for line in done.text.split("\n\n") if line]
        assert last == {"error": found} and len(chunks) == 1
    assert "secret" not in found["message"] and "Traceback" not in done.text
    assert ("secret" in capsys.readouterr().err) == isinstance(error, Broken)


def test_a_server_that_stops_takes_no_more_work(model):
    """What comes is refused at once; what is told to end does so with an error, as a whole answer and as a stream."""
    lifecycle = Lifecycle(grace=4.5)
    with served(model, lifecycle) as (client, engine):
        lifecycle.drain()
        done = client.post(TEXT, json=PROMPT)
        assert (done.status_code, done.headers["retry-after"]) == (503, "5")
        assert (client.get("/health").status_code, client.get("/health").json()["status"]) == (503, "draining")
    lifecycle = Lifecycle()
    with served(model, lifecycle) as (client, engine):
        taken = engine.submit

        def submit(*arguments, **options):
            lifecycle.halted = True
            return taken(*arguments, **options)

        engine.submit = submit
        assert refused(client, TEXT, {**PROMPT, "max_tokens": 400, "ignore_eos": True}, 503)["code"] == "stopping"
        done = client.post(TEXT, json={**PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True})
        assert '"code":"stopping"' in done.text.split("\n\n")[-2]


def test_health_fails_where_nothing_moves(model):
    with served(model, stall_seconds=5.0) as (client, engine):
        stats = engine.stats
        for figures, status in (
            ({"running": 1, "idle_seconds": 6.0}, 503),
            ({"queued": 1, "idle_seconds": 6.0}, 503),
            ({"running": 1, "idle_seconds": 4.0}, 200),
            ({"idle_seconds": 6.0}, 200),
        ):
            engine.stats = lambda figures=figures: {**stats(), **figures}
            done = client.get("/health")
            assert (done.status_code, done.json()["status"]) == (status, "ok" if status == 200 else "stalled")
