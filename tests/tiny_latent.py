"""Tiny random models with latent attention: DeepSeek-V3, DeepSeek-V3.2 and GLM-5."""

from __future__ import annotations

from types import MappingProxyType

from tiny_model import Tiny

# Odd sizes on purpose. Value heads are longer than key heads, the latent is longer than either.
_TEXT = MappingProxyType(
    {
        "vocab_size": 211,
        "hidden_size": 48,
        "intermediate_size": 84,
        "max_position_embeddings": 1024,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "q_lora_rank": 28,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 8,
        "v_head_dim": 14,
        "attention_bias": True,
        "tie_word_embeddings": False,
        # The one way of its expert products that takes float64.
        "experts_implementation": "eager",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)

# Sigmoid routing with groups, of which half are kept, behind one dense layer.
_MIXTURE = MappingProxyType(
    {
        "moe_intermediate_size": 20,
        "n_shared_experts": 2,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
    }
)

# Both factors of YaRN: on cosines and sines (0.1 ln 16 + 1) / (0.08 ln 16 + 1), on the scores (0.08 ln 16 + 1)^2.
_YARN = MappingProxyType(
    {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
        }
    }
)

# Enough heads that hardly a key has the score 0: among equal scores transformers promises no order. Of sizes for which
# the last score that is chosen and the next one lie well apart in all tests, so that rounding changes no choice.
_INDEXER = MappingProxyType({"index_n_heads": 12, "index_head_dim": 13, "index_topk": 16})
_PLAIN = MappingProxyType({"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}})

_SETTINGS = MappingProxyType(
    {
        "deepseek_v3": {
            **_TEXT,
            **_MIXTURE,
            **_YARN,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 0,
        },
        "deepseek_v3_direct": {
            **_TEXT,
            **_MIXTURE,
            **_PLAIN,
            "num_hidden_layers": 2,
            "first_k_dense_replace": 2,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": None,
            "attention_bias": False,
            "rope_interleave": False,
        },
        "deepseek_v32": {
            **_TEXT,
            **_MIXTURE,
            **_YARN,
            **_INDEXER,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
        },
        "glm_moe_dsa": {
            **_TEXT,
            **_MIXTURE,
            **_PLAIN,
            **_INDEXER,
            "index_n_heads": 15,
            "index_head_dim": 14,
            "index_topk": 70,
            "num_hidden_layers": 5,
            "first_k_dense_replace": 1,
            "attention_bias": False,
            "indexer_types": ["full", "shared", "full", "shared", "shared"],
        },
    }
)

MODELS: MappingProxyType[str, Tiny] = MappingProxyType(
    {
        "deepseek_v3": Tiny("DeepseekV3Config", "DeepseekV3ForCausalLM", _SETTINGS["deepseek_v3"]),
        "deepseek_v3_direct": Tiny("DeepseekV3Config", "DeepseekV3ForCausalLM", _SETTINGS["deepseek_v3_direct"]),
        "deepseek_v32": Tiny("DeepseekV32Config", "DeepseekV32ForCausalLM", _SETTINGS["deepseek_v32"]),
        "glm_moe_dsa": Tiny("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM", _SETTINGS["glm_moe_dsa"]),
    }
)
