"""Layer by layer against transformers: which layer is the first whose output differs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plait.runtime.session import Span


def reference_layers(model, ids: Sequence[int]) -> list[torch.Tensor]:
    """Output of each decoder layer of a transformers model, [n, hidden] (of AltUp models [streams, n, hidden])."""
    found: list[torch.Tensor] = []

    def keep(module, args, output):
        hidden = output[0] if isinstance(output, tuple) else output
        # A batch of one sequence: its axis goes, that of the streams stays.
        found.append(hidden.reshape(*hidden.shape[:-3], *hidden.shape[-2:]))

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    try:
        with torch.no_grad():
            model(torch.tensor([list(ids)]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def our_layers(engine, ids: Sequence[int], split: Sequence[int]) -> list[torch.Tensor]:
    """Output of each layer, the tokens cut into calls of the lengths `split`."""
    session = engine.model.session()
    pieces, at = [], 0
    for n in split:
        pieces.append(engine.model.trace(Span(session, tuple(ids[at : at + n]))))
        at += n
    session.close()
    return [torch.cat(parts, -2) for parts in zip(*pieces, strict=True)]


def first_difference(engine, model, ids: Sequence[int], split: Sequence[int], tolerance: float) -> str | None:
    """None where every layer agrees within `tolerance` of its range; else what differs first, and by how much."""
    expected = reference_layers(model, ids)
    found = our_layers(engine, ids, split)
    if len(expected) != len(found):
        return f"{len(found)} layers, expected {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.shape != theirs.shape:
            return f"layer {index}: shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}"
        error = ((ours - theirs).abs().max() / (theirs.max() - theirs.min())).item()
        if not error < tolerance:
            return f"layer {index}: off by {error:.2e} of its range"
    return None
