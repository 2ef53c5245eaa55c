"""Plait, through its public interface and the functions of `plait bench`."""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter, sleep

from rows import Job


def measure(job: Job) -> dict[str, object]:
    """Seconds of each pass, and what memory gave meanwhile."""
    if job.kind == "load":
        return {"seconds": [_first_token(job)]}
    if job.kind == "memory":
        return _resident(job)
    from plait.account.speed import decode_traffic, file_weights
    from plait.blueprint.source import open_model
    from plait.engine.bench import Work, bench

    engine, source = _load(job), open_model(job.path)
    work = Work(
        prompt=job.tokens if job.kind == "prefill" else 0,
        decode=0 if job.kind == "prefill" else job.tokens,
        contexts=(job.context,),
        batch=job.batch,
        repeat=job.passes,
        memory=job.memory,
    )
    made = bench(engine, source, work)
    (speed,) = made.speeds
    form = "bf16" if job.kv == 16 else "q8"
    middle = job.context + 2 + (job.tokens + 1) // 2
    # The bar counts what the file holds, whatever this run has made of it.
    traffic = decode_traffic(source.blueprint, middle, file_weights(source), batch=job.batch, kv_format=form)
    return {
        "seconds": list(speed.seconds),
        "bandwidth": made.bandwidth,
        "bytes": traffic.total_bytes,
        "forms": dict(made.forms),
    }


def _load(job: Job):
    import plait

    options = {} if job.dtype is None else {"dtype": job.dtype}
    return plait.load(job.path, kv_dtype="bfloat16" if job.kv == 16 else "int8", cache=0, **options)


def _first_token(job: Job) -> float:
    """From `load()` to the first token, imports done and the file in the page cache."""
    import plait
    import plait.engine.load  # noqa: F401
    from plait.engine.events import Token

    with Path(job.path).open("rb") as file:
        while file.read(2**24):
            pass
    start = perf_counter()
    engine = _load(job)
    tokens = [min(1000, engine.blueprint.vocabulary // 2)] * 4
    for event in engine.generate(tokens, max_tokens=1, ignore_eos=True):
        if isinstance(event, Token):
            return perf_counter() - start
    raise SystemExit("no token was generated")


def _anonymous() -> int:
    """Bytes of this process that are no pages of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say what of a process is resident")


def _resident(job: Job) -> dict[str, object]:
    """Private memory over that after the imports, while loading, at a prompt of 512 and a few steps."""
    import plait.engine.load  # noqa: F401

    before = _anonymous()
    most, done = before, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, _anonymous())
            sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    engine = _load(job)
    vocabulary, held = engine.blueprint.vocabulary, 0
    for _ in engine.generate([index % vocabulary for index in range(512)], max_tokens=8, ignore_eos=True):
        # With the last event the state is given back.
        held = max(held, sum(engine.stats()["held"].values()))
    done.set()
    watcher.join()
    weights = engine.model.weight_bytes
    return {
        "seconds": [0.0],
        "beyond": most - before - weights - held,
        "beyond_at_end": _anonymous() - before - weights,
        "weights": weights,
        "state": held,
        "file": Path(job.path).stat().st_size,
    }
