"""What rules of thumb make of a model's state, and what it is."""

import plait
from plait.account.memory import memory
from plait.blueprint.spec import Attention

CONTEXTS = {"spark-x2.5-4b": 1_048_576, "gemma-3-27b": 131_072}
BF16 = 2

for name, context in CONTEXTS.items():
    blueprint = plait.blueprint(name)
    mixers = [layer.mixer for layer in blueprint.layers if isinstance(layer.mixer, Attention)]
    widths = [m.kv_heads * (m.qk_dim + m.v_dim) for m in mixers]
    two_integers = len(mixers) * 2 * blueprint.hidden * BF16 * context
    all_full = sum(widths) * BF16 * context
    true = memory(blueprint, context, kv_format="bf16").total_bytes
    print(f"{name} at {context:,} tokens, bf16")
    for rule, size in (("layers x hidden", two_integers), ("every layer full", all_full), ("the state laws", true)):
        print(f"  {rule:<17}{size / 2**30:8.3f} GiB  {size / true:5.1f} x")
