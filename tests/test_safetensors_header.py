"""The safetensors header reader and checkpoint directories: agreement with the library, strictness in everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from plait.blueprint.read.safetensors import read_checkpoint, read_safetensors
from plait.errors import FileFormatError, ModelNotFound, UnsupportedError


def raw_file(header: object, data: int, *, encoded: bytes | None = None, length: int | None = None) -> bytes:
    text = json.dumps(header).encode() if encoded is None else encoded
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


def place(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = raw_file({"__metadata__": {"format": "pt"}, "w": place([2, 3], 0, 24), "b": place([3], 24, 30, "BF16")}, 30)


@pytest.fixture(scope="module")
def put(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Path]:
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"

    def write(raw: bytes) -> Path:
        path.write_bytes(raw)
        return path

    return write


def test_reads_places(put: Callable[[bytes], Path]) -> None:
    path = put(GOOD)
    header = read_safetensors(path)
    assert header.metadata == {"format": "pt"} and list(header.tensors) == ["w", "b"]
    weight, bias = header.tensors["w"], header.tensors["b"]
    start = len(GOOD) - 30
    assert (weight.shape, weight.format.name, weight.offset, weight.nbytes) == ((2, 3), "f32", start, 24)
    assert (bias.shape, bias.format.name, bias.offset, bias.end, bias.file) == (
        (3,),
        "bf16",
        start + 24,
        len(GOOD),
        path,
    )


def test_agrees_with_the_library(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
    kinds += [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float8_e8m0fnu]
    tensors = {f"t{i}": torch.arange(6).reshape(2, 3).to(kind) for i, kind in enumerate(kinds)}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    save_file(tensors, path, metadata={"a": "b"})
    found = read_checkpoint(tmp_path)
    raw = path.read_bytes()
    with safe_open(path, "pt") as oracle:
        assert set(oracle.keys()) == set(found)
    for name, tensor in tensors.items():
        ours = found[name]
        assert ours.shape == tuple(tensor.shape)
        assert raw[ours.offset : ours.end] == bytes(tensor.reshape(-1).view(torch.uint8).tolist())


REFUSED: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the file is empty"),
    ("short", b"\x10\0\0", "not a safetensors file"),
    ("another format", b"GGUF\x03\0\0\0" + bytes(40), "not a safetensors file"),
    ("lfs", b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    ("header too large", raw_file({}, 0, length=100_000_001), "at most 100000000 bytes"),
    ("header cut", raw_file({}, 0, length=50), "ends within the header: expected at least 58 bytes, found 10 bytes"),
    ("data cut", GOOD[:-1], f"expected {len(GOOD)} bytes, found {len(GOOD) - 1} bytes; the file is cut short"),
    ("data beyond", GOOD + b"\0", "bytes that belong to no tensor after tensor 'b'"),
    ("not an object", raw_file([], 0), "a JSON object after the first 8 bytes"),
    ("invalid json", raw_file(None, 0, encoded=b'{"a": '), "the JSON cannot be read"),
    ("nan", raw_file(None, 0, encoded=b'{"a": NaN}'), "NaN is not JSON"),
    ("not utf-8", raw_file(None, 0, encoded=b'{"\xff": 1}'), "not UTF-8"),
    ("half a pair", raw_file(None, 0, encoded=b'{"\\ud800": 1}'), "not UTF-8"),
    ("deep", raw_file(None, 0, encoded=b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "the JSON cannot be read"),
    ("a number of many digits", raw_file(None, 0, encoded=b'{"a": ' + b"1" * 9999 + b"}"), "the JSON cannot be read"),
    (
        "twice",
        raw_file(None, 4, encoded=b'{"a": %s, "a": %s}' % ((json.dumps(place([1], 0, 4)).encode(),) * 2)),
        "key 'a' appears twice",
    ),
    (
        "twice inside",
        raw_file(None, 0, encoded=b'{"a": {"dtype": "F32", "dtype": "F16"}}'),
        "key 'dtype' appears twice",
    ),
    ("metadata", raw_file({"__metadata__": {"a": 1}}, 0), "key '__metadata__'"),
    ("entry", raw_file({"w": 3}, 0), "tensor 'w': expected an object with dtype, shape and data_offsets, found 3"),
    ("missing key", raw_file({"w": {"dtype": "F32", "shape": [1]}}, 0), "tensor 'w': .*found .'dtype', 'shape'."),
    ("extra key", raw_file({"w": place([1], 0, 4) | {"scale": 2}}, 4), "tensor 'w': .*'scale'"),
    ("dtype", raw_file({"w": place([1], 0, 4, "F31")}, 4), "tensor 'w': dtype: expected one of F32, .*found 'F31'"),
    ("dtype kind", raw_file({"w": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}, 4), "tensor 'w': dtype"),
    ("negative dim", raw_file({"w": place([-1], 0, 4)}, 4), "tensor 'w': shape"),
    ("bool dim", raw_file({"w": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4), "tensor 'w': shape"),
    ("float dim", raw_file({"w": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, 4), "tensor 'w': shape"),
    ("absurd dims", raw_file({"w": place([2**40, 2**40], 0, 4)}, 4), "tensor 'w': shape"),
    ("offsets reversed", raw_file({"w": place([1], 4, 0)}, 4), "tensor 'w': data_offsets"),
    ("three offsets", raw_file({"w": place([1], 0, 4) | {"data_offsets": [0, 4, 8]}}, 4), "data_offsets"),
    ("size", raw_file({"w": place([3], 0, 8)}, 8), r"expected 12 bytes for shape \[3\] in F32, found 8 bytes"),
    ("overlap", raw_file({"a": place([2], 0, 8), "b": place([2], 4, 12)}, 12), "tensor 'b' overlaps tensor 'a'"),
    ("gap", raw_file({"a": place([1], 0, 4), "b": place([1], 8, 12)}, 12), "tensor 'b' leaves a gap after tensor 'a'"),
    ("gap at the start", raw_file({"a": place([1], 4, 8)}, 8), "tensor 'a' leaves a gap after the header"),
]


@pytest.mark.parametrize(("raw", "message"), [pytest.param(r, m, id=i) for i, r, m in REFUSED])
def test_refused_in_one_line(put: Callable[[bytes], Path], raw: bytes, message: str) -> None:
    path = put(raw)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def parses_or_refuses(path: Path) -> None:
    try:
        header = read_safetensors(path)
    except FileFormatError as error:
        assert "\n" not in str(error)
    else:
        # every byte after the header belongs to exactly one tensor
        total = sum(t.nbytes for t in header.tensors.values())
        assert (
            min((t.offset for t in header.tensors.values()), default=path.stat().st_size) + total == path.stat().st_size
        )


@settings(deadline=None, max_examples=200)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4),
    keep=st.integers(0, len(GOOD)),
)
def test_damage_is_parsed_or_refused(put: Callable[[bytes], Path], changes: list[tuple[int, int]], keep: int) -> None:
    raw = bytearray(GOOD)
    for where, byte in changes:
        raw[where] = byte
    parses_or_refuses(put(bytes(raw)))
    parses_or_refuses(put(bytes(raw[:keep])))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(
    header=st.dictionaries(
        st.sampled_from(["__metadata__", "a", "b"]),
        JSON
        | st.fixed_dictionaries(
            {"dtype": st.just("F32") | JSON, "shape": st.just([1]) | JSON, "data_offsets": st.just([0, 4]) | JSON}
        ),
    )
)
def test_any_json_is_parsed_or_refused(put: Callable[[bytes], Path], header: dict[str, Any]) -> None:
    parses_or_refuses(put(raw_file(header, 4)))


def one(name: str) -> bytes:
    return raw_file({name: place([1], 0, 4)}, 4)


def index(directory: Path, weight_map: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


S1, S2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_shards_with_and_without_an_index(tmp_path: Path) -> None:
    (tmp_path / S1).write_bytes(one("a"))
    (tmp_path / S2).write_bytes(one("b"))
    without = read_checkpoint(tmp_path)
    (tmp_path / "adapter.safetensors").write_bytes(one("c"))
    index(tmp_path, {"a": S1, "b": S2})
    assert read_checkpoint(tmp_path) == without
    assert {name: t.file.name for name, t in without.items()} == {"a": S1, "b": S2}


def test_shards_that_do_not_fit(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(FileFormatError, match=message):
            read_checkpoint(tmp_path)

    (tmp_path / S1).write_bytes(one("a"))
    refused(rf"{S2}: the shard is missing \({S1} is there\)")
    index(tmp_path, {"a": S1, "b": S2})
    refused(rf"{S2}: the shard is missing; model.safetensors.index.json names it")
    (tmp_path / S2).write_bytes(one("c"))
    refused(rf"{S2}: tensor 'b' is not in the shard")
    (tmp_path / S2).write_bytes(one("a"))
    refused(rf"{S2}: tensor 'a' is also in {S1}")
    (tmp_path / S2).write_bytes(one("b"))
    index(tmp_path, {"a": S2, "b": S1})
    refused(rf"tensor 'a': expected in {S1}, where it is, found {S2} in weight_map")
    (tmp_path / S2).write_bytes(raw_file({"b": place([1], 0, 4), "x": place([1], 4, 8)}, 8))
    index(tmp_path, {"a": S1, "b": S2})
    refused(rf"{S2}: tensor 'x' is not in the weight_map")
    (tmp_path / S2).write_bytes(one("b"))
    (tmp_path / "model.safetensors").write_bytes(one("a"))
    refused("lies beside an index that does not name it")


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "x.bin"])
def test_an_index_names_only_files_beside_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(one("a"))
    inner = tmp_path / "inner"
    inner.mkdir()
    index(inner, {"a": name})
    with pytest.raises(FileFormatError, match="the name of a .safetensors file beside it"):
        read_checkpoint(inner)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b"\xff"])
def test_a_broken_index(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"index\.json: "):
        read_checkpoint(tmp_path)


def test_directories_without_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no weights in the directory"):
        read_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(UnsupportedError, match=r"pytorch_model\.bin.*pickle|pickle.*pytorch_model\.bin"):
        read_checkpoint(tmp_path)
    with pytest.raises(ModelNotFound, match="no such directory"):
        read_checkpoint(tmp_path / "none")
