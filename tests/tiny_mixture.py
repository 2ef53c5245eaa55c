"""Tiny random models: mixtures of experts, with attention sinks, values of their own size and norms over all heads."""

from __future__ import annotations

from types import MappingProxyType

from tiny_model import Tiny

WINDOW = 24

# Odd sizes on purpose. An expert at a time in transformers too: its other forms pad, and count padded products.
_TEXT = MappingProxyType(
    {
        "vocab_size": 211,
        "hidden_size": 40,
        "intermediate_size": 52,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "experts_implementation": "eager",
    }
)

_QWEN3_MOE = MappingProxyType(
    {
        **_TEXT,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "num_experts": 9,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
    }
)

_GLM = MappingProxyType(
    {
        **_TEXT,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "attention_bias": True,
        "moe_intermediate_size": 20,
        "n_shared_experts": 2,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
    }
)

_MINIMAX = MappingProxyType(
    {
        **_TEXT,
        "intermediate_size": 20,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 10,
        "num_experts_per_tok": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5},
    }
)

# Published: window layers have twice the key-value heads, a third of each head turns.
_MIMO = MappingProxyType(
    {
        **_TEXT,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 2,
        "mlp_layer_types": ["dense", *["sparse"] * 5],
        "attention_bias": True,
        "attention_value_scale": 0.6,
        "moe_intermediate_size": 20,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.34}
            for kind, theta in (("full_attention", 5e5), ("sliding_attention", 1e4))
        },
    }
)

MODELS: MappingProxyType[str, Tiny] = MappingProxyType(
    {
        "qwen3_moe": Tiny(
            "Qwen3MoeConfig",
            "Qwen3MoeForCausalLM",
            {**_QWEN3_MOE, "norm_topk_prob": True, "attention_bias": True},
        ),
        # Every second layer dense, weights as the softmax has them.
        "qwen3_moe_sparse_step": Tiny(
            "Qwen3MoeConfig",
            "Qwen3MoeForCausalLM",
            {**_QWEN3_MOE, "norm_topk_prob": False, "decoder_sparse_step": 2, "tie_word_embeddings": True},
        ),
        "glm4_moe": Tiny(
            "Glm4MoeConfig",
            "Glm4MoeForCausalLM",
            {
                **_GLM,
                "num_hidden_layers": 4,
                "n_routed_experts": 12,
                "num_experts_per_tok": 4,
                "n_group": 4,
                "topk_group": 2,
                "first_k_dense_replace": 2,
                "use_qk_norm": True,
            },
        ),
        "glm4_moe_air": Tiny(
            "Glm4MoeConfig",
            "Glm4MoeForCausalLM",
            {
                **_GLM,
                "num_hidden_layers": 3,
                "n_routed_experts": 7,
                "num_experts_per_tok": 2,
                "first_k_dense_replace": 1,
                "norm_topk_prob": False,
                "use_qk_norm": False,
            },
        ),
        "minimax_m2": Tiny("MiniMaxM2Config", "MiniMaxM2ForCausalLM", _MINIMAX),
        "mimo_v2_flash": Tiny(
            "MiMoV2FlashConfig",
            "MiMoV2FlashForCausalLM",
            _MIMO,
            around=MappingProxyType({"sinks": 1.0}),
            window=WINDOW,
        ),
    }
)
