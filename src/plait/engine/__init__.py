"""Running a model: tokenizer, chat, sampling, generation."""

from __future__ import annotations

import plait.runtime  # noqa: F401  (sets what torch reads when it is first imported)
