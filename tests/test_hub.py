"""Models of a hub: what is asked for and what is sent along."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import configs
import pytest
from hub_server import COMMIT, Hub, put_config, shards
from test_gguf_header import ARR, F32, STR, U32, array, build, entry, key, text

from plait.account.parameters import parameters_of
from plait.blueprint.read.hub import HubId, hub_id, open_hub
from plait.blueprint.read.transport import Transport
from plait.blueprint.source import describe, open_model
from plait.blueprint.spec import Attention, FactorScaling
from plait.errors import ConfigError, ModelNotFound, UsageError


def test_a_description_costs_one_request(hub: Hub) -> None:
    put_config(hub, configs.qwen3())
    found = open_model("org/name")
    assert hub.paths() == ["/org/name/resolve/main/config.json"]
    assert found.blueprint == configs.read(configs.qwen3())
    assert (found.kind, found.path, found.blueprint.name) == ("hub", None, "name")
    assert found.hub is not None
    assert (str(found.hub.id), found.hub.commit) == ("org/name", COMMIT)


@pytest.mark.parametrize(("count", "grow"), [(1, 0), (3, 0), (1, 200_000)])
def test_counts_come_from_the_headers_alone(hub: Hub, count: int, grow: int) -> None:
    put_config(hub, configs.qwen3())
    shards(configs.qwen3(), hub, count, grow)
    found = parameters_of(open_model("org/name"))
    expected = 300 * 64 + 64 + 4 * (128 * 64 * 2 + 64 * 64 * 2 + 64 + 3 * 96 * 64 + 128)
    assert (found.in_file, found.used, found.differences) == (expected, expected, ())
    assert "safetensors" in found.counted_from
    assert found.used_bytes == 2 * expected
    ranged = [range_ for path, range_, _ in hub.asked if path.endswith(".safetensors")]
    assert None not in ranged
    assert len(ranged) == count + (grow > 0)
    assert all(COMMIT in path for path in hub.paths()[1:])


def test_large_files_stay_where_they_are(hub: Hub) -> None:
    config = {**configs.qwen3(), "vocab_size": 2**33}
    put_config(hub, config)
    header = {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [2**33, 64], "data_offsets": [0, 2**40]}}
    raw = json.dumps(header).encode().ljust(70_000)
    hub.put(f"org/name/resolve/{COMMIT}/model.safetensors", len(raw).to_bytes(8, "little") + raw, 2**40 + 70_008)
    found = parameters_of(open_model("org/name"))
    assert found.in_file == 2**39
    assert hub.sent < 100_000
    assert any("is missing" in line for line in found.differences)


def test_a_repository_without_weights_is_counted_from_its_config(hub: Hub) -> None:
    put_config(hub, configs.qwen3())
    listing = {"sha": COMMIT, "siblings": [{"rfilename": "config.json"}, {"rfilename": "pytorch_model.bin"}]}
    hub.put(f"api/models/org/name/revision/{COMMIT}", json.dumps(listing).encode())
    assert parameters_of(open_model("org/name")).counted_from == "the config alone"


def test_revisions_and_tokens(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    put_config(hub, configs.qwen3(), "refs%2Fpr%2F3")
    assert open_model("org/name@refs/pr/3").kind == "hub"
    assert hub.asked == [("/org/name/resolve/refs%2Fpr%2F3/config.json", None, "Bearer hf_secret")]


def gguf_file(
    *, padding: int = 0, extra: tuple[bytes, ...] = (), data: bytes = b"", entries: tuple[bytes, ...] = ()
) -> bytes:
    """A small Llama; `padding` tokens make the header long."""
    numbers = {"block_count": 2, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 300}
    keys = [key("general.architecture", STR, text("llama"))]
    keys += [key(f"llama.{name}", U32, struct.pack("<I", n)) for name, n in numbers.items()]
    keys.append(key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)))
    if padding:
        keys.append(key("tokenizer.ggml.tokens", ARR, array(STR, padding, text("a token of some length") * padding)))
    return build([*keys, *extra], list(entries), 0) + data


def test_a_gguf_file_by_growing_ranges(hub: Hub) -> None:
    raw = gguf_file(padding=100_000)
    assert len(raw) > 2_000_000
    hub.put("org/name/resolve/main/a/b.gguf", raw, len(raw) + 10**9)
    hub.put(f"org/name/resolve/{COMMIT}/a/b.gguf", raw, len(raw) + 10**9)
    found = open_model("org/name:a/b.gguf")
    assert found.header is not None
    assert len(found.blueprint.layers) == 2
    assert found.blueprint.vocabulary == 300
    assert len(hub.asked) > 2
    assert all(range_ is not None for _, range_, _ in hub.asked)
    assert hub.sent <= 2 * len(raw)


def test_stored_rotary_factors_are_fetched(hub: Hub) -> None:
    factors = struct.pack("<8f", *range(1, 9))
    raw = gguf_file(entries=(entry("rope_freqs.weight", (8,), 0, 0),), data=factors)
    for revision in ("main", COMMIT):
        hub.put(f"org/name/resolve/{revision}/m.gguf", raw, len(raw))
    mixer = open_model("org/name:m.gguf").blueprint.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.rope is not None
    assert mixer.rope.scaling == FactorScaling(tuple(map(float, range(1, 9))))


def put_listing(hub: Hub, *names: str) -> None:
    listing = {"sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
    hub.put("api/models/org/name/revision/main", json.dumps(listing).encode())


def test_one_of_several_gguf_files_must_be_named(hub: Hub) -> None:
    put_listing(hub, "README.md", "q4.gguf", "q8-00001-of-00002.gguf", "q8-00002-of-00002.gguf")
    with pytest.raises(ModelNotFound, match=r"2 models; name one of them as org/name:FILE.*q4\.gguf, q8-00001"):
        open_model("org/name")
    put_listing(hub, "README.md", "q4.gguf")
    hub.put(f"org/name/resolve/{COMMIT}/q4.gguf", gguf_file())
    assert open_model("org/name").blueprint.hidden == 64
    put_listing(hub, "README.md", "train.py")
    with pytest.raises(ModelNotFound, match=r"not a model: it has no config\.json and no \.gguf"):
        open_model("org/name")
    with pytest.raises(ModelNotFound, match=r"no file 'q5\.gguf'"):
        open_model("org/name:q5.gguf")


def test_parts_of_a_split_model(hub: Hub) -> None:
    def part(number: int) -> bytes:
        split = [key("split.count", U32, struct.pack("<I", 2)), key("split.no", U32, struct.pack("<I", number))]
        return gguf_file(extra=tuple(split), entries=(entry(f"t{number}", (32,), 0, 0),), data=bytes(128))

    for i, name in enumerate(("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")):
        hub.put(f"org/name/resolve/main/{name}", part(i))
        hub.put(f"org/name/resolve/{COMMIT}/{name}", part(i))
    found = open_model("org/name:m-00001-of-00002.gguf")
    assert found.header is not None
    assert list(found.header.tensors) == ["t0", "t1"]
    del hub.files[f"org/name/resolve/{COMMIT}/m-00002-of-00002.gguf"]
    with pytest.raises(ModelNotFound, match="no file 'm-00002"):
        open_model("org/name:m-00001-of-00002.gguf")


def test_what_is_here_wins(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text(json.dumps(configs.llama()))
    monkeypatch.chdir(tmp_path)
    assert open_model("org/name").kind == "directory"
    assert open_model("gemma-3-270m").kind == "catalogue"
    for name in ("no/such/model.gguf", "./org/other", "org/name/config.yaml", "orgs", "a/b/c"):
        with pytest.raises(ModelNotFound, match="no such file"):
            open_model(name)
    assert hub.asked == []


@pytest.mark.parametrize("name", ["PLAIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch, name: str, status: Any) -> None:
    monkeypatch.setenv(name, "1")
    code, out, err = status("inspect", "google/gemma-3-270m")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name} is set" in err
    assert "the catalogue describes it: gemma-3-270m" in err
    assert hub.asked == []
    with pytest.raises(ModelNotFound, match=name):
        Transport.from_environment({name: "true"})


@pytest.mark.parametrize(
    ("spelled", "found"),
    [
        ("org/name", HubId("org/name")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name@refs/pr/1:sub/x.gguf", HubId("org/name", "refs/pr/1", "sub/x.gguf")),
        ("org/name:x.gguf", HubId("org/name", "main", "x.gguf")),
        ("name", None),
        ("a/b/c", None),
        ("../name", None),
        ("org/..", None),
        ("org/name@../x", None),
        ("org/name:../x.gguf", None),
        ("org/name:x.bin", None),
        ("org/na me", None),
        ("https://host/x", None),
        ("\u00fcber/name", None),
    ],
)
def test_ids(spelled: str, found: HubId | None) -> None:
    assert hub_id(spelled) == found
    assert found is None or str(found) == spelled


@pytest.mark.parametrize("endpoint", ["hub.example", "ftp://hub.example", "https://", "https://a b", "http://[", "https://h/?q"])
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        Transport(endpoint)


def test_tokens_that_are_none() -> None:
    with pytest.raises(UsageError, match="HF_TOKEN") as caught:
        Transport(token="a\nb: c")
    assert "a\nb" not in str(caught.value)


def test_commands_on_a_hub_model(hub: Hub, status: Any) -> None:
    put_config(hub, {**configs.qwen3(), "surprise": 1})
    total = shards(configs.qwen3(), hub, 2)
    found = json.loads(status("params", "org/name", "--json")[1])
    assert (found["kind"], found["hub"], found["commit"], found["differences"]) == ("hub", "org/name", COMMIT, [])
    found = json.loads(status("memory", "org/name", "--context", "100", "--json")[1])
    assert found["weights_bytes"] == 2 * parameters_of(open_model("org/name")).used < total
    code, out, err = status("inspect", "org/name", "--coverage")
    assert (code, err) == (0, "")
    assert f"hub, org/name at {COMMIT}" in out
    assert "1 unknown" in out
    put_config(hub, {**configs.qwen3(), "hidden_size": "wide"})
    with pytest.raises(ConfigError, match=r"org/name/config\.json: key 'hidden_size'"):
        open_model("org/name")


def test_an_unknown_family_on_the_hub(hub: Hub) -> None:
    put_config(hub, {**configs.qwen3(), "model_type": "never_heard_of"})
    found = describe("org/name")
    assert found.kind == "hub"
    assert open_hub(HubId("org/name"), Transport(hub.url)).config is not None
