"""llama.cpp through `llama-cpp-python`: its own calls, without the Python engine around them."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import llama_cpp
import llama_cpp.llama_cpp as api
import numpy as np
from rows import Job

# Of ggml: the types keys and values are stored in.
_F16, _Q8_0 = 1, 8
_WARM = 2
_FILL = 2048


class Peer:
    """A model and one context."""

    def __init__(self, job: Job) -> None:
        self.job = job
        # Held: the library keeps the address.
        self._quiet = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._quiet, None)
        api.llama_backend_init()
        wanted = api.llama_model_default_params()
        wanted.use_extra_bufts = job.settings.repack
        self.model = api.llama_model_load_from_file(job.path.encode(), wanted)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot read {job.path}")
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.context = self._make()
        self.memory = api.llama_get_memory(self.context)

    def _make(self) -> ctypes.c_void_p:
        job = self.job
        wanted = api.llama_context_default_params()
        length = job.context + job.tokens + _WARM + 1
        wanted.n_ctx = -(-length * job.batch // 256) * 256
        wanted.n_batch = max(_FILL, job.settings.batch)
        wanted.n_ubatch = job.settings.batch
        wanted.n_seq_max = job.batch
        wanted.n_threads = wanted.n_threads_batch = job.threads
        wanted.flash_attn_type = int(job.settings.flash)
        wanted.type_k = wanted.type_v = _F16 if job.kv == 16 else _Q8_0
        wanted.swa_full = False  # windows keep what they see, as ours do
        made = api.llama_init_from_model(self.model, wanted)
        if not made:
            raise SystemExit(f"llama.cpp makes no context: {job.settings}")
        return made

    def run(self, tokens: list[int]) -> int:
        """Process tokens of the one sequence; the most probable next one."""
        given = (api.llama_token * len(tokens))(*tokens)
        code = api.llama_decode(self.context, api.llama_batch_get_one(given, len(tokens)))
        if code:
            raise SystemExit(f"llama_decode ended with {code}")
        row = api.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(row, (self.vocabulary,)).argmax())

    def reach(self, length: int) -> None:
        """Stand at position `length`, from a state on disk where there is one."""
        api.llama_memory_clear(self.memory, True)
        if not length:
            return
        place = self._place(length)
        kept = (api.llama_token * length)()
        count = ctypes.c_size_t()
        if place.exists() and api.llama_state_seq_load_file(
            self.context, str(place).encode(), 0, kept, length, ctypes.byref(count)
        ):
            return
        api.llama_memory_clear(self.memory, True)
        tokens = drawn(self.vocabulary, length)
        for at in range(0, length, _FILL):
            self.run(tokens[at : at + _FILL])
        place.parent.mkdir(parents=True, exist_ok=True)
        given = (api.llama_token * length)(*tokens)
        if not api.llama_state_seq_save_file(self.context, str(place).encode(), 0, given, length):
            raise SystemExit(f"llama.cpp cannot write {place}")

    def _place(self, length: int) -> Path:
        model = Path(self.job.path)
        flash = "flash" if self.job.settings.flash else "plain"
        name = f"{model.stem}-{model.stat().st_size}-{flash}-kv{self.job.kv}-{llama_cpp.__version__}-{length}.state"
        return Path(self.job.states) / name


def drawn(vocabulary: int, count: int, seed: int = 0) -> list[int]:
    """Arbitrary tokens, without those at the beginning of a vocabulary, which may be control tokens."""
    generator = random.Random(seed)
    return [generator.randrange(min(1000, vocabulary // 2), vocabulary) for _ in range(count)]


def measure(job: Job) -> dict[str, object]:
    """Seconds of each pass."""
    if job.kind == "load":
        return {"seconds": [_first_token(job)]}
    peer = Peer(job)
    passes = _prefills(peer) if job.kind == "prefill" else _decodes(peer)
    return {"seconds": list(passes)}


def _first_token(job: Job) -> float:
    start = perf_counter()
    peer = Peer(job)
    peer.run(drawn(peer.vocabulary, 4))
    return perf_counter() - start


def _prefills(peer: Peer) -> Iterator[float]:
    tokens = drawn(peer.vocabulary, peer.job.tokens, 1)
    peer.run(tokens[:16])
    for _ in range(peer.job.passes):
        peer.reach(peer.job.context)
        start = perf_counter()
        peer.run(tokens)
        yield perf_counter() - start


def _decodes(peer: Peer) -> Iterator[float]:
    for _ in range(peer.job.passes):
        peer.reach(peer.job.context)
        token = 1000 if peer.vocabulary > 1000 else 1
        start = 0.0
        for step in range(_WARM + peer.job.tokens):
            if step == _WARM:
                start = perf_counter()
            token = peer.run([token])
        yield perf_counter() - start
