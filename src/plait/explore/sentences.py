"""What counts and what is taken for granted, in both languages: the account's own sentences and their Chinese."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["CHINESE", "in_both"]

# English, as `plait.account` states it -> Chinese.
CHINESE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "1 multiply-add = 2 FLOPs": "一次乘加 = 2 FLOPs",
        "not counted: norms, activations, RoPE, exponentials of softmax, biases, residual sums, softcaps, embedding "
        "look-ups, choosing experts and keys, and products of an element with an element: value scales, output gates "
        "and gated feed-forwards (the projections of the gates are counted)": (
            "不计入：归一化、激活函数、RoPE、softmax 的指数、偏置、残差求和、softcap、嵌入查表、专家与键的选择，"
            "以及逐元素乘积：值缩放、输出门与门控前馈（门的投影计入）"
        ),
        "a causal query at position p meets p + 1 keys; masked scores are not counted": (
            "位置 p 的因果查询遇到 p + 1 个键；被掩蔽的分数不计入"
        ),
        "in a window of W it meets min(p + 1, W) keys": "在大小为 W 的窗口中，它遇到 min(p + 1, W) 个键",
        "decode is the last token of the context: it meets `context` keys, itself among them": (
            "解码指上下文的最后一个词元：它遇到 `context` 个键，包括自身"
        ),
        "every layer runs for every token; the head runs for the last token of a prefill (`total_all_logits`: for "
        "all), and is counted where its weights are the embedding's too": (
            "每一层对每个词元运行；输出头只对预填充的最后一个词元运行（`total_all_logits`：对全部），"
            "其权重与嵌入共享时同样计入"
        ),
        "layers that read another layer's keys and values project none of their own": (
            "读取其他层键值的层不做自己的键值投影"
        ),
        "latent attention runs absorbed: scores against latent and rotated key, values from the latent, the key/value "
        "up-projection once per query": (
            "潜在注意力以吸收形式运行：分数针对潜向量与旋转键，值来自潜向量，键值上投影每个查询一次"
        ),
        "in a sparse layer a query attends to min(p + 1, top_k) keys": (
            "在稀疏层中，一个查询关注 min(p + 1, top_k) 个键"
        ),
        "an indexer scores all earlier keys and the token's own, and sums its heads; layers that share its choice "
        "do not": "索引器为此前所有键与自身的键打分并对各头求和；共享其选择的层不再打分",
        "Gated DeltaNet runs as the recurrence: 7 FLOPs per element of the state (decay 1, three contractions of 2), "
        "its convolution 2 per tap and channel": (
            "门控 DeltaNet 以递归形式运行：状态每个元素 7 FLOPs（衰减 1，三次缩并各 2），卷积每抽头每通道 2"
        ),
        "a mixture runs its active experts, its router and its shared experts": (
            "混合专家运行激活的专家、路由器与共享专家"
        ),
        "AltUp asks its router twice; its prediction mixes streams x streams, its correction is an outer product; "
        "its streams are projected once per token and joined again where the head runs": (
            "AltUp 两次调用路由器；其预测混合 streams x streams，其校正为外积；各流每个词元投影一次，在输出头处再次合并"
        ),
        "the text model alone: no towers, no multi-token prediction": "仅文本模型：不含编码塔与多词元预测",
        "every weight that takes part is read once per step, however many tokens the step has; of embedding tables "
        "only the rows of the tokens, of a tied one all (it is the head)": (
            "参与计算的每个权重每步读取一次，与该步词元数无关；嵌入表只读取词元对应的行，共享嵌入全部读取（它就是输出头）"
        ),
        "tokens choose their experts evenly and independently: of E experts, k of them active, n tokens touch "
        "E (1 - (1 - k/E)^n); exact for one token": (
            "词元均匀且独立地选择专家：E 个专家中激活 k 个时，n 个词元触及 E (1 - (1 - k/E)^n) 个；单个词元时为精确值"
        ),
        "a decode step reads the rows its token meets (windows min(context, W), sparse layers min(context, top_k) and "
        "every indexer key), reads the rows of shared keys and values once per layer, and reads and writes each "
        "recurrent state": (
            "解码一步读取其词元遇到的行（窗口为 min(context, W)，稀疏层为 min(context, top_k) 以及全部索引器键），"
            "共享键值的行每层读取一次，并读写每个循环状态"
        ),
        "a prefill is one step: weights read once, the state it leaves written once": (
            "预填充为一步：权重读取一次，留下的状态写入一次"
        ),
        "activations, caches and overheads cost nothing; the machine reaches its full rates": (
            "激活值、缓存与开销不计；机器达到其全部速率"
        ),
    }
)


def in_both(sentences: Iterable[str]) -> list[tuple[str, str]]:
    """Each sentence in English and Chinese; LookupError where the table lacks one."""
    return [(text, CHINESE[text]) for text in sentences]
