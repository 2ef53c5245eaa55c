"""What the keys of an unknown family tell: an outline, never a blueprint.

Keys that many architectures share are read by their usual meaning (the config classes of transformers 5.24; the GGUF
specification and the key names of llama.cpp). Nothing depends on what the family is called. An outline says what it
assumed (`notes`) and what keeps it from knowing the keys and values each layer holds (`doubts`); it is never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from plait.blueprint.families.common import ignore_common
from plait.blueprint.outline import Kind, Outline, OutlineLayer
from plait.blueprint.read.config import MAX_LAYERS, ConfigReader, Coverage
from plait.blueprint.read.gguf import GGUFHeader

__all__ = ["outline_of_config", "outline_of_gguf"]

_MAX: Final = 2**40
_TEXT: Final = ("text_config", "language_config", "llm_config")
# Words of per-layer lists, in the spellings of transformers and of older configs.
_WORDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "full_attention": "full",
        "attention": "full",
        "global_attention": "full",
        "sliding_attention": "window",
        "local_attention": "window",
        "linear_attention": "none",
        "conv": "none",
        "mamba": "none",
        "mamba2": "none",
        "recurrent": "none",
        "moe": "none",
        "mlp": "none",
    }
)
# Keys that change which rows a layer keeps, or how large they are, in ways that differ between families.
_ROWS: Final = re.compile(
    r"kv_|_kv|key_value|key_length|value_length|head_dim|head_count|lora_rank|latent|index_|indexer|compress|chunk|"
    r"sliding|window|layer_pattern|hybrid|attn_layer|attention_layer|cross_attention|k_eq_v|cla_"
)
_RECURRENT: Final = re.compile(r"mamba|ssm|linear_|conv|recurrent|rwkv|wkv|delta")


class _Keys:
    """Tolerant reads: a value that is not of the usual kind is left unread and said, not an error."""

    def __init__(self, data: Mapping[str, object], reader: ConfigReader) -> None:
        self.data, self.reader = data, reader
        self.used: set[str] = set()
        self.notes: list[str] = []
        self.doubts: list[str] = []

    def name(self, key: str) -> str:
        return repr(self.reader.dotted(key))

    def take(self, key: str, field: str, value: object) -> None:
        self.used.add(key)
        self.reader.use(key)
        self.reader.record(field, "key", self.reader.dotted(key), value)

    def value(self, field: str, keys: tuple[str, ...]) -> tuple[str, object] | None:
        """The first of `keys` that is there; spellings that disagree are a doubt."""
        there = [key for key in keys if self.data.get(key) is not None]
        for other in there[1:]:
            if self.data[other] != self.data[there[0]]:
                self.doubts.append(f"keys {self.name(there[0])} and {self.name(other)} disagree")
            self.used.add(other)
            self.reader.use(other)
        return (there[0], self.data[there[0]]) if there else None

    def integer(self, field: str, *keys: str, maximum: int = _MAX) -> int | None:
        found = self.value(field, keys)
        if found is None:
            return None
        key, value = found
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= maximum:
            self.notes.append(f"key {self.name(key)} is not understood: {_shown(value)}")
            return None
        self.take(key, field, number)
        return number

    def flag(self, field: str, key: str) -> bool | None:
        value = self.data.get(key)
        if not isinstance(value, bool):
            return None
        self.take(key, field, value)
        return value

    def each(self, field: str, count: int, *keys: str) -> tuple[int, ...] | None:
        """A number of at least 0 for each of `count` layers: one for all, or a list of at least that length."""
        found = self.value(field, keys)
        if found is None:
            return None
        key, value = found
        given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * count
        items = tuple(n for n in given if isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MAX)
        if len(items) != len(given) or len(items) < count:
            self.doubts.append(f"key {self.name(key)} is not understood: {_shown(value)} for {count} layers")
            return None
        self.take(key, field, value if not isinstance(value, Sequence) else list(items))
        return items[:count]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _from_words(keys: _Keys, count: int) -> list[tuple[Kind, str]] | None:
    found = keys.value("layers.kind", ("layer_types", "layers_block_type"))
    if found is None:
        return None
    key, words = found
    if not isinstance(words, list | tuple) or len(words) != count or not all(isinstance(w, str) for w in words):
        keys.doubts.append(f"key {keys.name(key)} is not a list of {count} words")
        return [("unknown", "")] * count
    keys.take(key, "layers.kind", list(words))
    for word in dict.fromkeys(words):
        if word not in _WORDS:
            keys.doubts.append(f"what layers of kind {word!r} keep is not known (key {keys.name(key)})")
    return [(_WORDS.get(word, "unknown"), word) for word in words]


def _from_period(keys: _Keys, count: int, window: str, pattern: str) -> list[tuple[Kind, str]] | None:
    """Kinds that a period or a list of booleans states."""
    period = keys.integer("layers.kind", "full_attention_interval", maximum=MAX_LAYERS)
    if period is not None:
        return [("full" if (i + 1) % period == 0 else "none", "") for i in range(count)]
    period = keys.integer("layers.kind", "attn_layer_period", maximum=MAX_LAYERS)
    if period is not None:
        offset = keys.data.get("attn_layer_offset")
        if isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < period:
            keys.take("attn_layer_offset", "layers.offset", offset)
            return [("full" if i % period == offset else "none", "") for i in range(count)]
        keys.doubts.append(f"key {keys.name('attn_layer_period')} needs an offset below it")
        return [("unknown", "")] * count
    indexes = keys.value("layers.kind", ("full_attn_idxs", "attn_layer_indices"))
    if indexes is not None and isinstance(indexes[1], list) and all(type(i) is int for i in indexes[1]):
        keys.take(indexes[0], "layers.kind", indexes[1])
        return [("full" if i in indexes[1] else "none", "") for i in range(count)]
    given = keys.data.get(pattern)
    if given is None or keys.data.get(window) is None:
        return None
    if isinstance(given, list | tuple) and len(given) >= count and all(n in (0, 1) for n in given):
        keys.take(pattern, "layers.kind", [bool(n) for n in given])
        return [("window" if sliding else "full", "") for sliding in given[:count]]
    period = keys.integer("layers.kind", pattern, maximum=MAX_LAYERS)
    if period is None:
        keys.doubts.append(f"key {keys.name(pattern)} is not understood: {_shown(given)}")
        return [("unknown", "")] * count
    return [("full" if (i + 1) % period == 0 else "window", "") for i in range(count)]


def _kinds(keys: _Keys, count: int, windows: tuple[str, ...], pattern: str) -> tuple[list[tuple[Kind, str]], bool]:
    """(kind and word of each layer, whether the file states them)."""
    window = next((key for key in windows if keys.data.get(key) is not None), windows[0])
    off = keys.flag("attention.window.used", "use_sliding_window") is False
    if off:
        # What stands beside a window that is off says nothing.
        for key in (*windows, pattern, "max_window_layers"):
            keys.used.add(key)
            keys.reader.use(key)
    kinds = _from_words(keys, count)
    if kinds is None:
        kinds = _from_period(keys, count, window, pattern)
    if kinds is not None:
        return kinds, True
    if keys.data.get(window) is not None and not off:
        keys.doubts.append(f"key {keys.name(window)} gives a window, and no key says for which layers it holds")
        return [("unknown", "")] * count, False
    return [("full", "")] * count, False


@dataclass(frozen=True, slots=True)
class _Names:
    """What a container calls the facts."""

    heads: tuple[str, ...]
    kv_heads: tuple[str, ...]
    qk_dim: tuple[str, ...]
    v_dim: tuple[str, ...]
    windows: tuple[str, ...]
    pattern: str


_CONFIG: Final = _Names(
    heads=("num_attention_heads", "n_head", "n_heads", "num_heads"),
    kv_heads=("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"),
    qk_dim=("head_dim", "attention_head_dim", "kv_channels"),
    v_dim=("v_head_dim",),
    windows=("sliding_window", "sliding_window_size"),
    pattern="sliding_window_pattern",
)
_GGUF: Final = _Names(
    heads=("attention.head_count",),
    kv_heads=("attention.head_count_kv",),
    qk_dim=("attention.key_length",),
    v_dim=("attention.value_length",),
    windows=("attention.sliding_window",),
    pattern="attention.sliding_window_pattern",
)


def _layers(keys: _Keys, count: int, hidden: int | None, names: _Names) -> tuple[OutlineLayer, ...]:
    heads = keys.each("attention.heads", count, *names.heads)
    kv_heads = keys.each("attention.kv_heads", count, *names.kv_heads)
    if kv_heads is None and keys.flag("attention.kv_heads", "multi_query"):
        kv_heads = (1,) * count
    stated = kv_heads is not None and 0 in kv_heads
    if kv_heads is None and heads is not None:
        keys.notes.append(f"key {keys.name(names.kv_heads[0])} is absent: taken to be the number of heads")
        kv_heads = heads
    qk_dim = keys.each("attention.qk_dim", count, *names.qk_dim)
    if qk_dim is None and hidden is not None and heads is not None:
        widest = max(heads)
        if widest and hidden % widest == 0:
            keys.notes.append(f"key {keys.name(names.qk_dim[0])} is absent: taken to be hidden / heads")
            qk_dim = (hidden // widest,) * count
    v_dim = keys.each("attention.v_dim", count, *names.v_dim)
    kinds, told = _kinds(keys, count, names.windows, names.pattern)
    window = None
    if told:
        # Where the kinds are stated, a window that no layer has says nothing.
        window = keys.integer("attention.window", *names.windows)
    made = []
    for i, (kind, word) in enumerate(kinds):
        own = None if kv_heads is None else kv_heads[i]
        key, value = (None if each is None else each[i] for each in (qk_dim, v_dim))
        here: Kind = "none" if own == 0 else kind
        value = key if value is None else value
        lacking = own is None or not key or not value or (here == "window" and window is None)
        if here in ("full", "window") and lacking:
            keys.doubts.append("the number of KV heads, their size or the window is not stated")
            here = "unknown"
        rows = here in ("full", "window")
        made.append(
            OutlineLayer(
                here,
                word,
                heads[i] if rows and heads is not None else None,
                own if rows else None,
                key if rows else None,
                value if rows else None,
                window if here == "window" else None,
            )
        )
    _suspect(keys, stated or told)
    return tuple(made)


def _suspect(keys: _Keys, stated: bool) -> None:
    """Doubts for keys nobody read whose names say that they change what a layer keeps."""
    for key, value in keys.data.items():
        if key in keys.used or value is None or value is False or value == 0 or isinstance(value, Mapping):
            continue
        if _ROWS.search(key) or (not stated and _RECURRENT.search(key)):
            keys.doubts.append(f"key {keys.name(key)} may change what layers keep, and its meaning here is not known")


def _outline(keys: _Keys, family: str, names: _Names, count: int | None, **sizes: int | None) -> Outline:
    hidden = sizes["hidden"]
    layers: tuple[OutlineLayer, ...] = ()
    if count is None:
        keys.doubts.append("the number of layers is not stated")
    else:
        layers = _layers(keys, count, hidden, names)
    if any(layer.kind == "none" for layer in layers):
        places = [str(i) for i, layer in enumerate(layers) if layer.kind == "none"]
        keys.notes.append(
            f"{len(places)} layers hold no keys and values ({', '.join(places)}); a state of fixed size that they may "
            "have instead is not counted"
        )
    return Outline(
        family=family,
        hidden=hidden,
        vocabulary=sizes["vocabulary"],
        max_context=sizes["max_context"],
        width=sizes["width"],
        experts=sizes["experts"],
        active_experts=sizes["active_experts"],
        layers=layers,
        evidence=MappingProxyType(dict(keys.reader.evidence)),
        notes=tuple(dict.fromkeys(keys.notes)),
        doubts=tuple(dict.fromkeys(keys.doubts)),
    )


def outline_of_config(data: Mapping[str, object], *, family: str, file: str) -> tuple[Outline, Coverage]:
    """Outline and coverage of a config.json's keys; those of the text model where it is nested in them."""
    root = ConfigReader(data, file=file)
    root.use("model_type")
    ignore_common(root)
    body, reader = data, root
    for name in _TEXT:
        inner = data.get(name)
        if isinstance(inner, Mapping):
            section = root.section(name)
            assert section is not None
            body, reader = inner, section
            reader.use("model_type")
            ignore_common(reader)
            break
    keys = _Keys(body, reader)
    if keys.flag("encoder_decoder", "is_encoder_decoder"):
        keys.doubts.append("the model has an encoder, whose keys and values are kept in other ways")
    count = keys.integer(
        "layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers", maximum=MAX_LAYERS
    )
    outline = _outline(
        keys,
        family,
        _CONFIG,
        count,
        hidden=keys.integer("hidden", "hidden_size", "n_embd", "d_model"),
        vocabulary=keys.integer("vocabulary", "vocab_size", "n_vocab"),
        max_context=keys.integer(
            "max_context", "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len"
        ),
        width=_widest(keys, "feed_forward.width", "intermediate_size", "ffn_hidden_size", "n_inner", "d_ff"),
        experts=keys.integer("experts", "num_experts", "num_local_experts", "n_routed_experts"),
        active_experts=keys.integer("experts.active", "num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    )
    return outline, root.coverage()


def outline_of_gguf(header: GGUFHeader, *, family: str) -> tuple[Outline, Coverage]:
    """Outline and coverage of GGUF metadata; `family` is the architecture, which prefixes its keys."""
    prefix = family + "."
    data = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    reader = ConfigReader(data, file=str(header.path), prefix=prefix)
    keys = _Keys(data, reader)
    if keys.flag("attention.causal", "attention.causal") is False:
        keys.doubts.append("attention is not causal: no keys and values are kept between calls")
    count = keys.integer("layers", "block_count", maximum=MAX_LAYERS)
    extra = keys.integer("mtp", "nextn_predict_layers", maximum=MAX_LAYERS)
    if count is not None and extra is not None and extra < count:
        keys.notes.append(f"the last {extra} of {count} blocks predict further tokens and are left out")
        count -= extra
    outline = _outline(
        keys,
        family,
        _GGUF,
        count,
        hidden=keys.integer("hidden", "embedding_length"),
        vocabulary=_gguf_vocabulary(keys, header),
        max_context=keys.integer("max_context", "context_length"),
        width=_widest(keys, "feed_forward.width", "feed_forward_length", "expert_feed_forward_length"),
        experts=keys.integer("experts", "expert_count"),
        active_experts=keys.integer("experts.active", "expert_used_count"),
    )
    own = reader.coverage()
    others = tuple(key for key in header.metadata if not key.startswith(prefix) and key != "general.architecture")
    described = tuple(key for key in others if key.split(".")[0] in ("general", "tokenizer", "split", "quantize"))
    unknown = tuple(key for key in others if key not in described)
    return outline, Coverage(("general.architecture", *own.used), described, own.unknown + unknown)


def _widest(keys: _Keys, field: str, *names: str) -> int | None:
    """The largest width where layers differ."""
    for name in names:
        value = keys.data.get(name)
        if isinstance(value, list | tuple) and value and all(type(n) is int and 0 <= n <= _MAX for n in value):
            keys.take(name, field, list(value))
            return int(max(value))
        if value is not None:
            return keys.integer(field, name)
    return None


def _gguf_vocabulary(keys: _Keys, header: GGUFHeader) -> int | None:
    stated = keys.integer("vocabulary", "vocab_size")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None and embedding.shape:
        return embedding.shape[0]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if stated is None and isinstance(tokens, Sequence) and not isinstance(tokens, str) and len(tokens):
        return len(tokens)
    return stated
