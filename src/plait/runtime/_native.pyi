"""Compiled from `native/`. Addresses are those of tensors; sizes and strides count elements."""

def levels() -> list[str]: ...
def pack_f32(weight: int, packed: int, out: int, width: int) -> None: ...
def pack_bf16(weight: int, packed: int, out: int, width: int) -> None: ...
def fold(address: int, count: int) -> int: ...

class Native:
    def __init__(self, level: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def bf16_form(self) -> str: ...
    def linear_f32(
        self, x: int, x_stride: int, w: int, y: int, rows: int, out: int, width: int, activation: int
    ) -> None: ...
    def linear_bf16(
        self, x: int, x_stride: int, w: int, y: int, rows: int, out: int, width: int, activation: int
    ) -> None: ...
    def rms_norm(
        self, x: int, x_stride: int, weight: int, eps: float, y: int, rows: int, groups: int, width: int
    ) -> None: ...
    def heads(
        self,
        x: int,
        x_stride: int,
        weight: int,
        eps: float,
        cosine: int,
        sine: int,
        pairs: int,
        start: int,
        distance: int,
        adjacent: bool,
        y: int,
        rows: int,
        groups: int,
        width: int,
    ) -> None: ...
    def gated(self, activation: int, x: int, x_stride: int, y: int, rows: int, width: int) -> None: ...
    def attention(
        self,
        queries: int,
        query_stride: int,
        keys: list[int],
        values: list[int],
        sinks: int,
        out: int,
        n: int,
        heads: int,
        kv_heads: int,
        dim: int,
        v_dim: int,
        start: int,
        first_block: int,
        window: int,
        scale: float,
        cap: float,
        store: int,
    ) -> None: ...
