"""`python -m plait`: the command line."""

from __future__ import annotations

from plait.cli.main import run

if __name__ == "__main__":
    run()
