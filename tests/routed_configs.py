"""Small configs of the families with latent attention or sigmoid-routed experts, spelled as published."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "vocab_size": 301,
    "hidden_size": 32,
    "intermediate_size": 40,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.44.2",
    "use_cache": True,
}
_ROUTED: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 4,
    "topk_group": 2,
}
_LATENT: dict[str, Any] = {
    **_COMMON,
    **_ROUTED,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "ep_size": 1,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-5,
}
_YARN: dict[str, Any] = {
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
    },
}
_INDEX: dict[str, Any] = {"index_head_dim": 8, "index_n_heads": 3, "index_topk": 5}
BLOCKS = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [16, 16],
}


def deepseek_v3() -> dict[str, Any]:
    return {**_LATENT, **_YARN, "model_type": "deepseek_v3"}


def deepseek_v32() -> dict[str, Any]:
    return {**_LATENT, **_YARN, **_INDEX, "model_type": "deepseek_v32"}


def glm_5() -> dict[str, Any]:
    return {
        **_LATENT,
        **_INDEX,
        "model_type": "glm_moe_dsa",
        "head_dim": 4,
        "qk_head_dim": 10,
        "indexer_rope_interleave": True,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    }


def glm_4_5() -> dict[str, Any]:
    return {
        **_COMMON,
        **{key: value for key, value in _ROUTED.items() if key not in ("scoring_func", "topk_method")},
        "model_type": "glm4_moe",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-5,
    }


def mimo() -> dict[str, Any]:
    return {
        **_COMMON,
        **_ROUTED,
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 24,
        "swa_v_head_dim": 16,
        "sliding_window": 8,
        "sliding_window_size": 8,
        "attention_chunk_size": 8,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1],
        "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1],
        "n_shared_experts": None,
        "routed_scaling_factor": None,
        "rope_theta": 5000000,
        "swa_rope_theta": 10000,
        "partial_rotary_factor": 0.334,
        "attention_value_scale": 0.707,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "layernorm_epsilon": 1e-5,
    }


def minimax() -> dict[str, Any]:
    return {
        **{key: value for key, value in _COMMON.items() if key != "attention_bias"},
        "model_type": "minimax_m2",
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rotary_dim": 8,
        "rope_theta": 5000000,
        "attn_type_list": [1, 1, 1],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 24,
        "mlp_intermediate_size": 64,
        "shared_intermediate_size": 0,
        "num_mtp_modules": 3,
        "mtp_transformer_layers": 1,
        "use_mtp": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "use_routing_bias": True,
        "scoring_func": "sigmoid",
        "sliding_window": None,
        "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "output_router_logits": False,
        "rms_norm_eps": 1e-6,
    }


PUBLISHED = (deepseek_v3, deepseek_v32, glm_5, glm_4_5, mimo, minimax)
CLASSES = {
    "deepseek_v3": "DeepseekV3",
    "deepseek_v32": "DeepseekV32",
    "glm_moe_dsa": "GlmMoeDsa",
    "glm4_moe": "Glm4Moe",
    "mimo_v2_flash": "MiMoV2Flash",
    "minimax_m2": "MiniMaxM2",
}
