"""Accounts of the published sigmoid-routed models: parameters, what they remember, and the catalogue's entries."""

from __future__ import annotations

import pytest
from configs import read
from routed_configs import glm_5

import plait
from plait.account.memory import memory
from plait.account.parameters import parameters, parameters_of
from plait.blueprint.catalog import entry
from plait.blueprint.check import not_run
from plait.blueprint.families import family
from plait.blueprint.source import open_model
from plait.blueprint.spec import Attention, Blueprint, LatentAttention, Mixture
from plait.blueprint.state import Alias, Rows, WindowRows, laws

# (in the file, used, active, prediction layers, copies of embedding and head, router biases, block scales): totals of
# the files that the publishers' pages state; None where none is stated.
COUNTS = {
    "deepseek-v3": (684489845504, 671026404352, 37552282624, 11610067968, 1853358080, 15104, 41540496),
    "deepseek-v3.2": (685355329792, 671877929216, 38403807488, 11624027392, 1853358080, 15104, 41591584),
    "glm-4.5": (358337791296, 352797814784, 33632251904, 3988069632, 1551892480, 14400, 0),
    "glm-4.5-air": (110468824832, 106852245504, 13424123904, 2375059456, 1241513984, 5888, 0),
    "glm-5": (753864139008, 743911199232, 41784709632, 9952920320, 0, 19456, 0),
    "mimo-v2-flash": (None, 308778768832, 15445924288, 987820224, 0, 12032, None),
    "minimax-m2": (228689764864, 228689748992, 11030537216, 0, 0, 15872, 13880064),
}
MIB = 2**20


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name: str) -> None:
    in_file, used, active, mtp, duplicates, router_bias, scales = COUNTS[name]
    found = parameters_of(open_model(name))
    beyond = found.beyond
    assert (found.used, found.active, beyond.mtp) == (used, active, mtp)
    assert (beyond.duplicates, beyond.router_bias) == (duplicates, router_bias)
    assert in_file is None or found.in_file == in_file
    assert scales is None or beyond.fp8_scales == scales
    assert found.in_file == used + mtp + duplicates + router_bias


@pytest.mark.parametrize("name", COUNTS)
def test_entries_are_read_whole(name: str) -> None:
    source, known = open_model(name), entry(name)
    assert known is not None and known.name == name
    assert source.coverage.unknown == ()
    blueprint = source.blueprint
    # Keys that are not read say nothing about the architecture, and an entry need not repeat them.
    assert len(source.coverage.used) > 20
    assert not_run(blueprint) == ()
    module = family(blueprint.family)
    assert module.REFERENCE.startswith("transformers 5.24 models/")
    roles = [role for binding in module.layout(blueprint).bindings for role in binding.roles]
    assert len(roles) == len(set(roles))


def per_token(blueprint: Blueprint) -> int:
    """Elements that each token adds."""
    return sum(part.elements for item in laws(blueprint) if isinstance(item.law, Rows) for part in item.law.parts)


def test_latent_attention_remembers_one_latent_and_one_rotated_key() -> None:
    assert per_token(plait.blueprint("deepseek-v3")) == 61 * 576
    assert per_token(plait.blueprint("deepseek-v3.2")) == 61 * (576 + 128)
    assert per_token(plait.blueprint("glm-5")) == 78 * (576 + 128)
    found = memory(plait.blueprint("deepseek-v3.2"), 1000, kv_format="bf16")
    assert found.per_token_bytes == 2 * 61 * 704
    assert found.categories["indexer"].need_bytes == 2 * 61 * 128 * 1000


def test_a_layer_that_shares_a_choice_keeps_no_index_keys() -> None:
    """61 layers could keep 128 numbers a token each; a shared layer keeps none, nor has it weights."""
    shared, own = (read({**glm_5(), "indexer_types": kinds}) for kinds in (["full"] + ["shared"] * 3, ["full"] * 4))
    index = 8
    assert per_token(own) - per_token(shared) == 3 * index
    assert [item.law for item in laws(shared) if isinstance(item.law, Alias)] == [Alias(0)] * 3
    weights = 3 * index * 12 + index * 32 + 2 * index + 3 * 32
    assert parameters(own).used - parameters(shared).used == 3 * weights


def test_mimo_at_262144_tokens() -> None:
    """9 full layers of 4 KV heads and 39 windows of 8, keys of 192 and values of 128, two bytes each."""
    blueprint = plait.blueprint("mimo-v2-flash")
    full = [item for item in laws(blueprint) if isinstance(item.law, Rows)]
    windows = [item for item in laws(blueprint) if isinstance(item.law, WindowRows)]
    assert (len(full), len(windows)) == (9, 39)
    assert [item.layer for item in full] == [0, 5, 11, 17, 23, 29, 35, 41, 47]
    sizes = {"key": 0, "value": 0}
    for item in full:
        assert isinstance(item.law, Rows)
        for part in item.law.parts:
            sizes[part.name] += 2 * part.elements * 262_144
    assert sizes == {"key": 3456 * MIB, "value": 2304 * MIB}
    rows = 2 * sum(part.elements for item in windows for part in item.law.parts)
    # 4352 cells are what llama.cpp keeps of the windows, 262,144 what it keeps without them.
    assert (rows * 4352, rows * 262_144) == (828.75 * MIB, 49_920 * MIB)
    assert {item.law.window for item in windows if isinstance(item.law, WindowRows)} == {129}


def test_shapes_that_are_easy_to_get_wrong() -> None:
    glm, mimo, minimax = (plait.blueprint(name) for name in ("glm-5", "mimo-v2-flash", "minimax-m2"))
    latent = glm.layers[5].mixer
    assert isinstance(latent, LatentAttention) and latent.indexer is not None
    assert (latent.nope_dim, latent.rope_dim, latent.v_dim, latent.heads) == (192, 64, 256, 64)
    assert (latent.indexer.heads, latent.indexer.dim, latent.indexer.top_k) == (32, 128, 2048)
    assert (latent.indexer.rope.pairing, latent.indexer.rope.start, latent.indexer.rope.rotated) == ("adjacent", 0, 64)
    assert (latent.latent_norm.eps, glm.final_norm.eps) == (1e-6, 1e-5)
    window = mimo.layers[1].mixer
    assert isinstance(window, Attention) and window.rope is not None and window.rope.rotated == 64
    full = minimax.layers[0].mixer
    assert isinstance(full, Attention) and full.rope is not None
    assert (full.rope.rotated, full.qk_dim, full.window) == (64, 128, None)
    part = minimax.layers[0].feed_forward
    assert isinstance(part, Mixture) and part.width == 1536
    air = plait.blueprint("glm-4.5-air")
    mixer = air.layers[0].mixer
    assert isinstance(mixer, Attention) and mixer.qk_norm is None and mixer.qkv_bias
