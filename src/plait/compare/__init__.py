"""What differs between models: a table of dimensions, ways of saving keys and values, layers aligned, figures.

    comparison = compare([subject(first), subject(second)])

`compare` makes one `Comparison`; `facts` writes it as JSON, `markdown` and `page` as documents.
"""

from __future__ import annotations

from plait.compare.align import Alignment, align
from plait.compare.report import Comparison, Settings, Subject, compare, subject, subject_of
from plait.compare.table import Cell, Row, table
from plait.compare.ways import Saving, Ways, ways

__all__ = [
    "Alignment",
    "Cell",
    "Comparison",
    "Row",
    "Saving",
    "Settings",
    "Subject",
    "Ways",
    "align",
    "compare",
    "subject",
    "subject_of",
    "table",
    "ways",
]
