"""The GGUF header reader: agreement with the `gguf` package, and an error for everything that is wrong."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.blueprint.read.gguf import GGUFHeader, read_gguf
from plait.blueprint.read.stored import Strings
from plait.dtypes import BY_GGUF_ID
from plait.errors import ConfigError, FileFormatError, ModelNotFound, PlaitError

U8, I8, U16, U32, I32, F32, BOOL, STR, ARR, U64, F64 = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def entry(name: str | bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    """`dims` innermost first, as in the file."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(
    keys: list[bytes],
    entries: list[bytes],
    data: int = 0,
    *,
    version: int = 3,
    align: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensors, pairs = counts or (len(entries), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + b"".join(keys) + b"".join(entries)
    return head + bytes(-len(head) % align) + bytes(data)


ARCH = key("general.architecture", STR, text("llama"))
SMALL = build(
    [
        ARCH,
        key("a.u8", U8, b"\xff"),
        key("a.i8", I8, b"\xff"),
        key("a.count", U32, struct.pack("<I", 7)),
        key("a.big", U64, struct.pack("<Q", 2**64 - 1)),
        key("a.eps", F32, struct.pack("<f", 1e-6)),
        key("a.exact", F64, struct.pack("<d", 0.1)),
        key("a.on", BOOL, b"\1"),
        key("a.layers", ARR, array(I32, 3, struct.pack("<3i", 0, -1, 8))),
        key("a.flags", ARR, array(BOOL, 3, b"\1\0\1")),
        key("a.tags", ARR, array(STR, 2, text("é") + text(""))),
        key("a.nested", ARR, array(ARR, 2, array(U8, 2, b"\1\2") + array(U8, 0, b""))),
    ],
    [entry("w", (32, 3), 8, 0), entry("b", (5,), 0, 128)],
    128 + 20,
)


@pytest.fixture(scope="module")
def put(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Path]:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"

    def write(raw: bytes) -> Path:
        path.write_bytes(raw)
        return path

    return write


def test_every_kind_of_value(put: Callable[[bytes], Path]) -> None:
    path = put(SMALL)
    header = read_gguf(path)
    assert dict(header.metadata) == {
        "general.architecture": "llama",
        "a.u8": 255,
        "a.i8": -1,
        "a.count": 7,
        "a.big": 2**64 - 1,
        "a.eps": struct.unpack("<f", struct.pack("<f", 1e-6))[0],
        "a.exact": 0.1,
        "a.on": True,
        "a.layers": (0, -1, 8),
        "a.flags": (True, False, True),
        "a.tags": ("é", ""),
        "a.nested": ((1, 2), ()),
    }
    kinds = ["str", "u8", "i8", "u32", "u64", "f32", "f64", "bool", "i32[]", "bool[]", "str[]", "array[]"]
    assert list(header.kinds.values()) == kinds
    start = len(SMALL) - 148
    weight, bias = header.tensors["w"], header.tensors["b"]
    assert (weight.shape, weight.format.name, weight.offset, weight.nbytes) == ((3, 32), "q8_0", start, 3 * 34)
    assert (bias.shape, bias.format.name, bias.offset, bias.nbytes) == ((5,), "f32", start + 128, 20)
    assert (header.version, header.alignment, header.file_bytes, header.files) == (3, 32, len(SMALL), (path,))


def test_getters(put: Callable[[bytes], Path]) -> None:
    header = read_gguf(put(SMALL))
    assert header.integer("a.i8") == -1 and header.number("a.count") == 7.0 and header.number("a.exact") == 0.1
    assert header.flag("a.on") is True and header.text("general.architecture") == "llama"
    assert header.integers("a.layers") == (0, -1, 8) == header.numbers("a.layers")
    assert header.texts("a.tags") == ("é", "") and header.flags("a.flags") == (True, False, True)
    assert header.kind("a.layers") == "i32[]"
    wrong: list[Callable[[], object]] = [
        lambda: header.integer("a.on"),
        lambda: header.integer("a.eps"),
        lambda: header.integer("a.layers"),
        lambda: header.number("a.on"),
        lambda: header.flag("a.u8"),
        lambda: header.text("a.count"),
        lambda: header.integers("a.count"),
        lambda: header.integers("a.flags"),
        lambda: header.texts("general.architecture"),
    ]
    for get in wrong:
        with pytest.raises(ConfigError, match=r"model\.gguf: key '[a-z0-9.]+': expected an? .*, found "):
            get()
    for get in (lambda: header.integer("a.none"), lambda: header.kind("a.none"), lambda: header.texts("a.none")):
        with pytest.raises(ConfigError, match=r"model\.gguf: key 'a\.none' is missing"):
            get()


def test_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_uint32("qwen3.block_count", 4)
    writer.add_array("qwen3.attention.head_count_kv", [0, 2, 0, 2])
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(3000)])
    writer.add_array("tokenizer.ggml.scores", [i / 7 for i in range(3000)])
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(1)
    writer.add_tensor("blk.0.attn_q.weight", rng.standard_normal((6, 64), dtype=np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", rng.standard_normal(7, dtype=np.float32).astype(np.float16))
    quantised = gguf.quants.quantize(rng.standard_normal((4, 3, 32), dtype=np.float32), gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("blk.0.ffn_up_exps.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header, oracle = read_gguf(path), gguf.GGUFReader(path)
    assert header.alignment == 64
    assert list(header.tensors) == [t.name for t in oracle.tensors]
    for theirs in oracle.tensors:
        ours = header.tensors[theirs.name]
        assert ours.shape == tuple(theirs.shape.tolist()[::-1])
        assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
        assert ours.format.name == theirs.tensor_type.name.lower()
        assert path.read_bytes()[ours.offset : ours.end] == theirs.data.tobytes()
    for name, value in header.metadata.items():
        contents = oracle.fields[name].contents()
        assert (
            list(value) if isinstance(contents, list) and not isinstance(value, (int, float)) else value
        ) == contents


def test_table_of_formats_agrees_with_the_gguf_package() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        ours = BY_GGUF_ID[kind]
        # two float16 and 32 bytes; the package keeps an older layout with two float32
        size = 36 if ours.name == "q8_1" else size
        assert (ours.name, ours.block, ours.block_bytes) == (kind.name.lower(), block, size)


def test_long_arrays_stay_undecoded(put: Callable[[bytes], Path]) -> None:
    words = [f"<{i}>" for i in range(5000)]
    raw = b"".join(text(w) for w in words[:-1]) + text(b"\xff")
    scores = struct.pack("<5000f", *range(5000))
    keys = [key("t", ARR, array(STR, 5000, raw)), key("s", ARR, array(F32, 5000, scores)), ARCH]
    header = read_gguf(put(build(keys, [])))
    tokens, numbers = header.texts("t"), header.numbers("s")
    assert isinstance(tokens, Strings) and len(tokens) == 5000
    assert tokens[0] == "<0>" and tokens[4998] == tokens[-2] == "<4998>" and tokens[10:13] == ("<10>", "<11>", "<12>")
    assert list(tokens[:4999]) == words[:-1]
    with pytest.raises(FileFormatError, match="key 't': string 4999 is not UTF-8"):
        tokens[4999]
    with pytest.raises(FileFormatError, match="string 4999"):
        list(tokens)
    with pytest.raises(IndexError):
        tokens[5000]
    assert list(numbers) == list(range(5000)) and numbers[4999] == 4999.0
    assert isinstance(numbers, memoryview) and numbers.readonly
    assert header.text("general.architecture") == "llama"


def test_header_larger_than_the_first_read(put: Callable[[bytes], Path]) -> None:
    words = [b"x" * (i % 50) for i in range(80_000)]
    header = read_gguf(put(build([key("t", ARR, array(STR, 80_000, b"".join(map(text, words)))), ARCH], [])))
    assert header.text("general.architecture") == "llama"
    tokens = header.texts("t")
    assert [len(t) for t in tokens] == [i % 50 for i in range(80_000)]
    assert len(tokens[79_999]) == 79_999 % 50


Q8 = entry("w", (32, 3), 8, 0)
REFUSED: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the file is empty"),
    ("short", b"GGUF" + bytes(3), "ends within the version"),
    ("cut after the version", b"GGUF\x03\0\0\0" + bytes(4), "ends within the number of tensors"),
    ("37 bytes", SMALL[:37], "in a file of 37 bytes.*cut short"),
    ("other magic", b"PK\3\4" + bytes(60), r"not a GGUF file: expected b'GGUF', found b'PK"),
    ("lfs", b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    ("version 1", build([ARCH], [], version=1), "found version 1;"),
    ("version 4", build([ARCH], [], version=4), "found version 4;"),
    ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "found version 3, big-endian"),
    ("tensor count", build([], [], counts=(2**63, 0)), "number of tensors: expected at most 0 "),
    ("key count", build([], [], counts=(0, 2**64 - 1)), "number of metadata keys"),
    ("twice a key", build([ARCH, ARCH], []), "key 'general.architecture' appears twice"),
    ("key not utf-8", build([key(b"\xff\xfe", U8, b"\0")], []), "metadata key 0 is not UTF-8"),
    ("key too long", build([key("k" * 65_536, U8, b"\0")], []), "at most 65535 bytes, found 65536"),
    ("text not utf-8", build([key("a", STR, text(b"\xff"))], []), "key 'a' is not UTF-8"),
    ("text too long", build([key("a", STR, struct.pack("<Q", 2**62))], []), "ends within key 'a'"),
    ("unknown kind", build([key("a", 13, bytes(8))], []), "key 'a': type of the value: .* found 13"),
    ("unknown item kind", build([key("a", ARR, array(99, 1, bytes(8)))], []), "key 'a': type .* found 99"),
    ("bool 2", build([key("a", BOOL, b"\2")], []), "key 'a': a bool: expected 0 or 1, found 2"),
    ("bool 2 in array", build([key("a", ARR, array(BOOL, 2, b"\1\2"))], []), "expected 0 or 1, found 2"),
    ("array count", build([key("a", ARR, array(U64, 2**61, bytes(8)))], []), "number of values of key 'a'"),
    ("string count", build([key("a", ARR, array(STR, 2**61, bytes(8)))], []), "number of strings of key 'a'"),
    (
        "string in a long array",
        build([key("a", ARR, array(STR, 2000, bytes(8 * 1999) + struct.pack("<Q", 2**64 - 1)))], []),
        "ends within string 1999 of key 'a'",
    ),
    ("nested count", build([key("a", ARR, array(ARR, 2**61, bytes(64)))], []), "number of arrays of key 'a'"),
    (
        "nested too deep",
        build([key("a", ARR, b"".join(struct.pack("<IQ", ARR, 1) for _ in range(50)))], []),
        "nested too deep",
    ),
    ("twice a tensor", build([], [Q8, Q8], 256), "tensor 'w' appears twice"),
    ("tensor name not utf-8", build([], [entry(b"\xff", (1,), 0, 0)], 4), "name of tensor 0 is not UTF-8"),
    ("too many dims", build([], [entry("w", (1,) * 5, 0, 0)], 4), "tensor 'w': number of dimensions"),
    ("absurd dims", build([], [entry("w", (2**40, 2**40), 0, 0)], 4), "tensor 'w': shape"),
    ("absurd dims with 0", build([], [entry("w", (2**64 - 1, 0), 0, 0)], 4), "tensor 'w': shape"),
    ("rows without whole blocks", build([], [entry("w", (16, 2), 8, 0)], 34), "a multiple of 32 elements"),
    ("unknown type", build([], [entry("w", (32,), 4, 0)], 64), "tensor 'w': type: expected one of .* found 4$"),
    ("misaligned", build([], [entry("w", (1,), 0, 4)], 8), "tensor 'w': offset: expected a multiple of 32, found 4"),
    ("overlap", build([], [Q8, entry("v", (1,), 0, 96)], 200), "tensor 'v' overlaps tensor 'w'"),
    ("same place", build([], [Q8, entry("v", (32, 3), 8, 0)], 200), "overlaps"),
    ("outside", build([], [entry("w", (1,), 0, 2**63)], 4), "tensor 'w' lies outside the file"),
    ("alignment 0", build([key("general.alignment", U32, bytes(4))], []), "a power of two"),
    ("alignment 48", build([key("general.alignment", U32, struct.pack("<I", 48))], []), "a power of two"),
    ("alignment text", build([key("general.alignment", STR, text("32"))], []), "a power of two"),
]


@pytest.mark.parametrize(("raw", "message"), [pytest.param(r, m, id=i) for i, r, m in REFUSED])
def test_refused_in_one_line_and_little_memory(put: Callable[[bytes], Path], raw: bytes, message: str) -> None:
    path = put(raw)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=message) as caught:
            read_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert peak < 2**20


def test_cut_short_says_both_sizes(put: Callable[[bytes], Path]) -> None:
    message = f"tensor 'b' .*: expected a file of at least {len(SMALL)} bytes, found {len(SMALL) - 1} bytes"
    with pytest.raises(FileFormatError, match=message):
        read_gguf(put(SMALL[:-1]))


def test_header_is_bounded_in_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as stream:
        stream.write(build([key("a", STR, struct.pack("<Q", 2**30))], []))
        stream.truncate(2**31)
    with pytest.raises(FileFormatError, match="the header is too large .key 'a'.: expected at most 268435456 bytes"):
        read_gguf(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf: no such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(FileFormatError, match="not a regular file"):
        read_gguf(tmp_path)


LONG = build([key("t", ARR, array(STR, 1100, b"".join(text("ab") for _ in range(1100)))), ARCH], [Q8], 102)


def parses_or_refuses(path: Path) -> GGUFHeader | None:
    try:
        header = read_gguf(path)
    except FileFormatError as error:
        assert "\n" not in str(error)
        return None
    size = path.stat().st_size
    for tensor in header.tensors.values():
        assert 0 <= tensor.offset <= tensor.end <= size
    for value in header.metadata.values():
        if isinstance(value, Strings):
            try:
                assert len(list(value)) == len(value)
            except FileFormatError:
                return None
    return header


@settings(deadline=None, max_examples=300)
@given(
    base=st.sampled_from([SMALL, LONG]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    keep=st.floats(0, 1),
)
def test_damage_is_parsed_or_refused(
    put: Callable[[bytes], Path], base: bytes, changes: list[tuple[float, int]], keep: float
) -> None:
    raw = bytearray(base)
    for where, byte in changes:
        raw[int(where * len(raw))] = byte
    parses_or_refuses(put(bytes(raw)))
    parses_or_refuses(put(bytes(raw[: int(keep * len(raw))])))


def test_every_byte_and_every_length_of_a_small_file(put: Callable[[bytes], Path]) -> None:
    for i in range(len(SMALL)):
        parses_or_refuses(put(SMALL[:i] + bytes([SMALL[i] ^ 0xFF]) + SMALL[i + 1 :]))
        assert parses_or_refuses(put(SMALL[:i])) is None  # every byte is needed


def part(i: int, n: int, tensor: str, *more: bytes, total: int = 3) -> bytes:
    keys = [
        key("split.no", U16, struct.pack("<H", i)),
        key("split.count", U16, struct.pack("<H", n)),
        key("split.tensors.count", I32, struct.pack("<i", total)),
        *more,
    ]
    return build(keys, [entry(tensor, (8,), 0, 0)], 32)


def split(directory: Path, *parts: bytes) -> list[Path]:
    paths = [directory / f"m-{i + 1:05d}-of-{len(parts):05d}.gguf" for i in range(len(parts))]
    for path, raw in zip(paths, parts, strict=True):
        path.write_bytes(raw)
    return paths


def test_parts_are_read_together_from_any_of_them(tmp_path: Path) -> None:
    paths = split(tmp_path, part(0, 3, "a", ARCH), part(1, 3, "b"), part(2, 3, "c"))
    for path in paths:
        header = read_gguf(path)
        assert header.path == paths[0] and header.files == tuple(paths)
        assert header.text("general.architecture") == "llama"
        assert {name: t.file for name, t in header.tensors.items()} == dict(zip("abc", paths, strict=True))
        assert header.file_bytes == sum(p.stat().st_size for p in paths)


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    def refused(message: str, *parts: bytes, kind: type[PlaitError] = FileFormatError) -> None:
        paths = split(tmp_path, *parts)
        with pytest.raises(kind, match=message):
            read_gguf(paths[0])

    first, third = part(0, 3, "a", ARCH), part(2, 3, "c")
    refused("tensor 'a' is also in m-00001-of-00003", first, part(1, 3, "a"), third)
    refused(r"00002-of-00003\.gguf: key 'split.no': expected 1, found 2", first, part(2, 3, "b"), third)
    refused("key 'split.count': expected 3, found 4", first, part(1, 4, "b"), third)
    other = key("general.architecture", STR, text("gemma3"))
    refused("key 'general.architecture' differs", first, part(1, 3, "b", other), third)
    refused("expected 4, found 3", part(0, 3, "a", total=4), part(1, 3, "b"), third)
    paths = split(tmp_path, first, part(1, 3, "b"), third)
    paths[1].unlink()
    with pytest.raises(FileFormatError, match=r"m-00002-of-00003\.gguf: part 2 of 3 is missing"):
        read_gguf(paths[0])
    alone = tmp_path / "renamed.gguf"
    alone.write_bytes(first)
    with pytest.raises(FileFormatError, match="ends in -00001-of-00003"):
        read_gguf(alone)
