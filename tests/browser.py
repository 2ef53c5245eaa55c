"""A real browser for tests of pages and pictures: Chromium where it is on the PATH, else the test is skipped.

    with page(html, width=1200, height=800) as view:
        view.evaluate("document.title")

`view` is a page of Playwright's, offline: every request but the page's own text fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

__all__ = ["OUTSIDE", "OVERLAPPING", "chromium", "page"]

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# A function of a list of <text> elements: those that reach out of the first <rect> of their own group.
OUTSIDE = """
(texts) => texts.filter((text) => {
  const frame = text.parentElement.querySelector(":scope > rect");
  if (frame === null) return false;
  const a = text.getBoundingClientRect(), b = frame.getBoundingClientRect(), slack = 0.5;
  return a.left < b.left - slack || a.right > b.right + slack || a.top < b.top - slack || a.bottom > b.bottom + slack;
}).map((text) => text.textContent)
"""

# A function of a list of <text> elements: pairs that cover each other. Lines may touch: a line's box is taller than
# its letters.
OVERLAPPING = """
(texts) => {
  const found = [], boxes = texts.map((text) => text.getBoundingClientRect());
  for (let i = 0; i < texts.length; i++)
    for (let j = i + 1; j < texts.length; j++) {
      const a = boxes[i], b = boxes[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 0.5 && high > 0.3 * Math.min(a.height, b.height))
        found.push([texts[i].textContent, texts[j].textContent]);
    }
  return found;
}
"""


def chromium() -> str:
    """The browser's program; skips the test where there is none."""
    for name in _PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip(f"no browser on the PATH (looked for {', '.join(_PROGRAMS)})")


@contextmanager
def page(
    html: str, *, width: int = 1200, height: int = 900, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Any]:
    """A page that shows `html`. `scheme`: the colours the reader prefers."""
    program = chromium()
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
            )
            view = context.new_page()
            view.set_content(html, wait_until="load")
            yield view
        finally:
            browser.close()
