"""The plan under a cap: exact for weights, true for state, refused before a weight is read, and kept while running."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import tiny
import torch
from calling_generate import ENVIRONMENT, caller, write_models
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import plait
from plait.account.memory import memory
from plait.blueprint.source import open_model
from plait.cli.generate import plan_lines
from plait.engine import load as loading
from plait.engine.load import default_numbers
from plait.engine.plan import memory_plan
from plait.errors import PlaitError, UserError
from plait.runtime.kernels import VARIABLE, chosen
from plait.runtime.model import CALL_ROWS, Numbers
from plait.runtime.ops import linear
from plait.runtime.ops.linear import make_linear, prepared_bytes
from plait.runtime.session import Span
from plait.runtime.weight_plan import formats_of, weight_plan
from plait.runtime.weight_source import RandomWeights
from plait.runtime.weights import open_weights

CPU = torch.device("cpu")
FULL = Numbers(torch.float32, torch.float32)
HALF = Numbers(torch.bfloat16, torch.bfloat16)
# One of each way to build layers.
FAMILIES = ("qwen3", "gemma3n", "gemma4_26b", "qwen3_5_moe", "mimo_v2_flash", "glm_moe_dsa")


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request, tmp_path_factory):
    return tiny.save(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))


# -- weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [True, False])
def test_weights_are_planned_to_the_byte(directory, kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(linear, "native", lambda: None)
    for numbers in (FULL, HALF, Numbers(torch.float64, torch.float32)):
        engine = plait.load(directory, dtype=numbers.weights, kv_dtype=numbers.kv)
        plan = weight_plan(engine.blueprint, numbers, CPU)
        assert plan.prepared == engine.model.weight_bytes
        assert plan.loading > plan.prepared
        # A cap of exactly that loads, of one byte less does not.
        assert plait.load(directory, dtype=numbers.weights, memory=plan.prepared).prefixes.store.budget == 0
        with pytest.raises(PlaitError, match="the weights need"):
            plait.load(directory, dtype=numbers.weights, memory=plan.prepared - 1)


@pytest.mark.parametrize("shape", [(1, 1), (15, 33), (16, 32), (17, 31), (100, 64), (211, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_prepared_products_have_the_bytes_that_were_counted(shape, dtype, monkeypatch):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert make_linear(weight).nbytes == prepared_bytes(*shape, dtype, CPU)
    # Elsewhere there is no padding, and without kernels that of float64 to whole vectors alone.
    assert prepared_bytes(*shape, dtype, torch.device("cuda")) == weight.numel() * weight.element_size()
    monkeypatch.setattr(linear, "native", lambda: None)
    out, columns = (size + -size % 8 if dtype == torch.float64 else size for size in shape)
    assert make_linear(weight).nbytes == prepared_bytes(*shape, dtype, CPU) == out * columns * weight.element_size()


def test_a_published_model_is_planned_without_its_weights():
    """Gemma 3 270M in bf16: 268,098,176 parameters, the embedding once, and norms in float32."""
    blueprint = plait.blueprint("gemma-3-270m")
    vectors = 18 * (4 * 640 + 2 * 256) + 640
    assert weight_plan(blueprint, HALF, CPU).prepared == 2 * (268_098_176 - vectors) + 4 * vectors


# -- the plan ------------------------------------------------------------------------------------------------------


def _plan(blueprint, length, cap, cache=2**40, numbers=FULL, **formats):
    return memory_plan(blueprint, numbers, CPU, length=length, cap=cap, cache=cache, **formats)


def test_the_plan_adds_up(directory):
    engine = plait.load(directory)
    for length in (1, 63, 64, 65, 700, 1024):
        state = engine.model.pool.most(length, CALL_ROWS)
        least = engine.model.weight_bytes + state + engine.model.pool.tail_bytes()
        plan = _plan(engine.blueprint, length, least + 1000)
        assert (plan.weights_bytes, plan.state_bytes, plan.store_bytes) == (engine.model.weight_bytes, state, 1000)
        assert plan.state_need_bytes == memory(engine.blueprint, length, kv_format="f32").total_bytes <= state
        assert _plan(engine.blueprint, length, least + 1000, cache=7).store_bytes == 7
        assert _plan(engine.blueprint, length, least).store_bytes == 0
        least = engine.model.weight_bytes + state
        assert _plan(engine.blueprint, length, least).store_bytes == 0
        words = rf"^{length} tokens need .* the memory cap is .*: weights .*, state "
        with pytest.raises(PlaitError, match=words) as refused:
            _plan(engine.blueprint, length, least - 1)
        assert not isinstance(refused.value, UserError)
        assert "\n" not in str(refused.value)


def test_a_refusal_says_how_much_does_fit(directory):
    blueprint = plait.blueprint(directory)
    weights = weight_plan(blueprint, FULL, CPU).prepared
    pool = plait.load(directory).model.pool
    cap = weights + pool.most(300, CALL_ROWS)
    with pytest.raises(PlaitError, match=r"at most \d+ tokens fit$") as refused:
        _plan(blueprint, 1024, cap)
    most = int(str(refused.value).split("at most ")[1].split()[0])
    assert 300 <= most < 1024
    assert _plan(blueprint, most, cap).length == most
    with pytest.raises(PlaitError):
        _plan(blueprint, most + 1, cap)
    with pytest.raises(PlaitError, match="no sequence fits"):
        _plan(blueprint, 1024, weights)


def test_what_is_refused_reads_no_weight(directory, monkeypatch):
    def unread(*_, **__):
        raise AssertionError("weights were read")

    # Headers are read for the plan; the model is what reads weights.
    monkeypatch.setattr(loading, "Model", unread)
    weights = weight_plan(plait.blueprint(directory), FULL, CPU).prepared
    with pytest.raises(PlaitError, match="the weights need"):
        plait.load(directory, memory=weights - 1)
    with pytest.raises(PlaitError, match="1000 tokens need"):
        loading.opened(directory, memory=weights + 1).plan(1000)
    with pytest.raises(AssertionError, match="weights were read"):
        plait.load(directory, memory=weights)


# -- the command ---------------------------------------------------------------------------------------------------


def test_generate_shows_the_plan_first(place, capsys):
    call = caller(capsys)
    plain = call(place / "model", "hello", "-n", "3", "--seed", "1", "--json")
    code, out, err = call(place / "model", "hello", "-n", "3", "--seed", "1", "--json", "--memory", "8MiB")
    assert (code, err) == (0, plain[2])
    first, *rest = map(json.loads, out.splitlines())
    assert [e["event"] for e in rest] == [json.loads(line)["event"] for line in plain[1].splitlines()]
    assert first.pop("event") == "plan"
    engine = plait.load(place / "model")
    tokens = len(engine.tokenizer.encode_markup("hello"))
    formats = formats_of(open_weights(open_model(place / "model")))
    expected = _plan(engine.blueprint, tokens + 3, 2**23, cache=2**31, numbers=default_numbers(), formats=formats)
    assert expected.weights_bytes == engine.model.weight_bytes
    assert first == {name: getattr(expected, name) for name in expected.__dataclass_fields__}
    # In a pipe text stays what it is.
    assert (
        call(place / "model", "hello", "-n", "3", "--seed", "1", "--memory", "8MiB")[1]
        == call(place / "model", "hello", "-n", "3", "--seed", "1")[1]
    )


def test_generate_refuses_with_the_numbers(place, capsys):
    call = caller(capsys)
    for arguments, words in (
        (["--memory", "100KiB"], ["the weights need", "the memory cap is 100 KiB"]),
        (["--memory", "900KiB", "-n", "5000"], ["tokens need", "the memory cap is 900 KiB", "state", "tokens fit"]),
    ):
        code, out, err = call(place / "model", "hello", *arguments)
        assert (code, out) == (1, "")
        assert all(word in err for word in words), err
        assert err.count("\n") == 1
    for cache in ("0", "1MiB"):
        assert call(place / "model", "hello", "-n", "2", "--cache", cache)[0] == 0
    assert call(place / "model", "hello", "--cache", "lots")[0] == 2


def test_the_lines_of_a_terminal_have_all_numbers(directory):
    plan = _plan(plait.blueprint(directory), 100, 2**30)
    first, second = plan_lines(plan)
    for size in (plan.cap_bytes, plan.weights_bytes, plan.state_bytes, plan.state_need_bytes, plan.store_bytes):
        assert plait.units.binary_bytes(size) in first
    for size in (plan.scratch_bytes, plan.loading_bytes):
        assert plait.units.binary_bytes(size) in second


# -- what is really held -------------------------------------------------------------------------------------------


class _Live(TorchDispatchMode):
    """Bytes of the tensors that were made under it and are alive, and the most there ever were."""

    def __init__(self):
        super().__init__()
        self.tensors, self.sizes, self.now, self.peak = Counter(), {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                key = storage.data_ptr()
                if not self.tensors[key]:
                    self.sizes[key] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                self.tensors[key] += 1
                weakref.finalize(leaf, self._gone, key)
        return made

    def _gone(self, key):
        self.tensors[key] -= 1
        if not self.tensors[key]:
            self.now -= self.sizes[key]


@pytest.mark.parametrize(("kv", "kernels"), [(torch.float32, True), (torch.int8, True), (torch.bfloat16, False)])
def test_scratch_is_about_what_calls_take(directory, kv, kernels, monkeypatch):
    """Calls are made on this thread, as the engine cuts them: only here what torch makes is counted."""
    if not kernels:
        monkeypatch.setenv(VARIABLE, "off")
    chosen.cache_clear()
    try:
        model = plait.load(directory, kv_dtype=kv, cache=0).model
        length, more = 700, 3
        plan = _plan(model.blueprint, length + more, 2**30, numbers=Numbers(torch.float32, kv))
        tokens = tuple(tiny.tokens(length + more))
        cuts = (*range(0, length, CALL_ROWS), *range(length, length + more + 1))
        with _Live() as live:
            session = model.session()
            for first, stop in pairwise(cuts):
                model.run([Span(session, tokens[first:stop])])
        assert live.peak <= plan.state_bytes + plan.scratch_bytes
        # A call holds the state, and of what is beside it a good part.
        assert live.peak - sum(session.held().values()) >= plan.scratch_bytes / 5
        session.close()
    finally:
        monkeypatch.undo()
        chosen.cache_clear()


_RESIDENT = """
import sys, plait
from pathlib import Path
from plait.runtime.model import CALL_ROWS

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def ask(engine, first):
    return engine.generate([(first + i) % 200 for i in range(256)], max_tokens=2, ignore_eos=True)

directory = sys.argv[1]
small = plait.load(directory, cache=0)
list(ask(small, 1))
before = anonymous() - small.model.weight_bytes
state = small.model.pool.most(258, CALL_ROWS)
cap = small.model.weight_bytes + 3 * state
del small
engine = plait.load(directory, memory=cap)
most = held = 0
for first in range(2, 12):
    for _ in ask(engine, first):
        most = max(most, anonymous())
        held = max(held, engine.model.weight_bytes + sum(engine.model.pool.held().values()))
print(cap, held, most - before, state)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_resident_memory_stays_under_the_cap(tmp_path):
    """A small model with 128 KiB of rows a token: prompts that have nothing in common fill the store to the cap."""
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 64,
        "vocab_size": 200,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    from plait.cli.main import _status

    assert _status(["random", str(tmp_path / "config.json"), "-o", str(tmp_path / "model")]) == 0
    done = subprocess.run(
        [sys.executable, "-c", _RESIDENT, str(tmp_path / "model")],
        # Large pages, as the command line has them (`plait.runtime`): without them the allocator keeps more.
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "THP_MEM_ALLOC_ENABLE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    cap, held, resident, state = map(int, done.stdout.split())
    assert state == 40 * 2**20
    assert 0.8 * cap < held <= cap
    # Scratch, and what an allocator keeps of what was freed: less than two of the eleven prompts' states.
    assert held - 2**22 < resident <= cap + 1.9 * state


def test_random_weights_have_the_planned_shapes():
    """The plan's source of shapes gives what a source of values gives."""
    from plait.runtime.weight_plan import _Shapes

    for name in ("qwen3.5-0.8b", "gemma-3-270m"):
        blueprint = plait.blueprint(name)
        shapes, values = _Shapes(blueprint), RandomWeights(blueprint, 0)
        assert shapes.roles == values.roles
        role = next(role for role in shapes.roles if role.endswith("final_norm"))
        assert shapes.dense(role, torch.float32).shape == values.dense(role, torch.float32).shape
