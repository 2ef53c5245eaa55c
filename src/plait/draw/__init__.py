"""Pictures of models, drawn from the blueprint alone.

`diagram_svg` draws a whole model. The rules are the same for all models, so that pictures can be laid side by side:

- Bottom to top is the direction of the forward pass.
- One grid of 8 px; every layer is a card 320 px wide, wherever it stands.
- One type scale of four sizes (22, 15, 13, 11 px); nothing is smaller than 11 px.
- Eight hues at most: five for token mixers, three for feed-forward parts, told apart under every common kind of colour
  blindness, and each said in words too. Text has a contrast of at least 4.5:1.
- Equal layers are drawn once, in a dashed frame with the number of repeats; frames nest. What is irregular is drawn as
  it is. Every layer stands for itself in exactly one card, with its number beside it.
- What is no part of the graph that is run stands outside the trunk.

In the SVG every card has `data-kind`, the kind of its token mixer (`attention`, `window`, `delta`, `latent`, `sparse`),
and `data-layers`, the zero-based numbers of the layers it stands for, as in `0-2,4-6`: together every layer once.
"""

from __future__ import annotations

from plait.draw.diagram import diagram_svg

__all__ = ["diagram_svg"]
