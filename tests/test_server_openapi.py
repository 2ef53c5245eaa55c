"""The OpenAPI description: what it says is what the server does, tried by a program that reads nothing else."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serving import NAME, write_server_model
from starlette.testclient import TestClient

import plait
from plait.engine.sampling import REPETITION
from plait.server.app import application
from plait.server.lifecycle import Lifecycle
from plait.server.schema import ChatRequest, CompletionRequest
from plait.server.settings import Settings


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    engine = plait.load(write_server_model(tmp_path_factory.mktemp("openapi")))
    yield application(engine, Settings(name=NAME, created=1, choices=4, max_tokens=2), Lifecycle())
    engine.close()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/health", "/metrics"]
)
def test_nothing_that_is_described_fails(app, path, mode):
    """What fits the description and what does not: statuses, types and shapes are those it names; none is a 500."""
    described = schemathesis.openapi.from_asgi("/openapi.json", app)
    (operation,) = (found.ok() for found in described.get_all_operations() if found.ok().path == path)

    @settings(
        max_examples=12, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def tried(case):
        if isinstance(case.body, dict):
            # What is asked for must end soon.
            limits = {key: 2 for key in ("max_tokens", "max_completion_tokens") if isinstance(case.body.get(key), int)}
            case.body = {**case.body, **limits}
        # What a template or a context refuses, a description cannot know.
        case.call_and_validate(excluded_checks=[positive_data_acceptance] if case.method == "POST" else [])

    try:
        tried()
    except hypothesis.errors.Unsatisfiable:
        # Where an operation takes nothing, nothing can be wrong.
        assert mode is GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "text"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "text"}]}),
    ],
)
def test_each_event_of_a_stream_is_as_described(app, path, asked):
    """Tried each time: what is drawn at random seldom asks for a stream."""
    described = schemathesis.openapi.from_asgi("/openapi.json", app)
    response = described[path]["POST"].Case(body={**asked, "stream": True}).call_and_validate()
    assert response.text.rstrip().endswith("data: [DONE]")


def test_each_path_is_described_and_each_description_served(app):
    with TestClient(app) as client:
        described = client.get("/openapi.json").json()
    served = {(route.path.replace(":path", ""), method) for route in app.routes for method in route.methods - {"HEAD"}}
    paths = described["paths"].items()
    assert served == {(path, m.upper()) for path, item in paths for m in item if m in ("get", "post")}


@pytest.mark.parametrize("request_type", [CompletionRequest, ChatRequest])
def test_bounds_of_a_repetition_penalty_are_the_samplers(request_type):
    number, _ = request_type.model_json_schema()["properties"]["repetition_penalty"]["anyOf"]
    assert (number["minimum"], number["maximum"]) == REPETITION
