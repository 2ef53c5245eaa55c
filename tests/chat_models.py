"""Small tokenizers with chat templates in the style of many families, and the reference made from the same files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Final

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from plait.engine.chat import ChatFormat, read_templates
from plait.engine.tokenizer import load_tokenizer

TEMPLATES: Final = Path(__file__).parent / "data" / "templates"
NAMES: Final = tuple(sorted(file.stem for file in TEMPLATES.glob("*.jinja")))
TRACED: Final = tuple(name for name in NAMES if name != "untraceable")

# Special tokens by template; the thought and tool markers are ordinary added tokens, as models have them.
SPECIAL: Final = MappingProxyType(
    {
        "chatml": ("<|im_start|>", "<|im_end|>"),
        "untraceable": ("<|im_start|>", "<|im_end|>"),
        "thought_left_out": ("<|im_start|>", "<|im_end|>"),
        "thought_kept": ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>", "[gMASK]"),
        "turns": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "instruct": ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                     "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "headers": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "pieces": ("<|user|>", "<|system|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
    }
)  # fmt: skip
ADDED: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
BOS: Final = MappingProxyType(
    {"turns": "<bos>", "instruct": "<s>", "headers": "<|begin_of_text|>", "thought_kept": "[gMASK]"}
)
EOS: Final = MappingProxyType(
    {"turns": "<eos>", "instruct": "</s>", "headers": "<|eot_id|>", "thought_kept": "<|endoftext|>",
     "pieces": "<|endoftext|>"}
)  # fmt: skip

TEXT: Final = (
    "the quick brown fox jumps over the lazy dog, then rests. First question? An answer. Hello there!\n\n"
    "system user assistant think tool call response value name arguments instruction rules today is the end of it\n"
) * 4


def _library(kind: str) -> Library:
    """A tokenizer of about 400 tokens: `bytes`, byte-level BPE; `pieces`, the SentencePiece way with a first space."""
    built = Library(models.BPE(byte_fallback=kind == "pieces", unk_token="<unk>" if kind == "pieces" else None))
    if kind == "bytes":
        built.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\s+(?!\S)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        built.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=420, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
        )
    else:
        built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        built.normalizer = normalizers.Sequence([])
        built.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", *bytes_], show_progress=False)
    built.train_from_iterator([TEXT], trainer)
    return built


def write_chat_model(directory: Path, template: str, *, kind: str = "bytes", text: str | None = None) -> Path:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja of a small model with one of the templates."""
    directory.mkdir(parents=True, exist_ok=True)
    built = _library(kind)
    if kind == "pieces":
        # The byte tokens are pieces, not markers.
        document = json.loads(built.to_str())
        document["added_tokens"] = [e for e in document["added_tokens"] if not e["content"].startswith("<0x")]
        built = Library.from_str(json.dumps(document))
    built.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL[template]])
    built.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS.get(template, "<|im_end|>")}
    if template in BOS:
        settings["bos_token"] = BOS[template]
    source = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8") if text is None else text
    (directory / "tokenizer.json").write_text(built.to_str(), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(source, encoding="utf-8")
    return directory


@cache
def chat_model(template: str, kind: str = "bytes") -> tuple[ChatFormat, PreTrainedTokenizerFast]:
    """(ours, the reference) for one template, from the same directory."""
    directory = write_chat_model(Path(mkdtemp(prefix="chat-")), template, kind=kind)
    reference = PreTrainedTokenizerFast.from_pretrained(directory)
    return ChatFormat(read_templates(directory), load_tokenizer(directory)), reference


def user(text, **fields):
    return {"role": "user", "content": text, **fields}


def assistant(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def system(text):
    return {"role": "system", "content": text}


def call(arguments, name="look_up"):
    return {"id": "abcdef123", "type": "function", "function": {"name": name, "arguments": arguments}}


TOOL: Final = MappingProxyType(
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": 'Looks <b>words</b> up & says "hello".',
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
)


def expected(reference, messages, tools=None, add_generation_prompt=True, **variables):
    """The ids transformers gives."""
    return tuple(
        reference.apply_chat_template(
            messages,
            tools=tools,
            tokenize=True,
            add_generation_prompt=add_generation_prompt,
            return_dict=False,
            **variables,
        )
    )
