"""What several families share: layer patterns, the Llama naming of tensors, GGUF conventions."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from plait.blueprint.layout import Binding, Ignored, Layout, MinusOne, PermutedRows
from plait.blueprint.read.config import ConfigReader
from plait.blueprint.read.gguf import GGUFHeader
from plait.blueprint.spec import Attention, Blueprint, FactorScaling, LinearScaling, RopeScaling, SpecialTokens
from plait.blueprint.tensors import inventory
from plait.errors import ConfigError, UnsupportedError, fault

__all__ = [
    "ACTIVATIONS",
    "FULL",
    "HUB_ROOTS",
    "LLAMA_NAMES",
    "SLIDING",
    "bound",
    "gguf_attention_sizes",
    "gguf_bindings",
    "gguf_rope_scaling",
    "gguf_rows",
    "gguf_vocabulary",
    "ignore_common",
    "layer_kinds",
    "nested_format",
    "periodic_kinds",
    "special_tokens",
    "stored_format",
    "tied_head",
    "window_size",
]

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"

ACTIVATIONS: Final = MappingProxyType(
    {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "swish": "silu"}
)

_DTYPES: Final = MappingProxyType({"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"})

# Keys of training, generation and bookkeeping: they say nothing about the graph.
_IRRELEVANT: Final = (
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "cache_implementation",
    "chunk_size_feed_forward",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "transformers_version",
    "use_cache",
)


def ignore_common(config: ConfigReader) -> None:
    """Mark the keys every config may carry that do not describe the architecture."""
    config.irrelevant(*_IRRELEVANT)


def special_tokens(config: ConfigReader) -> SpecialTokens:
    """Token ids named in the config."""
    bos = config.token_ids("bos_token_id")
    pad = config.token_ids("pad_token_id")
    return SpecialTokens(bos[0] if bos else None, config.token_ids("eos_token_id"), pad[0] if pad else None)


def stored_format(config: ConfigReader) -> str:
    """Element format the weights are published in: `dtype`, in older files `torch_dtype`; bf16 where neither stands."""
    return config.choice("dtype", "torch_dtype", among=_DTYPES, field="stored_format", default="bfloat16")


def _disagree(outer: ConfigReader, text: ConfigReader, keys: tuple[str, str], found: str) -> ConfigError:
    what = f"keys {outer.dotted(keys[0])!r} and {text.dotted(keys[1])!r} disagree"
    return ConfigError(fault(what, file=outer.file, expected="two spellings of one fact to be equal", found=found))


def nested_format(text: ConfigReader, outer: ConfigReader) -> str:
    """`stored_format` of a text model under `text_config`: the key may stand inside, outside, or in both places.

    ConfigError naming both keys: the places disagree. `outer` may be `text` itself.
    """
    text.use("dtype", "torch_dtype")
    outer.use("dtype", "torch_dtype")
    places = [place for place in (outer, text) if place.given("dtype") or place.given("torch_dtype")]
    formats = [stored_format(place) for place in places or [outer]]
    if len(set(formats)) > 1:
        keys = ["dtype" if place.given("dtype") else "torch_dtype" for place in places]
        raise _disagree(outer, text, (keys[0], keys[1]), " and ".join(formats))
    return formats[0]


def tied_head(text: ConfigReader, outer: ConfigReader, *, default: bool) -> bool:
    """`tie_word_embeddings` of the keys around a text model, which may be `text` itself; the head is the whole model's.

    transformers writes the text model's class default beside whatever the whole model says, so inside only the other
    value states something; ConfigError naming both keys: it is not the outer one.
    """
    key = "tie_word_embeddings"
    tied = outer.boolean(key, field="head.tied", default=default)
    if text is not outer and text.given(key):
        inner = text.boolean(key)
        if inner not in (default, tied):
            raise _disagree(outer, text, (key, key), f"{tied} and {inner}")
    text.use(key)
    return tied


def periodic_kinds(layers: int, period: int) -> tuple[str, ...]:
    """Every `period`-th layer is full, the others are windows."""
    return tuple(FULL if (i + 1) % period == 0 else SLIDING for i in range(layers))


def layer_kinds(
    config: ConfigReader,
    layers: int,
    default: Sequence[str],
    rule: str,
) -> tuple[str, ...]:
    """Kind of each layer: the key `layer_types`, else `default`, which `rule` explains."""
    given = config.words("layer_types", field="layers.kind", length=layers)
    if given is None:
        config.record("layers.kind", "default", "layer_types", rule)
        return tuple(default)
    for index, word in enumerate(given):
        if word not in (FULL, SLIDING):
            raise config.error("layer_types", expected=f"{FULL} or {SLIDING}", found=f"{word!r} at layer {index}")
    return given


def window_size(config: ConfigReader, *keys: str, kinds: Sequence[str], default: int) -> int:
    """The window of the window layers; `default` where no key speaks of it.

    ConfigError: the key is null, which says that there is no window, and some layer of `kinds` has one.
    """
    said = [key for key in keys if key in config]
    if said and not any(map(config.given, said)) and SLIDING in kinds:
        layer = kinds.index(SLIDING)
        raise config.error(said[0], expected=f"a window: layer {layer} is of {SLIDING}", found="null, which is none")
    return config.integer(*keys, field="attention.window", default=default)


# Role below `layers.N.` -> name below `layers.N.` in checkpoints that follow transformers' Llama.
LLAMA_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mixer_norm": "input_layernorm.weight",
        "feed_forward_norm": "post_attention_layernorm.weight",
        "attention.query": "self_attn.q_proj.weight",
        "attention.key": "self_attn.k_proj.weight",
        "attention.value": "self_attn.v_proj.weight",
        "attention.output": "self_attn.o_proj.weight",
        "attention.query_bias": "self_attn.q_proj.bias",
        "attention.key_bias": "self_attn.k_proj.bias",
        "attention.value_bias": "self_attn.v_proj.bias",
        "attention.output_bias": "self_attn.o_proj.bias",
        "attention.query_norm": "self_attn.q_norm.weight",
        "attention.key_norm": "self_attn.k_norm.weight",
        "feed_forward.gate": "mlp.gate_proj.weight",
        "feed_forward.up": "mlp.up_proj.weight",
        "feed_forward.down": "mlp.down_proj.weight",
        "feed_forward.gate_bias": "mlp.gate_proj.bias",
        "feed_forward.up_bias": "mlp.up_proj.bias",
        "feed_forward.down_bias": "mlp.down_proj.bias",
    }
)

_LLAMA_TOP: Final = MappingProxyType(
    {"embedding": "{body}embed_tokens.weight", "final_norm": "{body}norm.weight", "head": "{head}lm_head.weight"}
)

_GGUF_NAMES: Final = MappingProxyType(
    {
        "mixer_norm": "attn_norm.weight",
        "feed_forward_norm": "ffn_norm.weight",
        "attention.query": "attn_q.weight",
        "attention.key": "attn_k.weight",
        "attention.value": "attn_v.weight",
        "attention.output": "attn_output.weight",
        "attention.query_bias": "attn_q.bias",
        "attention.key_bias": "attn_k.bias",
        "attention.value_bias": "attn_v.bias",
        "attention.output_bias": "attn_output.bias",
        "attention.query_norm": "attn_q_norm.weight",
        "attention.key_norm": "attn_k_norm.weight",
        "mixer_post_norm": "post_attention_norm.weight",
        "feed_forward_post_norm": "post_ffw_norm.weight",
        "feed_forward.gate": "ffn_gate.weight",
        "feed_forward.up": "ffn_up.weight",
        "feed_forward.down": "ffn_down.weight",
        "feed_forward.gate_bias": "ffn_gate.bias",
        "feed_forward.up_bias": "ffn_up.bias",
        "feed_forward.down_bias": "ffn_down.bias",
    }
)

_GGUF_TOP: Final = MappingProxyType(
    {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
)

HUB_ROOTS: Final = (
    MappingProxyType({"body": "model.", "head": ""}),
    MappingProxyType({"body": "model.language_model.", "head": ""}),
    MappingProxyType({"body": "language_model.model.", "head": "language_model."}),
    MappingProxyType({"body": "", "head": ""}),
)

_HUB_IGNORED: Final = (
    Ignored(r".*rotary_emb\.inv_freq", "computed from the config"),
    Ignored(r"(language_model\.)?lm_head\.weight", "a copy of the tied head"),
)


def bound(
    blueprint: Blueprint,
    names: Mapping[str, str],
    *,
    top: Mapping[str, str] = _LLAMA_TOP,
    layer: str = "{{body}}layers.{index}.",
    fusions: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    roots: tuple[Mapping[str, str], ...] = HUB_ROOTS,
    ignored: tuple[Ignored, ...] = _HUB_IGNORED,
    minus_one: bool = False,
    permuted: bool = False,
) -> Layout:
    """A layout from name tables: `top` for whole roles, `names` for roles below `layers.N.`.

    fusions    name -> roles stored under it, joined along the rows
    minus_one  norms are stored as w + 1
    permuted   rows of queries and keys are stored for adjacent-pair rotation
    """
    bindings: list[Binding] = []
    fused_in = {role: name for name, members in fusions.items() for role in members}
    done: set[str] = set()
    text = [tensor for tensor in inventory(blueprint) if tensor.part == "text"]
    roles_present = {tensor.role for tensor in text}
    for tensor in text:
        if tensor.role in done:
            continue
        if not tensor.role.startswith("layers."):
            bindings.append(Binding((tensor.role,), (top[tensor.role],), _norm_transform(tensor.use, minus_one)))
            continue
        _, index, below = tensor.role.split(".", 2)
        prefix = layer.format(index=index)
        if below in fused_in:
            name = fused_in[below]
            roles = tuple(
                role for member in fusions[name] if (role := f"layers.{index}.{member}") in roles_present
            )
            done.update(roles)
            bindings.append(Binding(roles, (prefix + name,)))
            continue
        transform: MinusOne | PermutedRows | None = _norm_transform(tensor.use, minus_one)
        mixer = blueprint.layers[int(index)].mixer
        if permuted and isinstance(mixer, Attention):
            if below in ("attention.query", "attention.query_bias"):
                transform = PermutedRows(mixer.heads)
            elif below in ("attention.key", "attention.key_bias"):
                transform = PermutedRows(mixer.kv_heads)
        bindings.append(Binding((tensor.role,), (prefix + names[below],), transform))
    return Layout(tuple(bindings), roots, ignored)


def _norm_transform(use: str, minus_one: bool) -> MinusOne | None:
    return MinusOne() if minus_one and use == "norm" else None


def gguf_bindings(
    blueprint: Blueprint,
    extra: Mapping[str, str] = MappingProxyType({}),
    *,
    top: Mapping[str, str] = MappingProxyType({}),
    fusions: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    minus_one: bool = False,
    permuted: bool = False,
) -> Layout:
    """The layout of a GGUF file; `extra` adds to or replaces the common names below `blk.N.`, `top` those outside."""
    return bound(
        blueprint,
        {**_GGUF_NAMES, **extra},
        top={**_GGUF_TOP, **top},
        layer="blk.{index}.",
        fusions=fusions,
        roots=(MappingProxyType({}),),
        ignored=(
            Ignored(r"rope_freqs\.weight", "read with the header"),
            *((Ignored(r"output\.weight", "a copy of the tied head"),) if blueprint.head.tied else ()),
        ),
        minus_one=minus_one,
        permuted=permuted,
    )


def gguf_rows(header: GGUFHeader, name: str) -> int | None:
    """Rows of a matrix in a GGUF file, None where it is absent; ConfigError: it is no matrix."""
    tensor = header.tensors.get(name)
    if tensor is None:
        return None
    if len(tensor.shape) < 2 or tensor.shape[0] < 1:
        found = f"shape {tensor.shape}"
        raise ConfigError(fault(f"tensor {name!r}", file=header.path, expected="a matrix", found=found))
    return tensor.shape[0]


def gguf_vocabulary(meta: ConfigReader, header: GGUFHeader) -> int:
    """Vocabulary of a GGUF file: rows of the embedding, else `vocab_size`, else the tokenizer's length."""
    rows = gguf_rows(header, "token_embd.weight")
    if rows is not None:
        meta.use("vocab_size")
        meta.record("vocabulary", "derived", "rows of token_embd.weight", rows)
        return rows
    if meta.given("vocab_size"):
        return meta.integer("vocab_size", field="vocabulary")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sequence) and not isinstance(tokens, str) and len(tokens):
        meta.record("vocabulary", "convention", "length of tokenizer.ggml.tokens", len(tokens))
        return len(tokens)
    raise ConfigError(
        fault(
            "the vocabulary size is not stated",
            file=meta.file,
            expected=f"key {meta.dotted('vocab_size')!r}, tensor 'token_embd.weight' or 'tokenizer.ggml.tokens'",
        )
    )


def gguf_rope_scaling(meta: ConfigReader, header: GGUFHeader) -> RopeScaling | None:
    """Scaling of the rotary frequencies: stored factors, or the `rope.scaling` keys."""
    kind = meta.text("rope.scaling.type", field="rope.scaling", default="none")
    stored = header.tensors.get("rope_freqs.weight")
    if stored is not None:
        if stored.format.name != "f32":
            raise ConfigError(
                fault("tensor 'rope_freqs.weight'", file=meta.file, expected="f32", found=stored.format.name)
            )
        with stored.file.open("rb") as file:
            file.seek(stored.offset)
            data = file.read(stored.nbytes)
        factors = struct.unpack(f"<{len(data) // 4}f", data)
        if not all(math.isfinite(f) and f > 0 for f in factors):
            raise ConfigError(fault("tensor 'rope_freqs.weight'", file=meta.file, expected="positive factors"))
        meta.record("rope.scaling", "derived", "rope_freqs.weight", "stored factors")
        return FactorScaling(factors)
    if kind == "none":
        return None
    if kind == "linear":
        return LinearScaling(meta.number("rope.scaling.factor", field="rope.factor"))
    raise UnsupportedError(
        fault(f"key {meta.dotted('rope.scaling.type')!r}", file=meta.file, expected="none or linear", found=repr(kind))
    )


def gguf_attention_sizes(meta: ConfigReader, hidden: int) -> tuple[int, int, int, int]:
    """(heads, kv_heads, key size, value size) of a GGUF file whose layers are alike."""
    heads = meta.integer("attention.head_count", field="attention.heads")
    kv_heads = meta.integer("attention.head_count_kv", field="attention.kv_heads", default=heads)
    if meta.given("attention.key_length"):
        key = meta.integer("attention.key_length", field="attention.qk_dim")
    elif hidden % heads:
        raise meta.error(
            "attention.key_length", expected="the head size, as hidden is no multiple of heads", found="nothing"
        )
    else:
        key = hidden // heads
        meta.record("attention.qk_dim", "convention", "embedding_length / head_count", key)
    value = meta.integer("attention.value_length", field="attention.v_dim", default=key)
    return heads, kv_heads, key, value
