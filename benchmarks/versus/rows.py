"""What is measured beside llama.cpp, and the bars: lines of the table, and the files they run on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

__all__ = ["MODELS", "ROWS", "File", "Job", "Row", "Settings", "quick"]

Kind = Literal["decode", "prefill", "together", "load", "memory"]
_K: Final = 1024


@dataclass(frozen=True, slots=True)
class File:
    """A GGUF file: random weights of a catalogue entry in a format; None: the real file the entry's package carries."""

    entry: str
    format: str | None


MODELS: Final = MappingProxyType(
    {
        "spark-q4_0": File("Spark-X2.5-1.7B", "q4_0"),
        "spark-q8_0": File("Spark-X2.5-1.7B", "q8_0"),
        "spark-bf16": File("Spark-X2.5-1.7B", "bf16"),
        "qwen-q4_0": File("Qwen3.5-2B", "q4_0"),
        "gemma": File("Gemma-3-270m", None),
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `context`: tokens before what is measured.

    ratio     bar, in multiples of the peer; of `together` in multiples of one sequence alone
    of_bound  a share of what memory allows that is enough, whatever the peer does
    most      bar of `load` in seconds, of `memory` in bytes
    """

    model: str
    kind: Kind
    context: int = 0
    ratio: float | None = None
    of_bound: float | None = None
    most: float | None = None
    batch: int = 1

    @property
    def name(self) -> str:
        """What `--only` is matched with."""
        context = f"-{self.context // _K}k" if self.context >= _K else ""
        return f"{self.model}-{self.kind}{context}"


ROWS: Final = (
    Row("spark-q4_0", "decode", 0, 1.15, 0.90),
    Row("spark-q4_0", "decode", 4 * _K, 1.3, 0.90),
    Row("spark-q4_0", "decode", 16 * _K, 3.0, 0.85),
    Row("spark-q8_0", "decode", 0, 1.4, 0.90),
    Row("gemma", "decode", 0, 1.3),
    Row("gemma", "prefill", 0, 1.5),
    Row("spark-q4_0", "prefill", 0, 2.5),
    Row("spark-q8_0", "prefill", 0, 3.5),
    Row("spark-bf16", "prefill", 0, 1.35),
    Row("spark-q4_0", "prefill", 16 * _K, 3.0),
    Row("qwen-q4_0", "decode", 0, 1.2),
    Row("qwen-q4_0", "decode", 16 * _K, 1.5),
    Row("qwen-q4_0", "prefill", 0, 2.5),
    Row("spark-q4_0", "together", 128, 4.0, batch=8),
    Row("spark-q4_0", "load", most=1.0),
    Row("spark-q4_0", "memory", most=150e6),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The peer's. `repack`: weights laid out anew for this processor; `batch`: tokens it works on at a time."""

    flash: bool = True
    repack: bool = True
    batch: int = 512

    def __str__(self) -> str:
        words = "flash attention" if self.flash else "no flash attention", "repacked" if self.repack else "as stored"
        return f"{words[0]}, {words[1]}, {self.batch} at a time"


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does, of either engine.

    tokens   a prefill's, or decode steps
    states   directory in which the peer keeps states of long contexts
    dtype    of Plait's weights, None: its default; kv: bits of an element of keys and values, 16 or 8
    build    directory of another build of the peer's package, None: the installed one
    """

    engine: Literal["plait", "llama.cpp"]
    path: str
    kind: Kind
    context: int
    tokens: int
    batch: int
    passes: int
    threads: int
    states: str
    kv: int
    dtype: str | None
    memory: int
    settings: Settings
    build: str | None

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def of(data: dict[str, object]) -> Job:
        made = Job(**data)
        return replace(made, settings=Settings(**data["settings"]))


def quick(row: Row) -> Row:
    """The same at a context that is soon there: a first impression, no measurement of the bar."""
    return replace(row, context=min(row.context, _K))
