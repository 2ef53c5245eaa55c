"""The prefix store: state of earlier prompts, shared with later ones that begin alike.

`Store` is what a runtime uses; `protocol` says what it asks of slabs, snapshots and sessions. What it rests on:

- Where a prompt can resume follows from the state laws of the blueprint, for every mix of full rows, windows and
  recurrent layers. All laws hold at the position, or it is not offered.
- Full slabs and snapshots are shared by reference and never written again; partial slabs are copied.
- Tries are keyed by the tokens themselves, below a fingerprint of everything else the state depends on.
- A look-up says what was common, what is reused, what was lost, and why.
"""

from __future__ import annotations

from plait.cache.anchors import KINDS, Anchor, Kind, Mark
from plait.cache.fingerprint import Fingerprint
from plait.cache.match import Match
from plait.cache.placement import Placement, Plan
from plait.cache.protocol import Held, HeldSlab, HeldSnapshot, SessionState, Shape, StateRun
from plait.cache.report import LeftOut, Published, Reason, Report, Stats
from plait.cache.restore import Restored, RestoredRun
from plait.cache.store import Store

__all__ = [
    "KINDS",
    "Anchor",
    "Fingerprint",
    "Held",
    "HeldSlab",
    "HeldSnapshot",
    "Kind",
    "LeftOut",
    "Mark",
    "Match",
    "Placement",
    "Plan",
    "Published",
    "Reason",
    "Report",
    "Restored",
    "RestoredRun",
    "SessionState",
    "Shape",
    "StateRun",
    "Stats",
    "Store",
]
