"""The runtime: weights as stored, operators, the step plan, slabs and sessions."""

from __future__ import annotations

import os
import sys

from plait.runtime.threads import use_physical_cores

# Weights in pages of 2 MiB are read about a tenth faster. torch looks for this word when it is first imported.
if "torch" not in sys.modules:
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
use_physical_cores()
