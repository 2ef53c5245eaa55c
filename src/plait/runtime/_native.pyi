"""Compiled from `native/`. Addresses are those of tensors; sizes and strides count elements."""

def levels() -> list[str]: ...
def trim() -> None: ...
def pack_f32(weight: int, packed: int, out: int, width: int) -> None: ...
def pack_f16(weight: int, packed: int, out: int, width: int) -> None: ...
def pack_bf16(weight: int, packed: int, out: int, width: int) -> None: ...
def fold(address: int, count: int) -> int: ...

def packed_bytes(form: int, out: int, width: int) -> int: ...
def sum_limit(form: int) -> int: ...
def in_large_pages(address: int, nbytes: int) -> None: ...
def can_gather() -> bool: ...
def gather(ranges: list[tuple[int, int]]) -> None: ...
def settle_pages() -> bool: ...
def unpack_blocks(blocks: int, count: int, form: int, to: int) -> None: ...

def prepared_joined(parts: list[Prepared]) -> Prepared: ...

class Packer:
    def __init__(self, threads: int) -> None: ...
    def add(self, rows: int, packed: int, out: int, width: int, form: int, first: int, step: int) -> None: ...
    def wait(self) -> None: ...

class Native:
    def __init__(self, level: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def bf16_form(self) -> str: ...
    @property
    def blocks_form(self) -> str: ...
    def prepared_blocks(
        self, parts: list[tuple[int, int, int]], width: int, activation: int, planes: int
    ) -> Prepared: ...
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
    def peak(self, row: int, n: int) -> tuple[int, float, bool, float]: ...
    def largest(self, row: int, n: int, count: int, out: int) -> int: ...
    def choose(
        self,
        row: int,
        n: int,
        peak: float,
        temperature: float,
        tokens: int,
        scores: int,
        count: int,
        share: float,
        least: float,
        fraction: float,
    ) -> int: ...
    def softcap(self, x: int, y: int, rows: int, width: int, cap: float) -> None: ...
    def gate(
        self,
        activation: int,
        x: int,
        x_stride: int,
        gate: int,
        gate_stride: int,
        per_head: bool,
        normed: bool,
        weight: int,
        eps: float,
        y: int,
        rows: int,
        heads: int,
        width: int,
    ) -> None: ...
    def join(
        self,
        h: int,
        y: int,
        y_stride: int,
        y_normed: bool,
        y_weight: int,
        y_eps: float,
        weight: int,
        eps: float,
        out: int,
        rows: int,
        width: int,
    ) -> None: ...
    def delta(
        self,
        qkv: int,
        qkv_stride: int,
        beta: int,
        beta_stride: int,
        decay: int,
        decay_stride: int,
        rate: int,
        bias: int,
        y: int,
        sequences: list[int],
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        eps: float,
        scale: float,
    ) -> None: ...
    def convolution(
        self,
        x: int,
        x_stride: int,
        weight: int,
        y: int,
        sequences: list[int],
        channels: int,
        kernel: int,
        activation: int,
    ) -> None: ...
    def attention(
        self,
        parts: list[tuple[int, int, int, int]],
        spans: int,
        count: int,
        addresses: int,
        value_offset: int,
        v_dim: int,
        chosen: int,
        chosen_stride: int,
        sinks: int,
        out: int,
        heads: int,
        kv_heads: int,
        window: int,
        scale: float,
        cap: float,
        store: int,
        exact: bool,
    ) -> None: ...
    def store_rows(
        self,
        rows: int,
        row_stride: int,
        heads: int,
        dim: int,
        offset: int,
        spans: int,
        count: int,
        addresses: int,
        store: int,
    ) -> bool: ...
    def prepared_f32(self, w: int, out: int, width: int, activation: int) -> Prepared: ...
    def prepared_f16(self, w: int, out: int, width: int, activation: int) -> Prepared: ...
    def prepared_bf16(self, w: int, out: int, width: int, activation: int, exact: bool) -> Prepared: ...
    def program(self) -> Program: ...

class Prepared:
    @property
    def out(self) -> int: ...
    @property
    def width(self) -> int: ...
    def run(self, x: int, x_stride: int, y: int, y_stride: int, rows: int) -> None: ...

class Ragged:
    def __init__(self) -> None: ...
    def add_part(self, position: int, count: int) -> None: ...
    def add_slabs(self, sessions: list[tuple[int, list[int]]]) -> None: ...
    def add_values(self, sessions: list[tuple[int, int]]) -> None: ...
    def add_turns(self, cosine: int, sine: int) -> None: ...

_At = tuple[int, int]

class Routing:
    def __init__(
        self,
        experts: int,
        active: int,
        groups: int,
        kept_groups: int,
        softmax: bool,
        renormalise: bool,
        scale: float,
        bias: int,
        factors: int,
    ) -> None: ...
    def __call__(self, logits: int, logits_stride: int, chosen: int, weights: int, rows: int) -> None: ...

class Program:
    @property
    def operations(self) -> int: ...
    def run(self, call: Ragged, rows: int, own: list[tuple[int, int]], tensors: list[tuple[int, int]]) -> int: ...
    def norm(self, x: _At, y: _At, weight: int, eps: float, groups: int, width: int) -> None: ...
    def add(self, to: _At, x: _At, width: int) -> None: ...
    def add_vector(self, to: _At, vector: int, width: int) -> None: ...
    def scale(self, to: _At, by: float, width: int) -> None: ...
    def copy(self, x: _At, y: _At, width: int) -> None: ...
    def product(self, x: _At, y: _At, product: Prepared) -> None: ...
    def products(self, x: _At, x_apart: int, y: _At, products: list[Prepared]) -> None: ...
    def softcap(self, to: _At, cap: float, width: int) -> None: ...
    def gated(self, x: _At, y: _At, activation: int, width: int) -> None: ...
    def turns(self, cosine: _At, sine: _At, table: int, pairs: int) -> None: ...
    def heads(
        self,
        x: _At,
        x_apart: int,
        y: _At,
        cosine: _At,
        sine: _At,
        weight: int,
        eps: float,
        pairs: int,
        start: int,
        distance: int,
        adjacent: bool,
        groups: int,
        width: int,
    ) -> None: ...
    def route(self, logits: _At, chosen: _At, weights: _At, routing: Routing) -> None: ...
    def mix(
        self,
        x: _At,
        chosen: _At,
        weights: _At,
        y: _At,
        active: int,
        activation: int,
        experts: list[tuple[Prepared, Prepared]],
    ) -> None: ...
    def convolve(
        self,
        x: _At,
        y: _At,
        value_class: int,
        offset: int,
        weight: int,
        channels: int,
        kernel: int,
        activation: int,
    ) -> None: ...
    def delta(
        self,
        qkv: _At,
        beta: _At,
        decay: _At,
        y: _At,
        value_class: int,
        offset: int,
        rate: int,
        bias: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        eps: float,
        scale: float,
    ) -> None: ...
    def gate(
        self,
        x: _At,
        gate: _At,
        y: _At,
        activation: int,
        per_head: bool,
        normed: bool,
        weight: int,
        eps: float,
        heads: int,
        width: int,
    ) -> None: ...
    def attend(
        self,
        stored: list[tuple[_At, int, int]],
        queries: list[tuple[_At, int, int]],
        out: _At,
        slab_class: int,
        values_at: int,
        heads: int,
        kv_heads: int,
        v_dim: int,
        window: int,
        scale: float,
        cap: float,
        sinks: int,
        store: int,
        exact: bool,
    ) -> None: ...
