"""What a look-up found, and what the store holds and has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plait.cache.anchors import Kind, Mark

__all__ = ["LeftOut", "Published", "Reason", "Report", "Stats"]

# none            nothing that could be reused was lost
# no_anchor       the rows are there, but no snapshot was taken at a position the prompt can use
# tail_differs    the next anchor lies within a page from where the prompt takes another way
# window_dropped  full rows are there, a window's are not
# evicted         it was stored, and went to keep the budget
# fingerprint     these tokens were computed before, with another model, type, adapter or layout
Reason = Literal["none", "no_anchor", "tail_differs", "window_dropped", "evicted", "fingerprint"]


@dataclass(frozen=True, slots=True)
class Report:
    """Every look-up says this. All figures are tokens.

    prompt   tokens asked for
    common   the longest beginning the store knows, exact to the token; of what was evicted whole pages are known
    resume   where the prefill begins; at most prompt - 1, since the last token must be computed
    reason   why `lost` is not 0
    anchors  positions on the prompt's way that the store promises, in order
    elsewhere, facts   tokens known under another fingerprint of the same salt, and the facts that differ
    """

    prompt: int
    common: int
    resume: int
    reason: Reason
    anchors: tuple[Mark, ...]
    elsewhere: int = 0
    facts: tuple[str, ...] = ()

    @property
    def lost(self) -> int:
        """Tokens that are known and are computed again all the same; the last token of a prompt always is."""
        return max(0, min(self.common, self.prompt - 1) - self.resume)

    @property
    def differs_at(self) -> int | None:
        """Index of the first token that leaves what is known; None: the whole prompt is known."""
        return self.common if self.common < self.prompt else None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A mark that became no anchor.

    near         an anchor within the spacing serves it
    off          the placement does not use this kind
    no_snapshot  no step ended exactly there, or its snapshots are gone
    window_gone  the rows of a window that it needs are no longer there
    """

    mark: Mark
    why: Literal["near", "off", "no_snapshot", "window_gone"]


@dataclass(frozen=True, slots=True)
class Published:
    """What a commit added. An anchor may have been evicted again where the budget is small."""

    pages: int
    healed: int
    anchors: tuple[Mark, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """Bytes now, and counts since the store was made.

    bytes           what only the store holds: at most `budget` after every commit and `settle`
    lent_bytes      what sessions hold as well
    page_bytes, tail_bytes, snapshot_bytes   parts of bytes + lent_bytes
    reused, lost    tokens; `reasons` counts look-ups by reason
    """

    budget: int
    bytes: int
    lent_bytes: int
    page_bytes: int
    tail_bytes: int
    snapshot_bytes: int
    pages: int
    anchors: Mapping[Kind, int]
    lookups: int
    prompt_tokens: int
    reused: int
    lost: int
    reasons: Mapping[Reason, int]
    healed: int
    evicted_windows: int
    evicted_pages: int
    evicted_anchors: int
