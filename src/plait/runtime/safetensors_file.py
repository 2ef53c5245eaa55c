"""Writing a safetensors file piece by piece, so that only a piece of a tensor is in memory.

Source: the safetensors format: 8 bytes of header length, a JSON header padded with spaces to a multiple of 8, the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from plait.dtypes import Format

__all__ = ["write_safetensors"]


def write_safetensors(
    path: Path, entries: Mapping[str, tuple[Format, tuple[int, ...]]], data: Iterable[tuple[str, Iterable[Tensor]]]
) -> None:
    """One file: `entries` is name -> (format, shape); `data` gives the bytes in pieces, uint8 [n], in that order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (form, shape) in entries.items():
        elements = 1
        for n in shape:
            elements *= n
        start, end = end, end + form.nbytes(elements)
        header[name] = {"dtype": form.safetensors, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (wanted, _), (name, pieces) in zip(entries.items(), data, strict=True):
            if name != wanted:
                raise ValueError(f"data of {name} where {wanted} is due")
            for piece in pieces:
                file.write(piece.numpy().data)
        if file.tell() != 8 + len(text) + end:
            raise ValueError(f"{path}: {file.tell()} bytes written, {8 + len(text) + end} declared")
