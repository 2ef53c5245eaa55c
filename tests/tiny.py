"""Tiny random models: the families that run, each with the features of its family switched on."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType

import tiny_delta
import tiny_gemma
import tiny_latent
import tiny_mixture
import torch
from lifted import Lifted
from tiny_model import Tiny

from plait.runtime.ops.exact import settle

WINDOW = 24

# Odd sizes on purpose; more than one period of each layer pattern.
_TEXT = MappingProxyType(
    {
        "vocab_size": 211,
        "hidden_size": 48,
        "intermediate_size": 84,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)

_SETTINGS = MappingProxyType(
    {
        "gemma3": {
            **_TEXT,
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 20,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "final_logit_softcapping": 20.0,
        },
        "gemma2": {
            **_TEXT,
            "num_hidden_layers": 5,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,
        },
        "qwen3": {
            **_TEXT,
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
        "qwen3_window": {
            **_TEXT,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
        "llama": {
            **_TEXT,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    }
)

MODELS = MappingProxyType(
    {
        "gemma3": Tiny("Gemma3TextConfig", "Gemma3ForCausalLM", _SETTINGS["gemma3"], neutral=0.0, window=WINDOW),
        "gemma2": Tiny("Gemma2Config", "Gemma2ForCausalLM", _SETTINGS["gemma2"], neutral=0.0, window=WINDOW),
        "qwen3": Tiny("Qwen3Config", "Qwen3ForCausalLM", _SETTINGS["qwen3"]),
        "qwen3_window": Tiny("Qwen3Config", "Qwen3ForCausalLM", _SETTINGS["qwen3_window"], window=WINDOW),
        "llama": Tiny("LlamaConfig", "LlamaForCausalLM", _SETTINGS["llama"]),
        **tiny_delta.MODELS,
        **tiny_mixture.MODELS,
        **tiny_latent.MODELS,
        **tiny_gemma.MODELS,
    }
)
SETTINGS = MappingProxyType({name: tiny.settings for name, tiny in MODELS.items()})


def reference_model(name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0):
    """The transformers model `MODELS[name]` with random weights, norms and biases away from their neutral values."""
    import transformers

    # Before two threads of the library choose its code paths at once; see `settle`.
    settle()
    tiny = MODELS[name]
    config = getattr(transformers, tiny.config)(**tiny.settings, attn_implementation="eager")
    torch.manual_seed(seed)
    # Frequencies of rotations are made here, and they too would be float32.
    with Lifted() if dtype == torch.float64 else nullcontext():
        model = getattr(transformers, tiny.model)(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(tiny.centre(parameter_name) + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * (1.0 / parameter.shape[-1] ** 0.5))
        stored = model.state_dict().keys()
        for buffer_name, buffer in model.named_buffers():
            # Biases of routers and the like, which files hold beside the weights.
            if buffer_name in stored:
                buffer.copy_(tiny.centre(buffer_name) + 0.2 * torch.randn_like(buffer))
    return model.to(dtype).eval()


def save(name: str, directory: Path, **options) -> Path:
    """Write the model of `reference_model` as transformers does."""
    reference_model(name, **options).save_pretrained(directory)
    return directory


def tokens(count: int, vocabulary: int = 211, seed: int = 1) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count,), generator=generator).tolist()
