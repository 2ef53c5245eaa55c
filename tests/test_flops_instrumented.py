"""FLOPs against counts of models that really run: transformers' eager models, and recurrences counted einsum by einsum.

An eager model multiplies the full square of scores and masks afterwards, so what it counts above the account is
exactly the masked part; every other difference is stated where it is expected.
"""

from __future__ import annotations

import math

import pytest
import tiny
import torch
from blueprints import NORM, layer, small
from configs import read
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from plait.account.flops import FlopsAccount, flops, keys_seen
from plait.blueprint.spec import (
    AltUp,
    Attention,
    Blueprint,
    Gated,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Mixture,
    PerLayerEmbeddings,
    Rope,
    Router,
)

ROPE = Rope(1e4, 4, 8, pairing="adjacent", distance=1)


def counted(model, ids: list[int], **options) -> int:
    """FLOPs of the matrix products of one forward pass."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.tensor([ids]), **options)
    return counter.get_total_flops()


def masked(blueprint: Blueprint, context: int) -> int:
    """FLOPs of the scores and values an eager model computes and hides: the full square less what is seen."""
    total = 0
    for m in (item.mixer for item in blueprint.layers):
        if isinstance(m, Attention):
            total += 2 * m.heads * (m.qk_dim + m.v_dim) * (context**2 - keys_seen(context, m.window))
        elif isinstance(m, LatentAttention):
            total += expanded(m, context**2) - absorbed(m, keys_seen(context, m.indexer and m.indexer.top_k))
            if m.indexer is not None and m.indexer.source is None:
                total += 2 * m.indexer.heads * (m.indexer.dim + 1) * (context**2 - keys_seen(context, None))
    return total


def expanded(m: LatentAttention, met: int) -> int:
    """FLOPs of scores and values of keys and values made for every head, as transformers does it."""
    return 2 * m.heads * (m.nope_dim + m.rope_dim + m.v_dim) * met


def absorbed(m: LatentAttention, met: int) -> int:
    """The same where queries meet the latents."""
    return 2 * m.heads * (2 * m.kv_rank + m.rope_dim) * met


def made_again(blueprint: Blueprint, context: int) -> int:
    """What expanding costs above the account in one decode step: keys and values of all tokens before are made anew."""
    return sum(
        2 * m.kv_rank * m.heads * (m.nope_dim + m.v_dim) * (context - 1)
        + expanded(m, context)
        - absorbed(m, context if m.indexer is None else min(context, m.indexer.top_k))
        for m in (item.mixer for item in blueprint.layers)
        if isinstance(m, LatentAttention)
    )


def delta_rules(blueprint: Blueprint, context: int, *, one_token: bool = False) -> int:
    """FLOPs transformers counts for Gated DeltaNet above the account, for the rule is written with other operations.

    Several tokens: six products for each chunk of 64, padded, and kernel - 1 convolved places too many; a triangular
    solve does not count. One token: one place too many, and the rule is written as elements, which do not count either.
    """
    found = 0
    for m in (item.mixer for item in blueprint.layers):
        if not isinstance(m, GatedDeltaNet):
            continue
        state = m.key_dim * m.value_dim
        found -= (1 if one_token else context) * 7 * m.value_heads * state
        found += 2 * m.conv_channels * m.conv_kernel * (1 if one_token else m.conv_kernel - 1)
        if not one_token:
            chunk = 2 * (64 * 64 * (2 * m.key_dim + m.value_dim) + 3 * 64 * state)
            found += -(-context // 64) * m.value_heads * chunk
    return found


def outer_products(blueprint: Blueprint, tokens: int) -> int:
    """FLOPs of AltUp's correction, an outer product that transformers writes as elements, which do not count."""
    streams = 0 if blueprint.altup is None else blueprint.altup.streams
    return tokens * len(blueprint.layers) * 2 * blueprint.hidden * streams


def merged(blueprint: Blueprint, tokens: int) -> int:
    """FLOPs of making one of all streams, which transformers does for rows too whose logits are not wanted."""
    streams = 1 if blueprint.altup is None else blueprint.altup.streams
    return tokens * 2 * blueprint.hidden**2 * (streams - 1)


@pytest.mark.parametrize("name", tiny.SETTINGS)
@pytest.mark.parametrize("context", [1, tiny.WINDOW, tiny.WINDOW + 1, 3 * tiny.WINDOW + 5])
def test_a_prefill_of_transformers(name: str, context: int) -> None:
    model = tiny.reference_model(name)
    blueprint = read(model.config.to_dict())
    found = flops(blueprint, context).prefill
    hidden = masked(blueprint, context) + delta_rules(blueprint, context)
    hidden -= outer_products(blueprint, context)
    ids = tiny.tokens(context)
    assert counted(model, ids, use_cache=False) == found.total_all_logits + hidden
    # Asked for hidden states, Gemma 4 computes all of them: else layers that reuse keys and values see one row.
    options = {"use_cache": False, "logits_to_keep": 1, "output_hidden_states": True}
    assert counted(model, ids, **options) == found.total + hidden + merged(blueprint, context - 1)


@pytest.mark.parametrize("name", tiny.SETTINGS)
@pytest.mark.parametrize("context", [2, tiny.WINDOW, tiny.WINDOW + 1, 3 * tiny.WINDOW])
def test_a_decode_step_of_transformers(name: str, context: int) -> None:
    """With a cache a single token computes no masked score: windows hold the last W keys and no more."""
    model = tiny.reference_model(name)
    blueprint = read(model.config.to_dict())
    ids = tiny.tokens(context)
    with torch.no_grad():
        cache = model(torch.tensor([ids[:-1]]), use_cache=True).past_key_values
    expected = flops(blueprint, context).decode.total + made_again(blueprint, context)
    expected += delta_rules(blueprint, context, one_token=True) - outer_products(blueprint, 1)
    assert counted(model, ids[-1:], cache=cache) == expected


def test_gemma_3n_with_everything_around_its_layers() -> None:
    """AltUp, LAuReL, per-layer embeddings, shared keys and values, sparse activations."""
    import transformers

    kinds = ["sliding_attention", "full_attention"] * 3
    config = transformers.Gemma3nTextConfig(
        vocab_size=211,
        vocab_size_per_layer_input=190,
        hidden_size=48,
        hidden_size_per_layer_input=10,
        intermediate_size=[84] * 6,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        layer_types=kinds,
        sliding_window=8,
        num_kv_shared_layers=2,
        laurel_rank=6,
        altup_num_inputs=3,
        activation_sparsity_pattern=[0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
        pad_token_id=0,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = transformers.Gemma3nForCausalLM(config).eval()
    rope = Rope(1e4, 8, 16, distance=8)

    def one(index: int) -> Layer:
        window = 8 if kinds[index] == "sliding_attention" else None
        source = index - 2 if index >= 4 else None
        mixer = Attention(4, 2, 16, 16, 1.0, window=window, rope=rope, kv_source=source)
        gated = Gated(84, "gelu_tanh", sparsity=0.95 if index < 2 else None)
        return Layer(mixer, gated, NORM, NORM, per_layer_input=True, laurel_rank=6)

    blueprint = small(
        *map(one, range(6)),
        hidden=48,
        vocabulary=211,
        altup=AltUp(streams=3, active=0, coefficient_clip=None, scale_corrected=True, router_norm=NORM),
        per_layer_embeddings=PerLayerEmbeddings(190, 10, "gelu_tanh", 1.0, 1.0, 1.0, NORM),
    )
    for context in (5, 30):
        # transformers writes AltUp's correction as elements, not as the outer product it is.
        expected = flops(blueprint, context).prefill.total_all_logits + masked(blueprint, context)
        expected -= context * 6 * 2 * 48 * 3
        assert counted(model, tiny.tokens(context, 190), use_cache=False) == expected


def test_a_mixture_of_transformers() -> None:
    import transformers

    config = transformers.Qwen3MoeConfig(
        **{key: value for key, value in tiny.SETTINGS["qwen3"].items() if key != "attention_bias"},
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=20,
        decoder_sparse_step=2,
        norm_topk_prob=True,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    mixer = Attention(6, 2, 16, 16, 0.25, rope=Rope(1e4, 8, 16, distance=8))
    dense = layer(mixer, width=84)
    mixture = Mixture(8, 3, 20, "silu", Router("softmax", True))
    blueprint = small(*[dense, Layer(mixer, mixture, NORM, NORM)] * 2, hidden=48, vocabulary=211)
    for context in (1, 33):
        expected = flops(blueprint, context).prefill.total_all_logits + masked(blueprint, context)
        assert counted(model, tiny.tokens(context), use_cache=False) == expected


class Counter:
    """Einsum and scaling that count: 2 FLOPs per multiply-add, 1 per scaled element."""

    def __init__(self) -> None:
        self.flops = 0

    def einsum(self, spec: str, *operands: Tensor) -> Tensor:
        sizes: dict[str, int] = {}
        for letters, operand in zip(spec.split("->")[0].split(","), operands, strict=True):
            sizes |= dict(zip(letters, operand.shape, strict=True))
        self.flops += 2 * math.prod(sizes.values())
        return torch.einsum(spec, *operands)

    def scale(self, state: Tensor, factor: Tensor) -> Tensor:
        self.flops += state.numel()
        return state * factor


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) / shape[-1] ** 0.5


def account_of(mixer: LatentAttention | GatedDeltaNet, context: int) -> FlopsAccount:
    return flops(small(layer(mixer)), context)


def delta_rule(count: Counter, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The recurrence of arXiv 2412.06464, one token after the other: [n, heads, dim] -> [n, heads, value dim]."""
    state = torch.zeros(*q.shape[1:], v.shape[-1], dtype=q.dtype)
    out = []
    for t in range(q.shape[0]):
        state = count.scale(state, g[t].exp()[:, None, None])
        delta = (v[t] - count.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + count.einsum("hk,hv->hkv", k[t], delta)
        out.append(count.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(out)


def test_a_gated_delta_net_counted_step_by_step() -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    torch.manual_seed(0)
    mixer = GatedDeltaNet(key_heads=2, value_heads=6, key_dim=8, value_dim=10, conv_kernel=4, output_norm=NORM)
    n, hidden, keys, values = 13, 64, 2 * 8, 6 * 10
    x = random(n, hidden)
    project, gate, out = random(2 * keys + values, hidden), random(values, hidden), random(hidden, values)
    b, a, taps = random(6, hidden), random(6, hidden), random(2 * keys + values, 4)
    count = Counter()
    mixed = count.einsum("nh,oh->no", x, project)
    padded = torch.cat([torch.zeros(3, mixed.shape[1], dtype=mixed.dtype), mixed])
    mixed = torch.stack([count.einsum("tc,ct->c", padded[t : t + 4], taps) for t in range(n)])
    mixed = torch.nn.functional.silu(mixed)
    q, k, v = mixed.split([keys, keys, values], -1)
    q, k = (part.reshape(n, 2, 8).repeat_interleave(3, 1) for part in (q, k))
    q, k = (part / part.norm(dim=-1, keepdim=True) for part in (q, k))
    g = -torch.nn.functional.softplus(count.einsum("nh,oh->no", x, a))
    beta = count.einsum("nh,oh->no", x, b).sigmoid()
    y = delta_rule(count, q * 8**-0.5, k, v.reshape(n, 6, 10), g, beta)
    y = y.flatten(1) * torch.nn.functional.silu(count.einsum("nh,oh->no", x, gate))
    count.einsum("no,ho->nh", y, out)
    assert count.flops == account_of(mixer, n).prefill.by_kind["gated_delta_net"]
    assert account_of(mixer, n).prefill.mixing == 7 * n * 6 * 8 * 10

    # The rule that was counted is the rule transformers runs.
    ours = delta_rule(Counter(), q * 8**-0.5, k, v.reshape(n, 6, 10), g, beta)
    batch = [part[None] for part in (q, k, v.reshape(n, 6, 10), g, beta)]
    theirs, _ = torch_recurrent_gated_delta_rule(*batch)
    assert torch.allclose(ours.float(), theirs[0].float(), atol=1e-5)


@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("q_rank", [None, 24])
def test_latent_attention_counted_key_by_key(q_rank: int | None, top_k: int | None) -> None:
    """Absorbed, causal, without one masked score; it gives what the expanded form gives."""
    torch.manual_seed(0)
    indexer = None if top_k is None else Indexer(3, 16, top_k, ROPE, NORM)
    heads, rank, nope, rope, v_dim, hidden, n = 4, 20, 12, 8, 10, 64, 11
    mixer = LatentAttention(heads, q_rank, rank, nope, rope, v_dim, 0.2, ROPE, NORM, indexer=indexer)
    width = nope + rope
    x = random(n, hidden)
    down, up = random(rank + rope, hidden), random(heads, nope + v_dim, rank)
    query = random(heads * width, hidden if q_rank is None else q_rank)
    output = random(hidden, heads, v_dim)
    scored = Counter()
    index_query, index_key = random(3 * 16, query.shape[1]), random(16, hidden)
    index_weight = random(3, hidden)
    count = Counter()
    source = x if q_rank is None else count.einsum("nh,oh->no", x, random(q_rank, hidden))
    q = count.einsum("nh,oh->no", source, query).reshape(n, heads, width)
    rows = count.einsum("nh,oh->no", x, down)
    latents, keys = rows.split([rank, rope], -1)
    absorbed = count.einsum("nhd,hdr->nhr", q[..., :nope], up[:, :nope])
    if indexer is not None:
        iq = scored.einsum("nh,oh->no", source, index_query).reshape(n, 3, 16)
        ik, iw = scored.einsum("nh,oh->no", x, index_key), scored.einsum("nh,oh->no", x, index_weight)
    for p in range(n):
        seen = torch.arange(p + 1)
        if indexer is not None:
            match = scored.einsum("hd,kd->hk", iq[p], ik[: p + 1]).relu()
            best = scored.einsum("h,hk->k", iw[p], match)
            seen = best.topk(min(p + 1, indexer.top_k)).indices.sort().values
        both = torch.cat([absorbed[p], q[p, :, nope:]], -1)
        weights = (count.einsum("hr,kr->hk", both, rows[seen]) * 0.2).softmax(-1)
        mixed = count.einsum("hk,kr->hr", weights, latents[seen])
        values = count.einsum("hr,hdr->hd", mixed, up[:, nope:])
        count.einsum("hd,ohd->o", values, output)
        # The expanded form: keys and values of every head made from the latents.
        whole = torch.einsum("kr,hdr->khd", latents[seen], up)
        full = torch.einsum("hd,khd->hk", q[p, :, :nope], whole[..., :nope])
        full = ((full + q[p, :, nope:] @ keys[seen].T) * 0.2).softmax(-1)
        assert torch.allclose(values, torch.einsum("hk,khd->hd", full, whole[..., nope:]), atol=1e-12)
    found = account_of(mixer, n).prefill.by_kind
    assert count.flops == found["latent_attention" if indexer is None else "sparse_attention"]
    assert scored.flops == found.get("indexer", 0)
