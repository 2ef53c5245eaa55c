"""Latent attention and its indexer: each form against its oracle, choices against brute force and transformers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import tiny
import torch
from configs import read
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_latent import MODELS

import plait
from plait.blueprint.source import open_model
from plait.blueprint.spec import Norm
from plait.blueprint.state import SLAB
from plait.runtime.model import Model, Numbers
from plait.runtime.ops import attention, indexer, latent, linear, norm
from plait.runtime.session import Span
from plait.runtime.steps.call import Step
from plait.runtime.steps.indexer import Choose
from plait.runtime.steps.latent import AttendLatent
from plait.runtime.steps.stream import Normalise
from plait.runtime.weights import open_weights

INDEXED = [name for name in MODELS if "index_topk" in MODELS[name].settings]


def blocks_of(rows):
    """rows [m, dim] in blocks [1, SLAB, dim], the last filled up with zeros."""
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % SLAB))
    return list(padded.view(-1, 1, SLAB, rows.shape[1]))


def random_choice(n, start, generator):
    """For each position up to it some keys, one at least: bool [n, start + n]."""
    seen = torch.arange(start + n)[None] <= torch.arange(start, start + n)[:, None]
    # Runs of keys, so that whole blocks are chosen by nobody.
    runs = torch.rand(n, -(-(start + n) // 50), generator=generator).repeat_interleave(50, 1)[:, : start + n]
    chosen = seen & (runs < 0.3)
    chosen[torch.arange(n), torch.arange(start, start + n)] |= ~chosen.any(1)
    return chosen


@given(
    heads=st.integers(1, 5),
    rank=st.sampled_from([3, 16, 37]),
    dims=st.sampled_from([(1, 2, 1), (10, 8, 14), (16, 4, 16)]),
    start=st.integers(0, 150),
    n=st.integers(1, 140),
    sparse=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_absorbed_is_expanded(heads, rank, dims, start, n, sparse, seed):
    nope, rope, v_dim = dims
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, rotated, total = random(n, heads, nope), random(n, heads, rope), start + n
    latents, keys = random(total, rank), random(total, rope)
    key_up, value_up = random(heads, nope, rank) / rank**0.5, random(heads, v_dim, rank)
    chosen = random_choice(n, start, generator) if sparse else None
    expected = latent.latent_attention_reference(
        q, rotated, latents, keys, key_up, value_up, start=start, scale=0.3, chosen=chosen
    )

    def run(first, stop, dtype, **options):
        fold = latent.PerHead(tuple(linear.make_linears(part.T.to(dtype) for part in key_up)))
        unfold = latent.PerHead(tuple(linear.make_linears(value_up.to(dtype))))
        slabs = zip(blocks_of(latents.to(dtype)), blocks_of(keys.to(dtype)), strict=True)
        queries = (fold(q[first:stop].to(dtype)), rotated[first:stop].to(dtype))
        mixed = torch.empty(stop - first, heads, rank, dtype=dtype)
        wide = torch.zeros(n, -(-total // SLAB) * SLAB, dtype=torch.bool)
        if chosen is not None:
            wide[:, :total] = chosen
        attention.attention(
            queries,
            [(part, key, part) for part, key in slabs],
            start=start + first,
            first_block=0,
            scale=0.3,
            window=None,
            cap=None,
            out=mixed,
            chosen=None if chosen is None else wide[first:stop],
            **options,
        )
        return unfold(mixed)

    assert torch.allclose(run(0, n, torch.float64), expected, rtol=0, atol=1e-9)
    single = run(0, n, torch.float32)
    assert torch.allclose(single.double(), expected, rtol=0, atol=1e-3)
    cut = n // 3
    if cut:
        parts = [run(0, cut, torch.float32), run(cut, cut + 1, torch.float32), run(cut + 1, n, torch.float32)]
        assert torch.equal(torch.cat(parts), single)
    assert torch.equal(run(0, n, torch.float32, one_by_one=True), single)


def test_a_choice_of_all_keys_gives_the_bits_of_full_attention(monkeypatch):
    """And so do tiles that are kept small, as they are at long contexts."""
    torch.manual_seed(0)
    q, keys = (
        (torch.randn(90, 4, 20), torch.randn(90, 4, 8)),
        [
            (*blocks, blocks[0])
            for blocks in zip(blocks_of(torch.randn(170, 20)), blocks_of(torch.randn(170, 8)), strict=True)
        ],
    )
    seen = torch.arange(192)[None] <= torch.arange(80, 170)[:, None]

    def run(**options):
        out = torch.empty(90, 4, 20)
        attention.attention(q, keys, start=80, first_block=0, scale=0.2, window=None, cap=None, out=out, **options)
        return out

    whole = run()
    assert torch.equal(run(chosen=seen), whole)
    sizes = []
    real = attention._tile

    def counted(queries, *rest):
        sizes.append(queries[0].shape[2])
        return real(queries, *rest)

    monkeypatch.setattr(attention, "_tile", counted)
    monkeypatch.setattr(attention, "ROOM", 4 * SLAB * 3 * 5)
    assert torch.equal(run(), whole)
    assert max(sizes) == 7, "5 positions over 3 blocks, 7 over 2"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_products_per_head_keep_bits(dtype):
    torch.manual_seed(0)
    weights = (torch.randn(5, 33, 17) / 17**0.5).to(dtype)
    made = latent.PerHead(tuple(linear.make_linears(weights)))
    x = torch.randn(130, 5, 17, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    whole = made(x)
    assert whole.dtype == x.dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float64: 1e-12}[dtype]
    assert torch.allclose(whole.double(), torch.einsum("hoi,nhi->nho", weights.double(), x.double()), atol=tolerance)
    for size in (1, 2, 15, 31, 32, 33, 64):
        assert torch.equal(torch.cat([made(part) for part in x.split(size)]), whole), f"calls of {size}"


@pytest.mark.parametrize("width", [1, 12, 100, 128])
def test_layer_norm(width):
    x, weight = torch.randn(70, width, dtype=torch.float64) + 3, torch.randn(width, dtype=torch.float64)
    expected = torch.nn.functional.layer_norm(x, (width,), weight, None, 1e-6)
    assert torch.allclose(norm.layer_norm(x, weight, 1e-6), expected, rtol=0, atol=1e-9)
    single = x.float()
    whole = norm.layer_norm(single, weight.float(), 1e-6)
    for size in (1, 7, 33):
        parts = [norm.layer_norm(part, weight.float(), 1e-6) for part in single.split(size)]
        assert torch.equal(torch.cat(parts), whole)


@given(
    heads=st.sampled_from([1, 3, 9, 64]),
    dim=st.sampled_from([2, 12, 128]),
    n=st.integers(1, 64),
    m=st.integers(1, 200),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_index_scores(heads, dim, n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    q, w, k = (torch.randn(*shape, generator=generator) for shape in ((n, heads, dim), (n, heads), (m, dim)))
    exact = indexer.index_scores(q.double(), w.double(), blocks_of(k.double()))
    assert torch.allclose(exact[:, :m], indexer.index_scores_reference(q.double(), w.double(), k.double()), atol=1e-9)
    found = indexer.index_scores(q, w, blocks_of(k))
    assert torch.allclose(found.double(), exact, atol=1e-3)
    for i in {0, n // 2, n - 1}:
        assert torch.equal(indexer.index_scores(q[i : i + 1], w[i : i + 1], blocks_of(k)), found[i : i + 1])
    assert torch.equal(indexer.index_scores(q, w, blocks_of(k)[:1]), found[:, :SLAB])


def test_scores_over_many_blocks_are_made_in_groups(monkeypatch):
    q, w, k = torch.randn(7, 3, 12), torch.randn(7, 3), torch.randn(300, 12)
    whole = indexer.index_scores(q, w, blocks_of(k))
    monkeypatch.setattr(indexer, "PRODUCTS", 21 * SLAB * 2)
    assert torch.equal(indexer.index_scores(q, w, blocks_of(k)), whole)


def test_keeps_bits_is_a_real_check(monkeypatch):
    assert indexer.keeps_bits(9, 12)
    real = indexer.index_scores
    monkeypatch.setattr(indexer, "index_scores", lambda q, *rest: real(q, *rest) + (1e-7 if len(q) > 1 else 0.0))
    assert not indexer.keeps_bits(9, 12)


def by_hand(scores, start, top_k):
    """The best keys of each query, the earlier first where scores are equal."""
    return [
        set(sorted(range(start + i + 1), key=lambda j: (-row[j], j))[:top_k]) for i, row in enumerate(scores.tolist())
    ]


def sets(chosen):
    return [set(row.nonzero().flatten().tolist()) for row in chosen]


@given(
    top_k=st.sampled_from([1, 2, 16, 63, 64, 65, 100, 500]),
    start=st.integers(0, 140),
    n=st.integers(1, 130),
    levels=st.sampled_from([1, 2, 5, 10_000]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_choices_are_those_of_brute_force(top_k, start, n, levels, seed):
    """Few levels make many ties; one level makes nothing but ties."""
    generator = torch.Generator().manual_seed(seed)
    # One head and one dim: the score of a key is the key times the query, so it is known exactly.
    keys = torch.randint(0, levels, (start + n, 1), generator=generator).float()
    signs = torch.randint(0, 2, (n, 1), generator=generator).float() * 2 - 1
    scores = signs * keys.T
    expected = by_hand(scores, start, top_k)
    assert sets(indexer.choose_reference(scores, start, top_k)) == expected

    def run(first, stop, **options):
        out = torch.zeros(stop - first, -(-(start + n) // SLAB) * SLAB + SLAB, dtype=torch.bool)
        used = blocks_of(keys[: start + stop])
        ones = torch.ones(stop - first, 1, 1)
        indexer.choose(ones, signs[first:stop], used, start=start + first, top_k=top_k, out=out, **options)
        return out

    assert sets(run(0, n)) == expected
    assert sets(run(0, n, one_by_one=True)) == expected
    assert sets(torch.cat((run(0, n // 2), run(n // 2, n)))) == expected


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return {name: plait.load(tiny.save(name, tmp_path_factory.mktemp(name))) for name in MODELS}


class Recorded(Step):
    """A step whose register `target` is kept."""

    def __init__(self, step, found):
        self.step, self.found = step, found

    def __call__(self, call):
        self.step(call)
        self.found.append((self.step.held.layer, call.registers[self.step.target].clone()))


def choices(model, ids, split, monkeypatch):
    """For each layer with an own indexer the sets of keys chosen by all tokens."""
    found = []
    with monkeypatch.context() as patched:
        steps = tuple(Recorded(step, found) if isinstance(step, Choose) else step for step in model.steps)
        patched.setattr(model, "steps", steps)
        session, at = model.session(), 0
        for n in split:
            model.run([Span(session, tuple(ids[at : at + n]))], want="none")
            at += n
        session.close()
    made = {}
    for layer, chosen in found:
        made.setdefault(layer, []).extend(sets(chosen))
    return made


@pytest.mark.parametrize("name", INDEXED)
def test_choices_are_those_of_transformers(engines, name, monkeypatch):
    reference, ids = tiny.reference_model(name), tiny.tokens(170)
    top_k = MODELS[name].settings["index_topk"]
    expected, hooks = {}, []

    def keep(module, args, output):
        expected[module.layer_idx] = [{i for i in row if i <= p} for p, row in enumerate(output[0].tolist())]

    for module_name, module in reference.named_modules():
        if module_name.endswith(".indexer"):
            hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        reference(torch.tensor([ids]), use_cache=False)
    assert hooks and all(len(row) == min(p + 1, top_k) for rows in expected.values() for p, row in enumerate(rows))
    for split in ([170], [1] * 170, [top_k - 1, 2, 170 - top_k - 1]):
        assert choices(engines[name].model, ids, split, monkeypatch) == expected


def test_layers_share_the_choice_their_blueprint_names(tmp_path):
    """Not merely the last one made; and each choice is let go of after the last layer that uses it."""
    source = open_model(tiny.save("glm_moe_dsa", tmp_path))
    layers = list(source.blueprint.layers)
    mixer = layers[4].mixer
    layers[4] = replace(layers[4], mixer=replace(mixer, indexer=replace(mixer.indexer, source=0)))
    blueprint = replace(source.blueprint, layers=tuple(layers))
    made = Model(blueprint, open_weights(source), Numbers(torch.float32, torch.float32), torch.device("cpu"))
    attends = [(step.chosen, step.last) for step in made.steps if isinstance(step, AttendLatent)]
    assert attends == [
        ("chosen.0", False),
        ("chosen.0", False),
        ("chosen.2", False),
        ("chosen.2", True),
        ("chosen.0", True),
    ]
    ids = tuple(tiny.tokens(150))
    whole, parts = made.session(), made.session()
    expected = made.run([Span(whole, ids)], want="all")[0]
    found = [made.run([Span(parts, ids[a : a + 31])], want="all")[0] for a in range(0, 150, 31)]
    assert torch.equal(torch.cat(found), expected)
    usual = plait.load(tmp_path).logits(list(ids))
    assert torch.equal(expected[:70], usual[:70]), "up to top_k all keys are chosen, whoever chooses"
    assert not torch.equal(expected[70:], usual[70:])


@pytest.mark.parametrize("name", INDEXED)
def test_lengths_around_top_k_and_blocks_give_the_same_bits(engines, name):
    engine, top_k = engines[name], MODELS[name].settings["index_topk"]
    ids = tiny.tokens(200)
    whole = engine.logits(ids)
    for first in (top_k - 1, top_k, top_k + 1, SLAB - 1, SLAB, SLAB + 1, 2 * SLAB):
        for second in (1, 2, SLAB - first % SLAB):
            assert torch.equal(engine.logits(ids, [first, second, 200 - first - second]), whole)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_types_keep_the_contract(dtype, tmp_path):
    engine = plait.load(tiny.save("glm_moe_dsa", tmp_path), dtype=dtype)
    ids = tiny.tokens(110)
    whole = engine.logits(ids)
    assert torch.isfinite(whole).all()
    for size in (9, 64, 71):
        split = [min(size, 110 - at) for at in range(0, 110, size)]
        assert torch.equal(engine.logits(ids, split), whole), f"calls of {size}"


@pytest.mark.parametrize("name", MODELS)
def test_scales_and_norms_are_those_of_transformers(engines, name):
    """Both factors of YaRN, and the eps of the latents' norms, which is not the model's."""
    reference = tiny.reference_model(name)
    steps = engines[name].model.steps
    for step, theirs in zip([s for s in steps if isinstance(s, AttendLatent)], reference.model.layers, strict=True):
        assert math.isclose(step.scale, theirs.self_attn.scaling, rel_tol=1e-12)
        assert math.isclose(step.table._factor, reference.model.rotary_emb.attention_scaling, rel_tol=1e-12)
    eps = {step.source: step.eps for step in steps if isinstance(step, Normalise)}
    assert eps["l"] == theirs.self_attn.kv_a_layernorm.variance_epsilon
    if "ql" in eps:
        assert eps["ql"] == theirs.self_attn.q_a_layernorm.variance_epsilon


def test_published_scale_of_deepseek():
    """192^-0.5 times (0.1 ln 40 + 1)^2 = 1.8739."""
    mixer = plait.blueprint("deepseek-v3").layers[0].mixer
    assert math.isclose(mixer.rope.scaling.softmax_scale, 1.8739, rel_tol=1e-4)
    assert mixer.rope.scaling.attention_factor == 1.0
    assert math.isclose(mixer.scale, 192**-0.5)


def test_the_tiny_models_have_what_is_to_be_tested():
    found = {name: read(tiny.reference_model(name).config.to_dict()) for name in MODELS}
    mixers = {name: [layer.mixer for layer in blueprint.layers] for name, blueprint in found.items()}
    assert {m.rope.pairing for items in mixers.values() for m in items} == {"half", "adjacent"}
    assert {m.q_rank is None for items in mixers.values() for m in items} == {True, False}
    assert {m.bias for items in mixers.values() for m in items} == {True, False}
    assert [m.indexer.rope.pairing for m in (mixers["deepseek_v32"][0], mixers["glm_moe_dsa"][0])] == [
        "half",
        "adjacent",
    ]
    assert [m.indexer.source for m in mixers["glm_moe_dsa"]] == [None, 0, None, 2, 2]
    assert mixers["glm_moe_dsa"][0].indexer.key_norm == Norm(1e-6, bias=True, kind="layer")


@pytest.mark.parametrize("split", [[100], [1] * 100, [30, 40, 30]])
def test_scores_that_are_no_numbers_are_not_hidden(split, tmp_path):
    """A NaN in the last layer's indexer: rows that choose among more keys than they take are NaN, however split."""
    model = tiny.reference_model("deepseek_v32")
    with torch.no_grad():
        model.model.layers[-1].self_attn.indexer.wk.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path)
    logits = plait.load(tmp_path).logits(tiny.tokens(100), split)
    top_k = MODELS["deepseek_v32"].settings["index_topk"]
    assert torch.equal(logits.isnan().any(1), torch.arange(100) >= top_k)


def test_queries_that_see_no_more_than_they_take_take_all_of_it():
    """Also beside queries for which scores are made, and where a score is NaN."""
    chosen = indexer._best(torch.full((8, SLAB), torch.nan), 0, 5)
    assert torch.equal(chosen[:5, :8], torch.ones(5, 8, dtype=torch.bool).tril())
    assert not chosen[5:].any()
