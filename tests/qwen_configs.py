"""Small configs of the Qwen families with experts or Gated DeltaNet, in the spelling of their published files."""

from __future__ import annotations

from typing import Any

HYBRID = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
}
DELTA: dict[str, Any] = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 12,
}


def qwen3_moe() -> dict[str, Any]:
    return {
        **SIZES,
        **EXPERTS,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "intermediate_size": 96,
        "max_window_layers": 4,
        "norm_topk_prob": True,
        "rope_scaling": None,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def qwen3_next() -> dict[str, Any]:
    return {
        **SIZES,
        **EXPERTS,
        **DELTA,
        "model_type": "qwen3_next",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "intermediate_size": 96,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.25,
        "rope_scaling": None,
        "rope_theta": 10_000_000,
        "shared_expert_intermediate_size": 40,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def vision() -> dict[str, Any]:
    return {
        "deepstack_visual_indexes": [],
        "depth": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 48,
        "model_type": "qwen3_5",
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def text() -> dict[str, Any]:
    """What stands under `text_config` of both Qwen3.5 families."""
    return {
        **SIZES,
        **DELTA,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "layer_types": HYBRID,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": True,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [1, 1, 0],
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
        },
    }


def whole(model_type: str, text_config: dict[str, Any]) -> dict[str, Any]:
    """A model with a tower."""
    return {
        "architectures": ["X"],
        "image_token_id": 290,
        "model_type": model_type,
        "text_config": {**text_config, "model_type": f"{model_type}_text"},
        "tie_word_embeddings": True,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 291,
        "vision_config": {**vision(), "model_type": model_type},
        "vision_end_token_id": 292,
        "vision_start_token_id": 293,
    }


def qwen3_5() -> dict[str, Any]:
    return whole("qwen3_5", {**text(), "intermediate_size": 96, "mlp_only_layers": []})


def qwen3_5_moe() -> dict[str, Any]:
    return whole("qwen3_5_moe", {**text(), **EXPERTS, "shared_expert_intermediate_size": 40})


ALL = (qwen3_moe, qwen3_next, qwen3_5, qwen3_5_moe)
