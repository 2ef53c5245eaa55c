"""Random legal blueprints that use every word of the vocabulary, for tests that must hold for any model."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from plait.blueprint.check import check
from plait.blueprint.spec import (
    AltUp,
    Attention,
    Blueprint,
    Both,
    Embedding,
    FactorScaling,
    Gated,
    GatedDeltaNet,
    Head,
    Indexer,
    LatentAttention,
    Layer,
    LinearScaling,
    Llama3Scaling,
    Mixture,
    MultiTokenPrediction,
    Norm,
    OutputGate,
    PerLayerEmbeddings,
    QKNorm,
    Quantization,
    Rope,
    Router,
    SharedExperts,
    Tower,
    TowerTensor,
    YarnScaling,
)

__all__ = ["blueprints", "layers"]

SIZES = st.sampled_from([1, 2, 3, 8, 64, 96, 1536, 16_384, 262_144])
NORMS = st.builds(
    Norm,
    st.sampled_from([1e-6, 1e-5]),
    offset=st.sampled_from([0.0, 1.0]),
    weight=st.booleans(),
    bias=st.booleans(),
    kind=st.sampled_from(["rms", "layer"]),
)
ACTIVATIONS = st.sampled_from(["silu", "gelu", "gelu_tanh"])
SCALINGS = st.one_of(
    st.none(),
    st.builds(LinearScaling, st.sampled_from([2.0, 8.0])),
    st.builds(YarnScaling, st.sampled_from([4.0, 40.0]), st.just(4096), st.just(32.0), st.just(1.0), st.just(1.0)),
    st.builds(Llama3Scaling, st.just(8.0), st.just(1.0), st.just(4.0), st.just(8192)),
    st.just(FactorScaling((1.0, 2.5))),
)


@st.composite
def ropes(draw: st.DrawFn, dims: int) -> Rope:
    """A rotation that fits heads of `dims` (even)."""
    pairs = draw(st.integers(1, dims // 2))
    pairing = draw(st.sampled_from(["half", "adjacent"]))
    axes = (pairs - 2, 1, 1) if pairs > 2 and draw(st.booleans()) else None
    return Rope(
        draw(st.sampled_from([10_000.0, 1e6, 160_000.5])),
        pairs,
        2 * pairs,
        pairing=pairing,
        distance=dims // 2 if pairing == "half" else 1,
        scaling=draw(SCALINGS),
        axes=axes,
        interleaved_axes=axes is not None and draw(st.booleans()),
    )


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    kv_heads, dim = draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([8, 64, 256]))
    keys_are_values = draw(st.booleans())
    return Attention(
        heads=kv_heads * draw(st.sampled_from([1, 2, 16])),
        kv_heads=kv_heads,
        qk_dim=dim,
        v_dim=dim if keys_are_values else draw(st.sampled_from([8, 128])),
        scale=dim**-0.5,
        window=draw(st.none() | st.sampled_from([1, 128, 4096])),
        rope=draw(st.none() | ropes(dim)),
        qk_norm=draw(st.none() | st.builds(QKNorm, NORMS, st.sampled_from(["head", "all"]))),
        v_norm=draw(st.none() | NORMS),
        keys_are_values=keys_are_values,
        gate=draw(
            st.none()
            | st.builds(
                OutputGate, st.sampled_from(["head", "element"]), st.sampled_from(["sigmoid", "silu"]), st.booleans()
            )
        ),
        sinks=draw(st.booleans()),
        value_scale=draw(st.sampled_from([1.0, 0.707])),
        softcap=draw(st.none() | st.just(50.0)),
        qkv_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        bidirectional_images=draw(st.booleans()),
    )


@st.composite
def latents(draw: st.DrawFn) -> LatentAttention:
    rope = draw(ropes(64))
    indexer = st.builds(Indexer, st.just(64), st.just(128), st.sampled_from([16, 2048]), ropes(128), NORMS)
    return LatentAttention(
        heads=draw(st.sampled_from([1, 128])),
        q_rank=draw(st.none() | st.just(1536)),
        kv_rank=draw(st.sampled_from([16, 512])),
        nope_dim=128,
        rope_dim=64,
        v_dim=128,
        scale=0.07,
        rope=rope,
        latent_norm=draw(NORMS),
        bias=draw(st.booleans()),
        indexer=draw(st.none() | indexer),
    )


@st.composite
def deltas(draw: st.DrawFn) -> GatedDeltaNet:
    keys = draw(st.sampled_from([1, 16]))
    return GatedDeltaNet(
        keys,
        keys * draw(st.sampled_from([1, 2])),
        draw(st.sampled_from([8, 128])),
        128,
        draw(st.sampled_from([2, 4])),
        draw(NORMS),
        draw(st.sampled_from(["silu", "sigmoid"])),
    )


GATED = st.builds(Gated, SIZES, ACTIVATIONS, bias=st.booleans(), sparsity=st.none() | st.just(0.95))


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    groups = draw(st.sampled_from([1, 4]))
    kept = draw(st.integers(1, groups))
    router = Router(
        draw(st.sampled_from(["softmax", "sigmoid"])),
        draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        selection_bias=draw(st.booleans()),
        groups=groups,
        kept_groups=kept,
        norm=draw(st.none() | NORMS),
        input_factor=draw(st.sampled_from([1.0, 0.02])),
        expert_scale=draw(st.booleans()),
    )
    shared = st.none() | st.builds(SharedExperts, st.integers(1, 2), SIZES, st.booleans())
    each = draw(st.sampled_from([2, 32]))
    return Mixture(
        groups * each, draw(st.integers(1, kept * each)), draw(SIZES), draw(ACTIVATIONS), router, draw(shared)
    )


FEED_FORWARDS = st.one_of(GATED, mixtures(), st.builds(Both, GATED, mixtures(), NORMS, NORMS, NORMS))


@st.composite
def layers(draw: st.DrawFn, *, table: bool = True) -> Layer:
    """A layer with its own keys and values. `table`: it may take per-layer embeddings."""
    return Layer(
        draw(st.one_of(attentions(), latents(), deltas())),
        draw(FEED_FORWARDS),
        draw(NORMS),
        draw(NORMS),
        mixer_post_norm=draw(st.none() | NORMS),
        feed_forward_post_norm=draw(st.none() | NORMS),
        per_layer_input=table and draw(st.booleans()),
        laurel_rank=draw(st.none() | st.just(64)),
        scalar=draw(st.booleans()),
    )


def _fits(layer: Layer, source: Layer) -> bool:
    one, other = layer.mixer, source.mixer
    if isinstance(one, Attention) and isinstance(other, Attention):
        kept = (other.kv_source, other.kv_heads, other.qk_dim, other.v_dim, other.window)
        return kept == (None, one.kv_heads, one.qk_dim, one.v_dim, one.window)
    if isinstance(one, LatentAttention) and isinstance(other, LatentAttention) and one.indexer and other.indexer:
        return other.indexer.source is None
    return False


def _reading(layer: Layer, source: int) -> Layer:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return replace(layer, mixer=replace(mixer, kv_source=source))
    assert isinstance(mixer, LatentAttention) and mixer.indexer is not None
    return replace(layer, mixer=replace(mixer, indexer=replace(mixer.indexer, source=source)))


@st.composite
def _stacks(draw: st.DrawFn, table: bool) -> tuple[Layer, ...]:
    """Layers of a few kinds in periods, runs and disorder; some read what an earlier layer keeps."""
    kinds = draw(st.lists(layers(table=table), min_size=1, max_size=3))
    stack: list[Layer] = []
    for _ in range(draw(st.integers(1, 3))):
        period = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
        stack += period * draw(st.integers(1, 4))
    stack = stack[:24]
    reuse = draw(st.sampled_from(["none", "tail", "nearest", "any"]))
    first = draw(st.integers(1, len(stack)))
    for index in range(first, len(stack)):
        fitting = [i for i in range(index) if _fits(stack[index], stack[i])]
        if fitting and (reuse == "tail" or (reuse in ("nearest", "any") and draw(st.booleans()))):
            source = draw(st.sampled_from(fitting)) if reuse == "any" else fitting[-1]
            stack[index] = _reading(stack[index], source)
    return tuple(stack)


TOWERS = st.builds(
    Tower,
    st.sampled_from(["vision", "audio"]),
    st.sampled_from(["ViT, 27 layers of 1152", "no encoder: frames of 640 samples projected; older files hold more"]),
    st.just((TowerTensor("patch", (8, 8)),)),
)


@st.composite
def blueprints(draw: st.DrawFn) -> Blueprint:
    """A whole model, as `check` lets it pass."""
    table = draw(
        st.none()
        | st.builds(PerLayerEmbeddings, SIZES, SIZES, ACTIVATIONS, st.just(16.0), st.just(0.1), st.just(0.7), NORMS)
    )
    mtp = st.builds(
        MultiTokenPrediction,
        st.lists(layers(table=False), min_size=1, max_size=2).map(tuple),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )
    altup = st.builds(AltUp, st.integers(2, 4), st.integers(0, 1), st.none() | st.just(120.0), st.booleans(), NORMS)
    made = Blueprint(
        family=draw(st.sampled_from(["none", "gemma4", "a_family_with_a_rather_long_name"])),
        vocabulary=draw(SIZES),
        hidden=draw(SIZES),
        max_context=draw(SIZES),
        embedding=Embedding(draw(st.sampled_from([1.0, 48.0])), draw(st.booleans())),
        layers=draw(_stacks(table is not None)),
        final_norm=draw(NORMS),
        head=Head(draw(st.booleans()), draw(st.none() | st.just(30.0))),
        per_layer_embeddings=table,
        altup=draw(st.none() | altup),
        mtp=draw(st.none() | mtp),
        towers=draw(st.lists(TOWERS, max_size=2).map(tuple)),
        quantization=draw(st.none() | st.just(Quantization("fp8", "f8_e4m3", (128, 128)))),
        name=draw(st.sampled_from(["", "model", "混合模型-4B", "a" * 200, 'x<y & "z" \x01'])),
    )
    return check(made, "random")
