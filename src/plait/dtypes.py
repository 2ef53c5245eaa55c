"""Storage formats of tensor elements: dense types and the GGUF block formats.

A block format packs `block` consecutive elements of a row into `block_bytes` bytes (source: the GGUF
specification and ggml-common.h). Dense formats are blocks of one element.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["BY_GGUF_ID", "BY_NAME", "BY_SAFETENSORS", "FORMATS", "Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """How elements are stored.

    name            the name used in all of Plait
    block           elements in one block (1 for a dense format)
    block_bytes     bytes of one block
    gguf_id         the `ggml_type` number, None where GGUF has none
    safetensors     the `dtype` word, None where safetensors has none
    """

    name: str
    block: int
    block_bytes: int
    gguf_id: int | None = None
    safetensors: str | None = None

    @property
    def dense(self) -> bool:
        return self.block == 1

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` elements, a multiple of the block."""
        if elements % self.block:
            raise ValueError(f"{elements} elements do not fill blocks of {self.block} ({self.name})")
        return elements // self.block * self.block_bytes


FORMATS: Final[tuple[Format, ...]] = (
    Format("f32", 1, 4, 0, "F32"),
    Format("f16", 1, 2, 1, "F16"),
    Format("bf16", 1, 2, 30, "BF16"),
    Format("f64", 1, 8, 28, "F64"),
    Format("f8_e4m3", 1, 1, None, "F8_E4M3"),
    Format("f8_e5m2", 1, 1, None, "F8_E5M2"),
    Format("f8_e8m0", 1, 1, None, "F8_E8M0"),
    Format("i8", 1, 1, 24, "I8"),
    Format("i16", 1, 2, 25, "I16"),
    Format("i32", 1, 4, 26, "I32"),
    Format("i64", 1, 8, 27, "I64"),
    Format("u8", 1, 1, None, "U8"),
    Format("u16", 1, 2, None, "U16"),
    Format("u32", 1, 4, None, "U32"),
    Format("u64", 1, 8, None, "U64"),
    Format("bool", 1, 1, None, "BOOL"),
    Format("q4_0", 32, 18, 2),
    Format("q4_1", 32, 20, 3),
    Format("q5_0", 32, 22, 6),
    Format("q5_1", 32, 24, 7),
    Format("q8_0", 32, 34, 8),
    Format("q8_1", 32, 36, 9),
    Format("q2_k", 256, 84, 10),
    Format("q3_k", 256, 110, 11),
    Format("q4_k", 256, 144, 12),
    Format("q5_k", 256, 176, 13),
    Format("q6_k", 256, 210, 14),
    Format("q8_k", 256, 292, 15),
    Format("iq2_xxs", 256, 66, 16),
    Format("iq2_xs", 256, 74, 17),
    Format("iq3_xxs", 256, 98, 18),
    Format("iq1_s", 256, 50, 19),
    Format("iq4_nl", 32, 18, 20),
    Format("iq3_s", 256, 110, 21),
    Format("iq2_s", 256, 82, 22),
    Format("iq4_xs", 256, 136, 23),
    Format("iq1_m", 256, 56, 29),
    Format("tq1_0", 256, 54, 34),
    Format("tq2_0", 256, 66, 35),
    Format("mxfp4", 32, 17, 39),
    Format("nvfp4", 64, 36, 40),
    Format("q1_0", 128, 18, 41),
)

BY_NAME: Final = MappingProxyType({f.name: f for f in FORMATS})
BY_GGUF_ID: Final = MappingProxyType({f.gguf_id: f for f in FORMATS if f.gguf_id is not None})
BY_SAFETENSORS: Final = MappingProxyType({f.safetensors: f for f in FORMATS if f.safetensors is not None})
