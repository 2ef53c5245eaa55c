"""Tiny random models: Gated DeltaNet beside full attention with a gate per element, dense and with experts."""

from __future__ import annotations

from types import MappingProxyType

from tiny_model import Tiny

# Odd sizes on purpose; more than one period of each layer pattern.
_TEXT = MappingProxyType(
    {
        "vocab_size": 211,
        "hidden_size": 40,
        "intermediate_size": 52,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
)
_EXPERTS = MappingProxyType(
    {
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
        "experts_implementation": "eager",
    }
)


def _delta(key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int) -> dict[str, int]:
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": value_dim,
        "linear_conv_kernel_dim": kernel,
    }


def _pattern(word: str) -> list[str]:
    return [{"d": "linear_attention", "f": "full_attention"}[letter] for letter in word]


def _rope(theta: float, share: float) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share}


# Norms scale by 1 + w, but the DeltaNet's by w. A state of these decays forgets half within about 20 tokens.
_AROUND = MappingProxyType({"linear_attn.norm": 1.0, "A_log": -3.0})


def _tiny(family: str, settings: dict[str, object]) -> Tiny:
    text = "" if family == "Qwen3Next" else "Text"
    return Tiny(f"{family}{text}Config", f"{family}ForCausalLM", settings, neutral=0.0, around=_AROUND)


MODELS: MappingProxyType[str, Tiny] = MappingProxyType(
    {
        # A key head serves three value heads.
        "qwen3_5": _tiny(
            "Qwen3_5",
            {
                **_TEXT,
                **_delta(2, 6, 10, 12, 4),
                "num_hidden_layers": 6,
                "layer_types": _pattern("ddfddf"),
                "rope_parameters": _rope(1e7, 0.25),
                "attention_bias": True,
                "tie_word_embeddings": True,
            },
        ),
        # A value head for each key head; every kind of neighbour.
        "qwen3_5_even": _tiny(
            "Qwen3_5",
            {
                **_TEXT,
                **_delta(3, 3, 16, 7, 3),
                "num_hidden_layers": 5,
                "layer_types": _pattern("dffdd"),
                "rope_parameters": _rope(1e4, 0.5),
                "tie_word_embeddings": False,
            },
        ),
        "qwen3_5_moe": _tiny(
            "Qwen3_5Moe",
            {
                **_TEXT,
                **_EXPERTS,
                **_delta(2, 4, 9, 8, 4),
                "num_hidden_layers": 4,
                "layer_types": _pattern("dfdf"),
                "rope_parameters": _rope(1e7, 0.25),
                "tie_word_embeddings": False,
            },
        ),
        # A dense layer among those with experts.
        "qwen3_next": _tiny(
            "Qwen3Next",
            {
                **_TEXT,
                **_EXPERTS,
                **_delta(2, 4, 8, 10, 4),
                "num_hidden_layers": 6,
                "layer_types": _pattern("ddfddf"),
                "rope_parameters": _rope(1e7, 0.25),
                "norm_topk_prob": True,
                "mlp_only_layers": [1],
                "tie_word_embeddings": False,
            },
        ),
    }
)
