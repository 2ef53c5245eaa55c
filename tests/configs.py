"""Small configs in the spellings of published files."""

from __future__ import annotations

from typing import Any

from plait.blueprint.source import from_config
from plait.blueprint.spec import Blueprint


def read(config: dict[str, Any]) -> Blueprint:
    """The blueprint of a config."""
    return from_config(config, file="config.json")[0]


def gemma3() -> dict[str, Any]:
    """Gemma 3, as its first files spell it."""
    return {
        "model_type": "gemma3_text",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "torch_dtype": "bfloat16",
    }


def gemma2() -> dict[str, Any]:
    """Gemma 2."""
    return {
        "model_type": "gemma2",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rope_theta": 10_000.0,
        "torch_dtype": "float32",
    }


def qwen3() -> dict[str, Any]:
    """Qwen3, windows switched off as in all published files."""
    return {
        "model_type": "qwen3",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "max_window_layers": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def llama() -> dict[str, Any]:
    """Llama 3.1's scaling at a small size."""
    return {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "torch_dtype": "bfloat16",
    }


def spark() -> dict[str, Any]:
    """Spark-X2.5."""
    return {
        "model_type": "spark2_5",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "gelu",
        "headwise_attn_output_gate": True,
        "gate_attn_act_mode": "sigmoid",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "sliding_window": 8,
        "rope_parameters": {
            "full_attention": {"rope_theta": 5_000_000, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_theta": 10_000, "partial_rotary_factor": 1.0},
        },
        "dtype": "bfloat16",
    }
