"""What a script prints in processes of their own, by how many threads its kernels run on."""

from __future__ import annotations

import os
import subprocess
import sys


def printed(script: str, threads: int, *arguments: str) -> str:
    """Standard output of a script that must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout
