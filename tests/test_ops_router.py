"""Mixtures of experts: the router against its definition, the sum over experts, whole parts against transformers."""

from __future__ import annotations

import pytest
import torch
import transformers
from blueprints import layer, small
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.blueprint.spec import Attention, Both, Gated, Mixture, Norm, Router, SharedExperts
from plait.runtime.build.builder import Builder, Numbers
from plait.runtime.build.mixture import add_both, add_mixture
from plait.runtime.ops.router import route, route_reference
from plait.runtime.slabs import SlabPool
from plait.runtime.steps.call import Call
from plait.runtime.steps.mixture import Expert, Mix, Route

# So few values that most rows have ties, and no two of their sums are equal by chance.
LEVELS = st.sampled_from((-1.7, -0.4, 0.3, 1.1, 2.6))
SHIFTS = st.sampled_from((0.0, 0.23, -0.41))


@st.composite
def cases(draw):
    groups, size = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    kept = draw(st.integers(1, groups))
    router = Router(
        draw(st.sampled_from(("softmax", "sigmoid"))),
        renormalise=draw(st.booleans()),
        scale=draw(st.sampled_from((1.0, 2.5))),
        groups=groups,
        kept_groups=kept,
    )
    count = groups * size

    def numbers(values, n):
        return torch.tensor(draw(st.lists(values, min_size=n, max_size=n)), dtype=torch.float64)

    n = draw(st.integers(1, 6))
    bias = numbers(SHIFTS, count) if draw(st.booleans()) else None
    factors = numbers(LEVELS, count) if draw(st.booleans()) else None
    return numbers(LEVELS, n * count).view(n, count), draw(st.integers(1, kept * size)), router, bias, factors


@given(case=cases())
@settings(max_examples=200, deadline=None)
def test_the_router_is_its_definition(case):
    experts, weights = route(*case)
    expected, expected_weights = route_reference(*case)
    assert torch.equal(experts, expected)
    assert torch.allclose(weights, expected_weights, rtol=0, atol=1e-12)
    single = [route(case[0][i : i + 1], *case[1:]) for i in range(case[0].shape[0])]
    assert torch.equal(torch.cat([e for e, _ in single]), experts)
    assert torch.equal(torch.cat([w for _, w in single]), weights)


def test_a_choice_by_hand():
    """Two of four groups, three experts: the best expert of all stands in a group that is not kept."""
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.5, 0.4, 0.7, 0.2, 0.3]], dtype=torch.float64)
    bias = torch.tensor([0.0, 0, 0, 0, 0.0, 0.2, 0, 0], dtype=torch.float64)
    router = Router("sigmoid", renormalise=True, scale=2.0, selection_bias=True, groups=4, kept_groups=2)
    for function in (route, route_reference):
        experts, weights = function(scores.logit(), 3, router, bias)
        # Sums of the groups: 1.0, 1.1, 1.3, 0.5. The bias has no part in the weights.
        assert experts.tolist() == [[2, 3, 5]]
        expected = torch.tensor([[0.6, 0.5, 0.7]], dtype=torch.float64) * 2 / 1.8
        assert torch.allclose(weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 7, 128, 257])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_ties_go_to_the_lowest_expert(count, scores):
    active = min(count, 5)
    experts, weights = route(torch.full((3, count), 0.7), active, Router(scores, renormalise=True))
    assert experts.tolist() == [list(range(active))] * 3
    assert torch.allclose(weights, torch.full((3, active), 1 / active))


def test_ties_go_to_the_lowest_group():
    experts, _ = route(torch.zeros(1, 12), 4, Router("sigmoid", True, groups=4, kept_groups=2))
    assert experts.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("router", [Router("softmax", True), Router("sigmoid", True, 2.5, True, 4, 2)], ids=str)
@pytest.mark.parametrize(("count", "active"), [(8, 2), (60, 6), (256, 8)])
def test_a_row_is_routed_alike_in_any_call(router, count, active):
    generator = torch.Generator().manual_seed(count)
    logits, bias = torch.randn(130, count, generator=generator) * 4, torch.randn(count, generator=generator)
    whole = route(logits, active, router, bias)
    for n in (1, 2, 3, 15, 16, 31, 33, 64, 65):
        parts = [route(logits[at : at + n], active, router, bias) for at in range(0, 130, n)]
        for index, expected in enumerate(whole):
            assert torch.equal(torch.cat([part[index] for part in parts]), expected), f"calls of {n} rows"


def test_scores_that_underflow_give_no_nan():
    experts, weights = route(torch.full((2, 6), -200.0), 3, Router("sigmoid", renormalise=True))
    assert experts.tolist() == [[0, 1, 2]] * 2
    assert weights.tolist() == [[0.0] * 3] * 2


def called(**registers: Tensor) -> Call:
    """A call with nothing but its registers."""
    return Call((), torch.empty(0), registers=registers)


class Counted:
    """An expert that multiplies by a number and keeps what it was given."""

    def __init__(self, factor: float):
        self.factor, self.seen = factor, []

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return x * self.factor


def mixed(x: Tensor, experts: list[list[int]], weights: Tensor, table, y: Tensor | None = None) -> Tensor:
    registers = {} if y is None else {"y": y}
    call = called(x=x, experts=torch.tensor(experts), weights=weights, **registers)
    Mix(tuple(table), joins=y is not None)(call)
    return call.registers["y"]


@given(data=st.data(), n=st.integers(1, 40), count=st.integers(1, 12), seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_a_token_visits_its_experts_and_no_expert_works_unasked(data, n, count, seed):
    active = data.draw(st.integers(1, count))
    choice = st.lists(st.integers(0, count - 1), min_size=active, max_size=active, unique=True).map(sorted)
    experts = data.draw(st.lists(choice, min_size=n, max_size=n))
    generator = torch.Generator().manual_seed(seed)
    x, weights = torch.randn(n, 5, generator=generator), torch.randn(n, active, generator=generator)
    table = [Counted(expert + 0.5) for expert in range(count)]
    found = mixed(x, experts, weights, table)
    expected = torch.stack(
        [sum(x[i].double() * (e + 0.5) * w for e, w in zip(experts[i], weights[i], strict=True)) for i in range(n)]
    )
    assert torch.allclose(found.double(), expected, atol=1e-4)
    for number, expert in enumerate(table):
        visitors = [i for i in range(n) if number in experts[i]]
        assert len(expert.seen) == bool(visitors)
        assert not visitors or torch.equal(expert.seen[0], x[visitors])
    for at in range(n):
        assert torch.equal(mixed(x[at : at + 1], [experts[at]], weights[at : at + 1], table), found[at : at + 1])


def test_all_tokens_may_choose_one_expert():
    x, table = torch.randn(70, 4), [Counted(float(i)) for i in range(9)]
    assert torch.equal(mixed(x, [[7]] * 70, torch.ones(70, 1), table), x * 7)
    assert [len(expert.seen) for expert in table] == [0] * 7 + [1, 0]


@pytest.mark.parametrize(("factors", "expected"), [((1e8, 1.0, -1e8), 0.0), ((1e8, -1e8, 1.0), 1.0)])
def test_sums_run_from_the_lowest_expert_and_shared_ones_come_last(factors, expected):
    """1e8 + 1 is 1e8 in float32."""
    x, weights, table = torch.ones(1, 3), torch.ones(1, 3), [Counted(f) for f in factors]
    assert mixed(x, [[0, 1, 2]], weights, table).tolist() == [[expected] * 3]
    assert mixed(x, [[0, 1, 2]], weights, table, y=x).tolist() == [[expected + 1] * 3]


class Given:
    """Weights by role from a dictionary, as a builder asks for them; counts what is read of each."""

    def __init__(self, weights: dict[str, Tensor]):
        self.weights, self.roles, self.whole = weights, tuple(weights), []

    def dense(self, role: str, dtype: torch.dtype) -> Tensor:
        self.whole.append(role)
        return self.weights[role].detach().to(dtype).clone()

    def dense_at(self, role: str, index: int, dtype: torch.dtype) -> Tensor:
        return self.weights[role][index].detach().to(dtype).clone()


def ours(part: Mixture | Both, weights: dict[str, Tensor], hidden: int, dtype=torch.float32):
    """(a function h, x -> y of the steps of a part, the builder)."""
    blueprint = small(layer(Attention(1, 1, 8, 8, 1.0), width=8), hidden=hidden)
    device = torch.device("cpu")
    given_weights = Given({f"part.{role}": weight for role, weight in weights.items()})
    build = Builder(blueprint, given_weights, Numbers(dtype, dtype), device, SlabPool(blueprint, dtype, device))
    (add_both if isinstance(part, Both) else add_mixture)(build, "part", part)

    def run(h: Tensor, x: Tensor) -> Tensor:
        call = called(h=h, x=x)
        with torch.inference_mode():
            for step in build.steps:
                step(call)
        return call.registers["y"]

    return run, build


def randomised(module):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            scale = 0.3 if value.ndim == 1 else value.shape[-1] ** -0.5
            value.copy_(torch.randn(value.shape, generator=generator) * scale + (value.ndim == 1))
    return module.eval()


def experts_of(module, width: int) -> dict[str, Tensor]:
    gate, up = module.gate_up_proj.split(width, 1)
    return {"experts.gate": gate, "experts.up": up, "experts.down": module.down_proj}


def agree(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() < 1e-5 * (expected.max() - expected.min())


def split_equal(run, h: Tensor, x: Tensor) -> Tensor:
    """What `run` gives in one call, after calls of several sizes gave the same bits."""
    whole = run(h, x)
    for n in (1, 2, 7, 16, 33, 64):
        parts = [run(h[at : at + n], x[at : at + n]) for at in range(0, x.shape[0], n)]
        assert torch.equal(torch.cat(parts), whole), f"calls of {n} rows"
    return whole


@pytest.mark.parametrize("renormalise", [True, False])
def test_a_gated_shared_expert_as_in_qwen3_next(renormalise):
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

    config = transformers.Qwen3NextConfig(
        hidden_size=36,
        num_experts=11,
        num_experts_per_tok=3,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=28,
        norm_topk_prob=renormalise,
    )
    config._experts_implementation = "eager"
    block = randomised(Qwen3NextSparseMoeBlock(config))
    shared = block.shared_expert
    weights = {
        "router": block.gate.weight,
        **experts_of(block.experts, 20),
        "shared.gate": shared.gate_proj.weight,
        "shared.up": shared.up_proj.weight,
        "shared.down": shared.down_proj.weight,
        "shared_gate": block.shared_expert_gate.weight,
    }
    part = Mixture(11, 3, 20, "silu", Router("softmax", renormalise), SharedExperts(1, 28, gated=True))
    run, build = ours(part, weights, 36)
    x = torch.randn(90, 36)
    with torch.no_grad():
        agree(split_equal(run, x, x), block(x[None])[0])
    assert not any("experts" in role for role in build.weights.whole), "experts are read one by one"
    assert build.bytes >= 4 * sum(weight.numel() for weight in weights.values())


def test_groups_bias_and_shared_experts_as_in_deepseek_v3():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = transformers.DeepseekV3Config(
        hidden_size=36,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        moe_intermediate_size=20,
        n_shared_experts=2,
        routed_scaling_factor=2.5,
    )
    config._experts_implementation = "eager"
    block = randomised(DeepseekV3MoE(config))
    shared = block.shared_experts
    weights = {
        "router": block.gate.weight,
        "router_bias": block.gate.e_score_correction_bias,
        **experts_of(block.experts, 20),
        "shared.gate": shared.gate_proj.weight,
        "shared.up": shared.up_proj.weight,
        "shared.down": shared.down_proj.weight,
    }
    router = Router("sigmoid", True, 2.5, selection_bias=True, groups=4, kept_groups=2)
    run, _ = ours(Mixture(16, 4, 20, "silu", router, SharedExperts(2, 40, gated=False)), weights, 36)
    x = torch.randn(90, 36)
    with torch.no_grad():
        agree(split_equal(run, x, x), block(x[None])[0])


def test_dense_and_mixture_side_by_side_as_in_gemma_4():
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextDecoderLayer

    config = transformers.Gemma4TextConfig(
        hidden_size=36,
        intermediate_size=52,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        enable_moe_block=True,
        num_experts=9,
        top_k_experts=3,
        moe_intermediate_size=20,
        hidden_size_per_layer_input=0,
    )
    config._experts_implementation = "eager"
    block = randomised(Gemma4TextDecoderLayer(config, 0))
    weights = {
        "gate": block.mlp.gate_proj.weight,
        "up": block.mlp.up_proj.weight,
        "down": block.mlp.down_proj.weight,
        "router": block.router.proj.weight,
        "router_scale": block.router.scale,
        "expert_scale": block.router.per_expert_scale,
        **experts_of(block.experts, 20),
        "dense_post_norm": block.post_feedforward_layernorm_1.weight,
        "mixture_norm": block.pre_feedforward_layernorm_2.weight,
        "mixture_post_norm": block.post_feedforward_layernorm_2.weight,
    }
    eps = config.rms_norm_eps
    router = Router("softmax", True, norm=Norm(eps, weight=False), input_factor=36**-0.5, expert_scale=True)
    mixture = Mixture(9, 3, 20, "gelu_tanh", router)
    run, _ = ours(Both(Gated(52, "gelu_tanh"), mixture, Norm(eps), Norm(eps), Norm(eps)), weights, 36)
    h = torch.randn(90, 36) * 2
    with torch.no_grad():
        x = block.pre_feedforward_layernorm(h)
        # The layer from its feed-forward part on: nothing comes from attention, and what follows is undone.
        block.self_attn.forward = lambda **_: (torch.zeros(1, 90, 36), None)
        block.post_feedforward_layernorm.forward = lambda y: y
        block.layer_scalar.fill_(1.0)
        expected = block(h[None])[0] - h
    agree(split_equal(run, h, x), expected)


def test_the_router_scores_in_the_compute_type():
    """Experts in bfloat16 and all: near scores are not rounded into ties."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        "router": torch.randn(6, 16, generator=generator).bfloat16().float(),
        "experts.gate": torch.randn(6, 8, 16, generator=generator),
        "experts.up": torch.randn(6, 8, 16, generator=generator),
        "experts.down": torch.randn(6, 16, 8, generator=generator),
    }
    run, build = ours(Mixture(6, 2, 8, "silu", Router("softmax", True)), weights, 16, torch.bfloat16)
    routing = next(step for step in build.steps if isinstance(step, Route))
    x = torch.randn(40, 16, generator=generator)
    assert torch.allclose(routing.linear(x), x @ weights["router"].T, atol=1e-5)
    assert split_equal(run, x, x).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_expert_is_its_formula_and_keeps_bits(dtype):
    gate, up, down = torch.randn(20, 36) / 6, torch.randn(20, 36) / 6, torch.randn(36, 20) / 4
    weights = {
        "router": torch.zeros(1, 36),
        "experts.gate": gate[None],
        "experts.up": up[None],
        "experts.down": down[None],
    }
    _, build = ours(Mixture(1, 1, 20, "silu", Router("softmax", True)), weights, 36, dtype)
    (expert,) = next(step for step in build.steps if isinstance(step, Mix)).experts
    assert isinstance(expert, Expert)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn(70, 36, dtype=compute)
    found = split_equal(lambda _, y: expert(y), x, x)
    wide = x.double()
    inner = torch.nn.functional.silu(wide @ gate.double().T) * (wide @ up.double().T)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float64: 1e-9}[dtype]
    assert (found.double() - inner @ down.double().T).abs().max() < tolerance
