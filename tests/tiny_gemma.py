"""Tiny random models: Gemma 4 in its sizes and Gemma 3n."""

from __future__ import annotations

from types import MappingProxyType

from tiny_model import Tiny

WINDOW = 24
_SLIDING, _FULL = "sliding_attention", "full_attention"

# Odd sizes on purpose. An expert at a time in transformers too: its other forms pad, and count padded products.
_TEXT = MappingProxyType(
    {
        "vocab_size": 211,
        "hidden_size": 40,
        "intermediate_size": 52,
        "max_position_embeddings": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "sliding_window": WINDOW,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)

_GEMMA4 = MappingProxyType(
    {
        **_TEXT,
        "global_head_dim": 24,
        "layer_types": [_SLIDING, _FULL] * 2,
        "num_hidden_layers": 4,
        "final_logit_softcapping": 20.0,
        # 6 of the 12 pairs of a head turn.
        "rope_parameters": {
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5e4},
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    }
)

_SETTINGS = MappingProxyType(
    {
        # 12B: keys are values, one head of them on full layers.
        "gemma4_12b": {
            **_GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "attention_bias": True,
        },
        # 26B-A4B: a mixture beside the dense layer.
        "gemma4_26b": {
            **_GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 2,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 3,
            "moe_intermediate_size": 20,
            "experts_implementation": "eager",
        },
        # E2B: per-layer inputs, keys and values reused by double-width layers. Not published: keys that are values are
        # reused too.
        "gemma4_e2b": {
            **_GEMMA4,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 10,
            "vocab_size_per_layer_input": 211,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
        # The table has fewer rows than the vocabulary; widths and sparsity are each layer's own.
        "gemma3n": {
            **_TEXT,
            "vocab_size_per_layer_input": 190,
            "hidden_size_per_layer_input": 10,
            "intermediate_size": [52, 60, 36, 44],
            "num_hidden_layers": 4,
            "layer_types": [_SLIDING, _FULL] * 2,
            "num_kv_shared_layers": 1,
            "laurel_rank": 6,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "activation_sparsity_pattern": [0.95, 0.8, 0.0, 0.5],
            "final_logit_softcapping": 20.0,
        },
    }
)

MODELS: MappingProxyType[str, Tiny] = MappingProxyType(
    {
        "gemma4_12b": Tiny(
            "Gemma4UnifiedTextConfig", "Gemma4UnifiedForCausalLM", _SETTINGS["gemma4_12b"], window=WINDOW
        ),
        **{
            name: Tiny("Gemma4TextConfig", "Gemma4ForCausalLM", _SETTINGS[name], window=WINDOW)
            for name in ("gemma4_26b", "gemma4_e2b")
        },
        "gemma3n": Tiny("Gemma3nTextConfig", "Gemma3nForCausalLM", _SETTINGS["gemma3n"], window=WINDOW),
    }
)
