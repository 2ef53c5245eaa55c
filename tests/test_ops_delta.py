"""Gated delta rule and causal convolution: each form against its reference, and bits no cut of the tokens changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.runtime.ops import convolution, delta, exact

RULES = {"by token": delta.delta_rule, "chunked": delta.delta_rule_chunked}
# Around the kernel, around a chunk of 64, around two of them.
LENGTHS = (1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 150)
HEADS = ((1, 1), (3, 1), (2, 2), (2, 3))


def inputs(n, key_heads, repeats, key_dim, value_dim, *, seed=0, dtype=torch.float32):
    """Queries, keys, values, log decay, beta and a state, as a layer makes them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads = key_heads * repeats
    q = delta.l2_normalise(normal(n, key_heads, key_dim), 1e-6) * key_dim**-0.5
    k = delta.l2_normalise(normal(n, key_heads, key_dim), 1e-6)
    # Decays from nearly none to nearly everything within a token.
    log_decay = -torch.exp(2 * normal(n, heads) - 2)
    values = (q, k, normal(n, heads, value_dim), log_decay, torch.sigmoid(normal(n, heads)))
    return tuple(x.to(dtype) for x in values), normal(heads, key_dim, value_dim).to(dtype)


def run(rule, parts, state, split):
    """Outputs and last state, the tokens cut into calls of the lengths `split`, each with memory of its own."""
    _, heads, value_dim = parts[2].shape
    key_dim = parts[1].shape[2]
    outs, at = [], 0
    for n in split:
        following = torch.full((heads, key_dim, value_dim), torch.nan, dtype=parts[0].dtype)
        before = None if state is None else state.clone()
        outs.append(rule(*(x[at : at + n] for x in parts), state, following))
        assert before is None or torch.equal(before, state), "the state before the call was written"
        state, at = following, at + n
    return torch.cat(outs), state


def cut(length, size):
    return [min(size, length - at) for at in range(0, length, size)]


@pytest.mark.parametrize("rule", RULES)
@given(
    n=st.sampled_from(LENGTHS),
    heads=st.sampled_from(HEADS),
    dims=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    fresh=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=30, deadline=None)
def test_each_form_is_the_recurrence(rule, n, heads, dims, fresh, seed):
    parts, state = inputs(n, *heads, *dims, seed=seed, dtype=torch.float64)
    state = None if fresh else state
    expected, last = run(delta.delta_rule_reference, parts, state, [n])
    found, following = run(RULES[rule], parts, state, [n])
    assert (found - expected).abs().max() < 1e-9 * (1 + expected.abs().max())
    assert (following - last).abs().max() < 1e-9 * (1 + last.abs().max())


@pytest.mark.parametrize("n", [1, 64, 130])
@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_the_recurrence_is_that_of_transformers(n, repeats):
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    parts, state = inputs(n, 2, repeats, 12, 10)
    q, *others = parts
    # The rule there scales the queries itself.
    batch = [x[None] for x in (q * 12**0.5, *others)]
    options = {"initial_state": state[None], "output_final_state": True}
    for function in (theirs.torch_recurrent_gated_delta_rule, theirs.torch_chunk_gated_delta_rule):
        expected, last = function(*batch, **options)
        for rule in (delta.delta_rule_reference, *RULES.values()):
            found, following = run(rule, parts, state, [n])
            assert torch.allclose(found, expected[0], rtol=0, atol=2e-5)
            assert torch.allclose(following, last[0], rtol=0, atol=2e-5)


def test_key_heads_serve_value_heads_side_by_side():
    """With one of two key heads zero, the value heads of that head alone read and write nothing."""
    (q, k, v, log_decay, beta), _ = inputs(5, 2, 3, 4, 4)
    k[:, 1] = 0
    for rule in (delta.delta_rule_reference, *RULES.values()):
        out, last = run(rule, (q, k, v, log_decay, beta), None, [5])
        assert (out[:, :3] != 0).all()
        assert (out[:, 3:] == 0).all()
        assert (last[3:] == 0).all()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 3, 5, 7), (2, 2, 16, 8), (3, 1, 10, 33), (4, 2, 64, 48)])
@pytest.mark.parametrize("fresh", [True, False])
def test_cuts_change_no_bits_of_outputs_and_state(shape, fresh):
    exact.settle()
    parts, state = inputs(200, *shape)
    state = None if fresh else state
    whole, last = run(delta.delta_rule, parts, state, [200])
    for size in (1, 2, 3, 5, 63, 64, 65, 128):
        found, following = run(delta.delta_rule, parts, state, cut(200, size))
        assert torch.equal(found, whole), f"calls of {size}"
        assert torch.equal(following, last), f"calls of {size}"


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_random_cuts_change_no_bits(data):
    n = data.draw(st.sampled_from(LENGTHS[1:]))
    shape = (*data.draw(st.sampled_from(HEADS)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40)))
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=6)))
    split = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    parts, _ = inputs(n, *shape, seed=data.draw(st.integers(0, 999)))
    whole, cut_up = run(delta.delta_rule, parts, None, [n]), run(delta.delta_rule, parts, None, split)
    assert all(torch.equal(a, b) for a, b in zip(whole, cut_up, strict=True))


def test_a_state_forgets_and_keeps_as_told():
    """Log decay 0 and beta 0 keep the state bit by bit; a log decay of -1000 leaves nothing of it."""
    (q, k, v, log_decay, beta), state = inputs(7, 2, 2, 8, 6)
    zero = torch.zeros_like(beta)
    _, last = run(delta.delta_rule, (q, k, v, zero, zero), state, [7])
    assert torch.equal(last, state)
    fresh = run(delta.delta_rule, (q, k, v, log_decay, beta), None, [7])
    log_decay = log_decay.clone()
    log_decay[0] = -1000.0
    found = run(delta.delta_rule, (q, k, v, log_decay, beta), state, [7])
    assert all(torch.equal(a, b) for a, b in zip(found, fresh, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_strong_decay_in_long_calls_stays_finite(rule):
    parts, state = inputs(150, 1, 2, 6, 6)
    strong = (*parts[:3], torch.full_like(parts[3], -80.0), parts[4])
    for x in run(RULES[rule], strong, state, [150]):
        assert torch.isfinite(x).all()


def test_l2_norm_has_eps_inside_the_root():
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert torch.allclose(delta.l2_normalise(x, 0.0), x / 5, rtol=0, atol=1e-15)
    assert torch.allclose(delta.l2_normalise(x, 11.0), x / 6, rtol=0, atol=1e-15)
    assert torch.equal(delta.l2_normalise(torch.zeros(1, 4), 1e-6), torch.zeros(1, 4))


@pytest.mark.parametrize("width", [1, 3, 32, 33, 128])
def test_norms_and_decays_keep_bits_for_any_number_of_rows(width):
    exact.settle()
    x = torch.randn(150, 2, 3, width, generator=torch.Generator().manual_seed(width))
    rates = torch.randn(150, width, generator=torch.Generator().manual_seed(1)) * 4
    bias, rate = torch.randn(width), torch.rand(width)
    whole, decays = delta.l2_normalise(x, 1e-6), delta.log_decays(rates, bias, rate)
    expected = -rate.double() * (rates.double() + bias.double()).exp().log1p()
    assert torch.allclose(decays.double(), expected, rtol=1e-5, atol=1e-6)
    for n in (1, 2, 17, 64):
        rows = range(0, 150, n)
        assert torch.equal(torch.cat([delta.l2_normalise(x[i : i + n], 1e-6) for i in rows]), whole)
        assert torch.equal(torch.cat([delta.log_decays(rates[i : i + n], bias, rate) for i in rows]), decays)


def convolved(form, x, weight, split):
    tail, outs, at = None, [], 0
    for n in split:
        following = torch.full((x.shape[1], weight.shape[0] - 1), torch.nan, dtype=x.dtype)
        outs.append(form(x[at : at + n], weight, tail, following))
        tail, at = following, at + n
    return torch.cat(outs), tail


@given(
    n=st.sampled_from(LENGTHS),
    channels=st.integers(1, 40),
    kernel=st.integers(1, 6),
    size=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
@example(n=5, channels=3, kernel=6, size=2, seed=0)  # calls shorter than the tail
@settings(max_examples=60, deadline=None)
def test_convolution(n, channels, kernel, size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, channels, generator=generator, dtype=torch.float64)
    weight = torch.randn(kernel, channels, generator=generator, dtype=torch.float64)
    padded = torch.cat((torch.zeros(kernel - 1, channels, dtype=x.dtype), x))
    expected = torch.stack([(padded[t : t + kernel] * weight).sum(0) for t in range(n)])
    for form in (convolution.convolution_reference, convolution.convolution):
        found, tail = convolved(form, x, weight, cut(n, size))
        assert torch.allclose(found, expected, rtol=0, atol=1e-9)
        assert torch.equal(tail, padded[n:].T)
    single = (x.float(), weight.float())
    whole, cut_up = (convolved(convolution.convolution, *single, split) for split in ([n], cut(n, size)))
    assert all(torch.equal(a, b) for a, b in zip(whole, cut_up, strict=True))


def test_inputs_are_rounded_to_the_tails_type_before_they_are_read():
    """In float64 with a float32 tail, too, cuts change no bits."""
    x, weight = torch.randn(20, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    tails = [torch.empty(5, 3) for _ in range(2)]
    whole = convolution.convolution(x, weight, None, tails[0])
    first = convolution.convolution(x[:6], weight, None, tails[0])
    second = convolution.convolution(x[6:], weight, tails[0], tails[1])
    assert whole.dtype == torch.float64
    assert torch.equal(torch.cat((first, second)), whole)
