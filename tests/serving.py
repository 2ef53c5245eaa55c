"""What the tests of the server share: a small model that chats, and an application around it."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

from chat_models import user, write_chat_model
from generating import write_model
from starlette.testclient import TestClient

import plait
from plait.engine.tokenizer import load_tokenizer
from plait.server.app import application
from plait.server.lifecycle import Lifecycle
from plait.server.settings import Settings

NAME = "tiny/model"

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = {"messages": [user("hi")], "max_tokens": 4}
PROMPT = {"prompt": "the quick", "max_tokens": 4}


def write_server_model(place, template="chatml", **keys):
    """A random model with the tokenizer and the chat template of one of the small chat models."""
    chat = write_chat_model(place / "chat", template)
    keys = {"max_position_embeddings": 512, **keys}
    directory = write_model(place / "model", vocab_size=load_tokenizer(chat).vocabulary, **keys)
    for file in chat.iterdir():
        shutil.copy(file, directory / file.name)
    return directory


@contextmanager
def served(model, lifecycle=None, *, load=None, **settings):
    """(client, engine); answers of the application come as they do from a server, errors of its own are raised."""
    engine = plait.load(model, **(load or {}))
    made = Settings(**{"name": NAME, "created": 1, "choices": 16, **settings})
    try:
        with TestClient(application(engine, made, lifecycle or Lifecycle())) as client:
            yield client, engine
    finally:
        engine.close()


def events(text):
    """The objects of a stream, which must end in [DONE]."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def refused(client, path, request, status=400):
    done = client.post(path, json=request)
    assert done.status_code == status, done.text
    assert set(done.json()) == {"error"}
    error = done.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "\n" not in error["message"]
    return error
