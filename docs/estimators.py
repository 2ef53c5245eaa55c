"""What popular formulas make of the state of ten hybrid models, as a ratio to what the state laws give.

Each formula is a blueprint with one fact forgotten, counted like the true one: bf16, K and V both stored, no weights.
"""

from dataclasses import replace

import plait
from plait.account.memory import memory
from plait.blueprint.spec import Attention, Blueprint, GatedDeltaNet, LatentAttention, Mixer
from plait.cli.common import print_table

MODELS = (
    "spark-x2.5-4b",
    "gemma-3-27b",
    "gemma-3n-e4b",
    "gemma-4-e4b",
    "gemma-4-12b",
    "gemma-4-26b-a4b",
    "qwen3.5-35b-a3b",
    "qwen3.6-27b",
    "mimo-v2-flash",
    "deepseek-v3.2",
)
SHORT = 2048
BF16 = 2


def account(blueprint: Blueprint, context: int):
    return memory(blueprint, context, kv_format="bf16", kv_layout=True, weights=0)


def with_mixers(blueprint: Blueprint, change) -> Blueprint:
    return replace(blueprint, layers=tuple(replace(layer, mixer=change(layer.mixer)) for layer in blueprint.layers))


def expanded(mixer: Mixer) -> Mixer:
    """Keys and values of all heads in place of the latent that makes them."""
    if not isinstance(mixer, LatentAttention):
        return mixer
    return Attention(mixer.heads, mixer.heads, mixer.nope_dim + mixer.rope_dim, mixer.v_dim, mixer.scale)


def first(blueprint: Blueprint) -> Attention:
    """The first attention layer, whose sizes a config gives in its plain keys."""
    mixers = (expanded(layer.mixer) for layer in blueprint.layers)
    return next(mixer for mixer in mixers if isinstance(mixer, Attention))


def uniform(blueprint: Blueprint, context: int) -> int:
    mixer = first(blueprint)
    return len(blueprint.layers) * 2 * mixer.kv_heads * mixer.qk_dim * BF16 * context


def hidden_by_heads(blueprint: Blueprint, context: int) -> int:
    mixer = first(blueprint)
    return len(blueprint.layers) * 2 * mixer.kv_heads * (blueprint.hidden // mixer.heads) * BF16 * context


def windows_as_full(blueprint: Blueprint, context: int) -> int:
    def full(mixer: Mixer) -> Mixer:
        return replace(mixer, window=None) if isinstance(mixer, Attention) else mixer

    return account(with_mixers(blueprint, full), context).total_bytes


def windows_left_out(blueprint: Blueprint, context: int) -> int:
    found = account(blueprint, context)
    return found.total_bytes - found.categories["windows"].need_bytes


def state_left_out(blueprint: Blueprint, context: int) -> int:
    found = account(blueprint, context)
    return found.total_bytes - sum(found.categories[name].need_bytes for name in ("recurrent", "convolution"))


def state_as_rows(blueprint: Blueprint, context: int) -> int:
    """Every recurrent layer counted as an attention layer."""
    other = first(blueprint)

    def rows(mixer: Mixer) -> Mixer:
        return replace(other, kv_source=None) if isinstance(mixer, GatedDeltaNet) else mixer

    return account(with_mixers(blueprint, rows), context).total_bytes


def latent_expanded(blueprint: Blueprint, context: int) -> int:
    return account(with_mixers(blueprint, expanded), context).total_bytes


def shared_counted(blueprint: Blueprint, context: int) -> int:
    def own(mixer: Mixer) -> Mixer:
        return replace(mixer, kv_source=None) if isinstance(mixer, Attention) else mixer

    return account(with_mixers(blueprint, own), context).total_bytes


FORMULAS = {
    "uniform": uniform,
    "hidden/heads": hidden_by_heads,
    "windows full": windows_as_full,
    "no windows": windows_left_out,
    "delta full": state_as_rows,
    "no state": state_left_out,
    "latent as heads": latent_expanded,
    "shared counted": shared_counted,
}


def ratio(size: int, true: int) -> str:
    """A ratio, a dash where the formula is right, `~1` where it is not and two digits hide it."""
    if size == true:
        return "-"
    text = f"{size / true:.2f}"
    return f"{size / true:.2g}" if text == "0.00" else "~1" if text == "1.00" else text


def table(title: str, context_of) -> None:
    rows = []
    for name in MODELS:
        blueprint = plait.blueprint(name)
        context = context_of(blueprint)
        true = account(blueprint, context).total_bytes
        found = [ratio(formula(blueprint, context), true) for formula in FORMULAS.values()]
        rows.append((name, f"{context:,}", f"{true / 2**30:.3f}", *found))
    header = ("model", "context", "GiB", *FORMULAS)
    print_table(rows, title=title, header=header, right=range(1, len(header)))


if __name__ == "__main__":
    table("At the model's own limit: state in GiB, and each formula's multiple of it", lambda model: model.max_context)
    print()
    table("The same after 2,048 tokens", lambda model: SHORT)
