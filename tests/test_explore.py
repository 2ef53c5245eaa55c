"""The page's data: its closed forms give the figures of the account, and nothing in it reaches out."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from configs import gemma3
from explore_site import catalogue_page, data_of, models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_blueprints import blueprints

from plait.account.flops import conventions, flops, keys_seen
from plait.account.memory import format_weights, memory, weights_bytes
from plait.account.parameters import parameters
from plait.account.speed import ASSUMPTIONS, decode_traffic, experts_touched, prefill_traffic
from plait.blueprint.catalog import entry, names
from plait.blueprint.source import open_entry
from plait.blueprint.spec import Blueprint
from plait.blueprint.state import SLAB, SLACK, laws
from plait.explore.forms import KV, WEIGHTS, flops_form, integer, reads_form, state_form, weights_forms
from plait.explore.pictures import pictures
from plait.explore.sentences import CHINESE
from plait.explore.site import listed
from plait.explore.words import LANGUAGES, WORDS

CONTEXTS = st.one_of(st.integers(1, 5000), st.integers(1, 2**21), st.integers(1, 2**40))
PAGE = files("plait.explore") / "page"


@cache
def blueprint(name: str) -> Blueprint:
    found = entry(name)
    assert found is not None
    return open_entry(found).blueprint


def seen(context: int, limit: int | None) -> int:
    return context if limit is None else min(context, limit)


def state_of(form: dict[str, Any], f: int, context: int, batch: int) -> dict[str, tuple[int, int]]:
    """(need, reserved) by category, from the closed form alone."""
    found: dict[str, tuple[int, int]] = {}

    def add(category: str, need: int, reserved: int) -> None:
        before = found.get(category, (0, 0))
        found[category] = (before[0] + batch * need, before[1] + batch * reserved)

    for category, sizes in form["fixed"]:
        add(category, int(sizes[f]), int(sizes[f]))
    for category, window, sizes in form["growing"]:
        start = 0 if window is None else max(0, context - window + 1 - SLACK)
        slabs = (context - 1) // SLAB - start // SLAB + 1
        add(category, seen(context, window) * int(sizes[f]), slabs * SLAB * int(sizes[f]))
    return found


def fetched(form: dict[str, Any], tokens: int) -> int:
    total = int(form["whole"])
    total += sum(int(size) * min(tokens, rows) // rows for size, rows in form["tables"])
    for size, every, active, times in form["experts"]:
        total += times * round(experts_touched(every, active, tokens) * int(size) / every)
    return total


def same_state(form: dict[str, Any], blueprint: Blueprint, context: int, batch: int, kv: str, textbook: bool) -> None:
    account = memory(blueprint, context, batch=batch, kv_format=kv, kv_layout=textbook, weights=0)
    found = state_of(form, KV.index(kv), context, batch)
    expected = {key: (item.need_bytes, item.reserved_bytes) for key, item in account.categories.items()}
    assert found == {key: pair for key, pair in expected.items() if key in found}
    assert {key for key, pair in expected.items() if any(pair)} <= set(found)


def same_flops(form: dict[str, Any], blueprint: Blueprint, context: int, batch: int) -> None:
    account = flops(blueprint, context, batch=batch)
    for phase, last in ((account.prefill, False), (account.decode, True)):
        tokens = 1 if last else context
        found = {kind: batch * int(n) * (1 if kind == "head" else tokens) for kind, n in form["products"].items()}
        for kind, limit, key, token in form["mixing"]:
            keys = seen(context, limit) if last else keys_seen(context, limit)
            found[kind] = found.get(kind, 0) + batch * (int(key) * keys + int(token) * tokens)
        assert {kind: n for kind, n in found.items() if n} == dict(phase.by_kind)
    assert form["layers"] == dict(account.layers)


def same_traffic(
    reads: dict[str, Any],
    form: dict[str, Any],
    blueprint: Blueprint,
    context: int,
    batch: int,
    kv: str,
    weights: str | None,
) -> None:
    sizes = format_weights(blueprint, weights)
    decode = decode_traffic(blueprint, context, sizes, batch=batch, kv_format=kv)
    prefill = prefill_traffic(blueprint, context, sizes, batch=batch, kv_format=kv)
    f = KV.index(kv)
    snapshots = int(reads["snapshots"][f])
    rows = sum(seen(context, limit) * int(each[f]) for limit, each in reads["rows"])
    assert decode.state_read_bytes == batch * (rows + snapshots)
    assert decode.state_written_bytes == batch * snapshots
    # Where experts are shared by chance the account takes the quotient as a fraction, this takes it as a float.
    assert fetched(form, batch) == pytest.approx(decode.weights_bytes, rel=1e-12)
    assert fetched(form, batch * context) == pytest.approx(prefill.weights_bytes, rel=1e-12)
    if not form["experts"]:
        assert fetched(form, batch) == decode.weights_bytes


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(names()),
    CONTEXTS,
    st.integers(1, 300),
    st.sampled_from(KV),
    st.booleans(),
    st.sampled_from((None, *WEIGHTS)),
)
def test_forms_of_the_catalogue_are_its_account(
    name: str, context: int, batch: int, kv: str, textbook: bool, weights: str | None
) -> None:
    model, known = models()[name], blueprint(name)
    state = model["state"]["kv"] if textbook and model["state"]["kv"] is not None else model["state"]["runtime"]
    same_state(state, known, context, batch, kv, textbook)
    same_flops(model["flops"], known, context, batch)
    same_traffic(model["reads"], model["fetched"][weights or "stored"], known, context, batch, kv, weights)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(blueprints(), CONTEXTS, st.integers(1, 300), st.sampled_from(KV), st.booleans(), st.sampled_from(WEIGHTS))
def test_forms_of_any_model_are_its_account(
    found: Blueprint, context: int, batch: int, kv: str, textbook: bool, weights: str
) -> None:
    same_state(state_form(laws(found, kv_layout=textbook)), found, context, batch, kv, textbook)
    same_flops(flops_form(found), found, context, batch)
    total, form = (forms[weights] for forms in weights_forms(found))
    same_traffic(reads_form(found), form, found, context, batch, kv, weights)
    account = memory(found, 1, weights_format=weights)
    assert [int(n) for n in total] == [account.weights_bytes, account.table_bytes]


@pytest.mark.parametrize("name", names())
def test_weights_are_the_account_s(name: str) -> None:
    found = models()[name]["weights"]
    assert set(found) == {"stored", *WEIGHTS}
    assert int(found["stored"][0]) == weights_bytes(blueprint(name))
    for form in ("f32", "bf16", "q8_0", "q4_k", "mxfp4"):
        account = memory(blueprint(name), 1, weights_format=form)
        assert [int(n) for n in found[form]] == [account.weights_bytes, account.table_bytes]


def test_all_of_the_catalogue_is_there() -> None:
    assert tuple(models()) == names()
    assert all(model["known"] and not model["given"] and model["named"] == model["id"] for model in models().values())


def test_numbers_of_json_stay_exact() -> None:
    assert integer(2**53 - 1) == 2**53 - 1
    assert integer(2**53) == str(2**53)


def test_layers_are_counted_once() -> None:
    for name, model in models().items():
        assert sum(n for _, _, n in model["layers"]) == len(blueprint(name).layers)


def test_pictures_unpack() -> None:
    for name in ("gemma-3-270m", "deepseek-v3.2"):
        packed = zlib.decompress(b64decode(models()[name]["pictures"])).decode()
        assert packed.count("<svg") == 8
        assert packed.startswith('{"model": {"light.en": "<svg')


def test_pictures_state_the_page_s_parameters() -> None:
    """Where files were counted, the picture has their count and not the config's."""
    given = blueprint("smollm2-135m")
    account = replace(parameters(given), in_file=7 * 10**9, differences=("more in the file",))
    packed = zlib.decompress(b64decode(pictures(given, account))).decode()
    assert packed.count(">7B<") == 4


def test_names_that_show_alike_have_ids_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / f"{mark}name" / "config.json" for mark in ("\u202e", "\u2066")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(json.dumps(gemma3()))
    found = [item.id for item in listed([str(path) for path in paths]) if item.given]
    assert found == ["\ufffdname", "\ufffdname (2)"]


def test_first_picks_differ_in_kind() -> None:
    picked = data_of(catalogue_page())["pick"]
    assert 2 <= len(picked) <= 4
    assert len({str(models()[name]["mixers"]) for name in picked}) == len(picked)


def test_page_is_small_and_reaches_nowhere() -> None:
    page = catalogue_page()
    assert len(page.encode()) < 3_000_000
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", markup)
    assert "@import" not in markup and not re.search(r"url\((?!data:)", markup)
    assert "connect-src" not in markup and "default-src 'none'" in markup


def test_policy_names_the_script() -> None:
    page = catalogue_page()
    script = page.rsplit("<script>", 1)[1].split("</script>", 1)[0]
    assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in page


def _scripts() -> str:
    return "\n".join(item.read_text(encoding="utf-8") for item in PAGE.iterdir() if item.name.endswith(".js"))


def test_every_word_is_there_and_used() -> None:
    text = _scripts()
    literal = set(re.findall(r'\bt\("([^"]+)"', text)) | set(re.findall(r'"(key [a-z]+)"', text))
    assert literal <= set(WORDS)
    begun = set(re.findall(r"\bt\(`([a-z ]+ )\$\{", text)) | {"view ", "phase "}
    chosen = {"fits budget", "over budget", "ascending", "descending", "prefill", "decode", "total"}
    ended = {f"chart {name} note" for name in ("memory", "decode", "prefill", "flops")}
    for key in WORDS:
        assert key in literal | chosen | ended or any(key.startswith(start) for start in begun), key


@pytest.mark.parametrize("key", sorted(WORDS))
def test_languages_fill_the_same_braces(key: str) -> None:
    texts = WORDS[key]
    assert len(texts) == len(LANGUAGES) and all(texts)
    assert len({frozenset(re.findall(r"\{(\w+)\}", text)) for text in texts}) == 1


def test_sentences_of_the_account_are_translated() -> None:
    assert set(CHINESE) == {*conventions(), *ASSUMPTIONS}


def test_page_s_files_are_short() -> None:
    for item in PAGE.iterdir():
        assert len(item.read_text(encoding="utf-8").splitlines()) < 400, item.name


@pytest.mark.parametrize("library", ["preact", "htm", "uplot", "panzoom"])
def test_libraries_come_with_their_licences(library: str) -> None:
    text = (files("plait.explore") / "vendor" / f"{library}.LICENSE.txt").read_text(encoding="utf-8")
    assert "Copyright" in text
    assert any(text == licence for _, licence in data_of(catalogue_page())["licences"])
