"""Every word a picture shows, in English and Chinese: one table, so that a missing word is an error and not a blank."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from plait.errors import UsageError

__all__ = ["LANGUAGES", "WORDS", "Lang", "lang_of", "word"]

Lang = Literal["en", "zh"]
LANGUAGES: Final[tuple[Lang, ...]] = ("en", "zh")

# Key -> (English, Chinese); what stands in braces is filled in.
WORDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        # Kinds of layers: keys are the roles of `theme`.
        "attention": ("Full attention", "全注意力"),
        "window": ("Sliding-window attention", "滑动窗口注意力"),
        "delta": ("Gated DeltaNet", "门控 DeltaNet"),
        "latent": ("Latent attention", "潜在注意力"),
        "sparse": ("Sparse latent attention", "稀疏潜在注意力"),
        "dense": ("Dense feed-forward", "稠密前馈"),
        "mixture": ("Mixture of experts", "混合专家"),
        "both": ("Dense + mixture of experts", "稠密 + 混合专家"),
        # The parts of a whole model.
        "tokens": ("token ids", "词元编号"),
        "logits": ("logits", "logits"),
        "embedding": ("Token embedding", "词元嵌入"),
        "head": ("Output head", "输出头"),
        "head_tied": ("the embedding's own matrix (tied)", "与词元嵌入同一矩阵（权重共享）"),
        "final_norm": ("Final norm", "最终归一化"),
        "per_layer_table": ("Per-layer embeddings", "逐层嵌入"),
        "tower_vision": ("Vision", "视觉"),
        "tower_audio": ("Audio", "音频"),
        "tower_joins": ("its vectors take the place of token vectors", "其向量替换词元向量"),
        "mtp": ("Multi-token prediction", "多词元预测"),
        "mtp_outside": ("in the file, not part of the graph", "存于文件中，不属于计算图"),
        "mtp_shared": ("one projection for all its layers", "各层共用一个投影"),
        "mtp_copy_embedding": ("own copies of the embedding", "自带词元嵌入副本"),
        "mtp_copy_head": ("own copies of the head", "自带输出头副本"),
        "streams_in": ("AltUp: into {n} streams", "AltUp：分为 {n} 路"),
        "streams_out": ("AltUp: {n} streams into one", "AltUp：{n} 路合一"),
        "streams_active": ("stream {i} is computed on", "对第 {i} 路做计算"),
        "streams_clip": ("coefficients clipped at {x}", "系数截断至 {x}"),
        "streams_scale": ("output scaled by the active stream", "输出按活动流修正"),
        # Sizes and properties of parts.
        "matrix": ("{rows} × {columns}", "{rows} × {columns}"),
        "times_scale": ("× {x}", "× {x}"),
        "softcap": ("softcap {x}", "软上限 {x}"),
        "rms": ("RMSNorm", "RMSNorm"),
        "layer_norm": ("LayerNorm", "LayerNorm"),
        "norm_offset": ("weight {x} + w", "权重 {x} + w"),
        "norm_bare": ("no weight", "无权重"),
        "norm_bias": ("with bias", "带偏置"),
        "table": ("table {rows} × {layers} × {dim}", "表 {rows} × {layers} × {dim}"),
        # Facts of token mixers.
        "heads": ("{n} heads", "{n} 头"),
        "heads_kv": ("{n} heads, {kv} KV", "{n} 头，{kv} KV 头"),
        "head_size": ("head size {n}", "头维 {n}"),
        "head_sizes": ("head size {n}, values {v}", "头维 {n}，值 {v}"),
        "window_size": ("window {n}", "窗口 {n}"),
        "theta": ("θ {x}", "θ {x}"),
        "rotated": ("rotates {n} of {all}", "旋转 {n}/{all} 维"),
        "no_positions": ("no positions", "无位置编码"),
        "scaling_linear": ("positions ÷ {x}", "位置 ÷ {x}"),
        "scaling_yarn": ("YaRN × {x}", "YaRN × {x}"),
        "scaling_llama3": ("llama3 scaling × {x}", "llama3 缩放 × {x}"),
        "scaling_factors": ("stored factors", "存储的频率因子"),
        "axes": ("axes {x}", "轴 {x}"),
        "qk_norm": ("q/k norm", "q/k 归一化"),
        "qk_norm_all": ("q/k norm over all heads", "q/k 跨头归一化"),
        "v_norm": ("v norm", "v 归一化"),
        "keys_are_values": ("keys are values", "键即值"),
        "gate_head": ("gate per head ({act})", "逐头门控（{act}）"),
        "gate_element": ("gate per element ({act})", "逐元素门控（{act}）"),
        "sinks": ("sinks", "注意力汇点"),
        "value_scale": ("values × {x}", "值 × {x}"),
        "qkv_bias": ("q/k/v bias", "q/k/v 偏置"),
        "output_bias": ("output bias", "输出偏置"),
        "bias": ("bias", "偏置"),
        "image_mask": ("image tokens see each other", "图像词元互见"),
        "kv_of": ("reads K/V of layer {i}", "读第 {i} 层的 K/V"),
        "kv_nearest": ("reads K/V of the nearest such layer below", "读下方最近同类层的 K/V"),
        "choice_of": ("takes the choice of layer {i}", "用第 {i} 层的选择"),
        "choice_nearest": ("takes the choice of the nearest indexer below", "用下方最近索引器的选择"),
        "delta_heads": ("{n} key heads, {v} value heads", "{n} 键头，{v} 值头"),
        "state": ("state {h} × {k} × {v}", "状态 {h} × {k} × {v}"),
        "convolution": ("convolution {n}", "卷积 {n}"),
        "output_gate": ("output gate {act}", "输出门 {act}"),
        "q_rank": ("query rank {n}", "查询秩 {n}"),
        "latent_size": ("latent {n} + {r} rotated", "潜向量 {n} + 旋转 {r}"),
        "latent_heads": ("head {n} + {r}, values {v}", "头维 {n} + {r}，值 {v}"),
        "top_k": ("top {n} keys", "选 {n} 个键"),
        "indexer": ("indexer {n} × {d}", "索引器 {n} × {d}"),
        "post_norm": ("post-norm", "后归一化"),
        "laurel": ("LAuReL rank {n}", "LAuReL 秩 {n}"),
        # Facts of feed-forward parts.
        "width": ("width {n}", "宽度 {n}"),
        "dense_width": ("dense width {n}", "稠密宽度 {n}"),
        "sparsity": ("sparsity {x}", "稀疏度 {x}"),
        "experts": ("{active} of {n} experts", "{n} 选 {active} 专家"),
        "expert_width": ("expert width {n}", "专家宽度 {n}"),
        "shared": ("{n} shared, width {w}", "{n} 共享专家，宽度 {w}"),
        "shared_gated": ("{n} shared (gated), width {w}", "{n} 共享专家（门控），宽度 {w}"),
        "renormalised": ("renormalised", "重新归一"),
        "router_groups": ("{kept} of {n} groups", "{n} 组选 {kept}"),
        "router_bias": ("selection bias", "选择偏置"),
        "router_scale": ("weights × {x}", "权重 × {x}"),
        "router_norm": ("normed router input", "路由输入归一化"),
        "expert_scale": ("scale per expert", "逐专家系数"),
        "per_layer_input": ("per-layer embedding added", "加逐层嵌入"),
        "scalar": ("times a layer scalar", "乘以层标量"),
        # Activations: keys end in the blueprint's own words.
        "act_silu": ("SiLU", "SiLU"),
        "act_gelu": ("GELU", "GELU"),
        "act_gelu_tanh": ("GELU (tanh)", "GELU (tanh)"),
        "act_sigmoid": ("sigmoid", "sigmoid"),
        "scores_softmax": ("softmax router", "softmax 路由"),
        "scores_sigmoid": ("sigmoid router", "sigmoid 路由"),
        # Numbers of layers.
        "times": ("× {n}", "× {n}"),
        "layer_one": ("layer {i}", "第 {i} 层"),
        "layer_many": ("layers {i}", "层 {i}"),
        "equal_layers": ("{n} equal layers", "{n} 个相同层"),
        # The panel of facts.
        "subtitle": ("{family} · {n} layers", "{family} · {n} 层"),
        "fact_parameters": ("Parameters", "参数量"),
        "fact_in_file": ("in the file", "文件中"),
        "fact_used": ("used by the graph", "计算图使用"),
        "fact_active": ("active per token", "每词元激活"),
        "fact_state": ("State, in bf16", "状态（bf16）"),
        "fact_per_token": ("growth per token", "每词元增长"),
        "fact_windows": ("windows", "窗口"),
        "fact_fixed": ("fixed (recurrent)", "固定（循环状态）"),
        "fact_at": ("at {n} tokens", "{n} 词元时"),
        "fact_sizes": ("Sizes", "规模"),
        "fact_layers": ("layers", "层数"),
        "fact_hidden": ("hidden", "隐藏维"),
        "fact_vocabulary": ("vocabulary", "词表"),
        "fact_context": ("context", "上下文"),
        "fact_stored": ("weights stored in", "权重格式"),
        "fact_bits": ("{x} bits each", "平均 {x} 位"),
        # The legend, and what is read out.
        "legend_repeat": ("repeated layers", "重复层"),
        "legend_kv": ("keys and values reused", "复用键和值"),
        "legend_choice": ("choice of keys reused", "复用所选的键"),
        "legend_tied": ("one matrix", "同一矩阵"),
        "spoken_title": ("Architecture of {name}", "{name} 的架构"),
        "spoken": (
            "{family}, bottom to top: token embedding; {layers}; final norm; output head.",
            "{family}，自下而上：词元嵌入；{layers}；最终归一化；输出头。",
        ),
        "spoken_leaf": ("{where}: {mixer}, {feed_forward}", "{where}：{mixer}，{feed_forward}"),
        "spoken_repeat": ("{n} times ({parts})", "重复 {n} 次（{parts}）"),
    }
)


def lang_of(name: str) -> Lang:
    """The language called `name`; UsageError where there is none."""
    for lang in LANGUAGES:
        if lang == name:
            return lang
    raise UsageError(f"language {name!r} is not known; choose one of {', '.join(LANGUAGES)}")


def word(key: str, lang: Lang, /, **values: object) -> str:
    """The text of `key`, its braces filled with `values`; LookupError where the table has no such key."""
    if key not in WORDS:
        raise LookupError(f"no word for {key!r}")
    return WORDS[key][LANGUAGES.index(lang)].format(**values)
