"""`plait inspect --kernels`: what is said runs in kernels does, and nothing is said where there are none."""

from __future__ import annotations

import json

import pytest
import torch

from plait.cli.main import _status
from plait.runtime import kernels
from plait.runtime.ops.norm import rms_norm

HERE = kernels.levels()


@pytest.fixture
def inspect(capsys):
    def run(*arguments):
        code = _status(["inspect", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def level(monkeypatch):
    """Switch to a level, and back afterwards."""

    def switch(name):
        monkeypatch.setenv(kernels.VARIABLE, name)
        kernels.chosen.cache_clear()

    yield switch
    kernels.chosen.cache_clear()


@pytest.mark.skipif(not HERE, reason="the package was built without its native kernels")
@pytest.mark.parametrize("name", HERE)
def test_every_level_is_named(inspect, level, name):
    level(name)
    code, out, _ = inspect("gemma-3-270m", "--kernels", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["level"] == name and found["levels"] == list(HERE)
    assert {product["use"] for product in found["products"]} == {"head", "mixer", "feed_forward"}
    assert sum(product["weights"] for product in found["products"]) == 1 + 18 * (4 + 3)
    assert all(product["form"].startswith("native") for product in found["products"])
    forms = {step["step"]: step["runs_in"] for step in found["steps"]}
    assert forms["softmax attention"] == forms["norms"] == "native program"


@pytest.mark.parametrize("model", ["gemma-3n-e2b", "glm-5", "qwen3.5-0.8b"])
def test_without_kernels_torch_computes_everything(inspect, level, model):
    level("off")
    code, out, _ = inspect(model, "--kernels", "--json")
    found = json.loads(out)
    assert code == 0 and found["level"] is None
    assert {step["runs_in"] for step in found["steps"]} == {"torch"}
    assert {product["form"] for product in found["products"]} <= {"tiled", "reordered"}


@pytest.mark.skipif(not HERE, reason="the package was built without its native kernels")
def test_kinds_of_layers_have_lines_of_their_own(inspect):
    code, out, _ = inspect("qwen3.5-0.8b", "--kernels")
    assert code == 0
    first, *_ = out.splitlines()
    assert "this machine runs portable" in first and HERE[-1] in first
    for step in ("convolution", "delta rule", "softmax attention", "embedding", "greedy choice"):
        assert any(line.startswith(step) for line in out.splitlines())


def test_formats_are_those_of_the_file(inspect, tmp_path):
    place = tmp_path / "mixed.gguf"
    assert _status(["random", "qwen3-0.6b", "--scale", "tiny", "--gguf", "--format", "q8_0", "-o", str(place)]) == 0
    code, out, _ = inspect(place, "--kernels", "--json")
    assert code == 0 and {product["stored"] for product in json.loads(out[out.index("{") :])["products"]} == {"q8_0"}


def test_what_does_not_go_together_is_refused(inspect):
    code, out, err = inspect("gemma-3-270m", "--kernels", "--coverage")
    assert (code, out) == (2, "") and "--kernels" in err


@pytest.mark.skipif(kernels.native() is None, reason="torch computes here")
def test_watching_ends():
    x = torch.ones(2, 8)
    with kernels.watching() as called:
        rms_norm(x, None, 1e-6)
    assert called == ["rms_norm"]
    rms_norm(x, None, 1e-6)
    assert called == ["rms_norm"]
