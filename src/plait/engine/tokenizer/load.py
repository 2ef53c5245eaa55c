"""Tokenizers from files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.engine.tokenizer.base import Facts, Tokenizer
from plait.engine.tokenizer.bpe import byte_level_from_gguf
from plait.engine.tokenizer.hub import build, check_document
from plait.engine.tokenizer.keys import Header, Keys, Kind, read_scores, read_vocabulary
from plait.engine.tokenizer.markers import markers
from plait.engine.tokenizer.rules import Side, rules_of
from plait.engine.tokenizer.spelling import SPACE, byte_of
from plait.engine.tokenizer.spm import PieceMerger, SentencePieceTokenizer
from plait.errors import TokenizerError, fault

__all__ = ["load_tokenizer", "tokenizer_from_gguf"]


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory: tokenizer.json, completed by the files beside it.

    tokenizer_config.json and special_tokens_map.json name the special tokens, generation_config.json and
    config.json hold further ids that end generation, chat_template.jinja goes before the template in
    tokenizer_config.json. Raises TokenizerError where tokenizer.json is missing or any of them is malformed.
    """
    file = directory / "tokenizer.json"
    document = _read_object(file)
    if document is None:
        raise TokenizerError(_missing(directory))
    checked = check_document(document, file)
    side = Side(
        directory=directory,
        tokenizer=_read_object(directory / "tokenizer_config.json") or {},
        special=_read_object(directory / "special_tokens_map.json") or {},
        generation=_read_object(directory / "generation_config.json") or {},
        config=_read_object(directory / "config.json") or {},
        processor=_read_object(directory / "chat_template.json") or {},
        templates=_read_templates(directory),
    )
    checked, rules = rules_of(checked, side)
    return build(checked, rules, file)


def tokenizer_from_gguf(header: Header) -> Tokenizer:
    """The tokenizer in a GGUF's metadata: SentencePiece BPE ("llama") or byte-level BPE ("gpt2").

    Raises TokenizerError naming file and key: for other kinds, none at all, or a malformed vocabulary.
    """
    keys = Keys(header)
    model = keys.text("model")
    if model == "gpt2":
        return byte_level_from_gguf(keys)
    if model == "llama":
        return _sentencepiece(keys)
    raise keys.error(
        "model", "llama or gpt2", "nothing" if model is None else model, "give a directory with a tokenizer.json"
    )


def _sentencepiece(keys: Keys) -> SentencePieceTokenizer:
    if keys.flag("remove_extra_whitespaces"):
        raise keys.error("remove_extra_whitespaces", "false", "true", "this normalisation is not supported")
    if keys.items("precompiled_charsmap"):
        raise keys.error("precompiled_charsmap", "none", "one", "this normalisation is not supported")
    vocabulary = read_vocabulary(keys, adds_bos=True)
    tokens = vocabulary.tokens
    prefix = keys.flag("add_space_prefix")
    default, templates = keys.templates()
    user = vocabulary.of(Kind.USER)
    control = vocabulary.of(Kind.CONTROL) | vocabulary.ends()
    control |= {text: user[text] for text in markers(user, templates)}
    bytes_ = {byte_of(text): token for text, token in vocabulary.of(Kind.BYTE).items()}
    if bytes_ and (None in bytes_ or len(bytes_) != 256):
        raise keys.error("tokens", "256 byte tokens <0x00> to <0xFF>, or none", f"{len(bytes_)} kinds")
    never = frozenset(control.values())
    fixed = {text.replace(" ", SPACE): token for text, token in user.items() if token not in never}
    # What merging may yield: all but control, unknown and byte tokens. User-defined ones are matched escaped.
    ids = dict(vocabulary.ids)
    for text in control.keys() | vocabulary.of(Kind.USER, Kind.BYTE, Kind.UNKNOWN).keys():
        del ids[text]
    ids |= fixed
    unknown = vocabulary.unknown if vocabulary.unknown not in never else None
    return SentencePieceTokenizer(
        Facts(
            vocabulary=len(tokens),
            bos=vocabulary.bos,
            start=vocabulary.start,
            eos=vocabulary.eos,
            adds_eos=vocabulary.adds_eos,
            control=never,
            chat_template=default,
            first_space=True if prefix is None else prefix,
        ),
        merger=PieceMerger(
            ids,
            read_scores(keys, len(tokens)),
            fixed,
            frozenset(vocabulary.of(Kind.UNUSED).values()),
        ),
        control=control | vocabulary.of(Kind.UNKNOWN),
        tokens=tokens,
        fallback=[bytes_[byte] for byte in range(256)] if bytes_ else [],
        unknown=unknown,
    )


def _read_object(file: Path) -> Mapping[str, Any] | None:
    """The JSON object in `file`, or None where there is no such file."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenizerError(fault("file", file=file, expected="a readable file", found=error.strerror)) from None
    except (ValueError, RecursionError) as error:
        raise TokenizerError(fault("JSON", file=file, expected="a JSON object", found=str(error))) from None
    if not isinstance(content, dict):
        raise TokenizerError(fault("JSON", file=file, expected="a JSON object", found=type(content).__name__))
    return content


def _read_templates(directory: Path) -> Mapping[str, str]:
    """Chat templates in files of their own, by name; the default one is called "default"."""
    files = {"default": directory / "chat_template.jinja"}
    files.update({file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))})
    templates = {}
    for name, file in files.items():
        try:
            templates[name] = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(fault("file", file=file, expected="UTF-8 text", found=str(error))) from None
    return templates


def _missing(directory: Path) -> str:
    there = [name for name in ("tokenizer.model", "vocab.json", "tekken.json") if (directory / name).exists()]
    return fault(
        "tokenizer",
        file=directory,
        expected="tokenizer.json (or a GGUF, which holds its own)",
        found=f"only {', '.join(there)}" if there else "neither it nor tokenizer.model, vocab.json or tekken.json",
        advice="save the tokenizer in the tokenizer.json format" if there else "copy tokenizer.json beside the weights",
    )
