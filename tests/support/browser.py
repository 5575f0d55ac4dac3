"""Pages in a real browser: Debian's Chromium without a window."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

# A closed network is asked for nothing, and /dev/shm may be small.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1200,1800"),
)
_SCHEMES = {"dark": 0, "light": 1}
Scheme = Literal["dark", "light"]


def look_at(page: Path, scheme: Scheme, folder: Path) -> tuple[np.ndarray, str]:
    """The page's picture `[height, width, 3]` in a colour scheme, and its document as it stands."""
    picture = folder / f"{scheme}.png"
    document = _browse(page.as_uri(), scheme, folder, f"--screenshot={picture}")
    return np.asarray(Image.open(picture).convert("RGB")), document


def measure_pages(
    site: Path, pages: Sequence[str], widths: Sequence[int], scheme: Scheme, folder: Path
) -> list[dict[str, Any]]:
    """What each page of a site measures at each width of a window: see `_MEASURE`.

    All lie in frames of one page, which has the site's origin: frames have windows of their own.
    """
    frames = [(page, width) for page in pages for width in widths]
    name = f"measure-{scheme}.html"
    (site / name).write_text(_MEASURE.replace("FRAMES", json.dumps(frames)))
    served = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            for _ in range(3):  # a machine may be so loaded that the budget ends before the page
                document = _browse(url, scheme, folder, "--virtual-time-budget=20000")
                if found := re.search(r"<pre>(.*)</pre>", document, re.DOTALL):
                    break
        finally:
            server.shutdown()
            thread.join()
    assert found is not None, document[-2000:]
    measured: list[dict[str, Any]] = json.loads(unescape(found[1]))
    return measured


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


# `over`: pixels that the page scrolls sideways; `who`: what reaches furthest, where no box scrolls.
_MEASURE = """<!doctype html><meta charset=utf-8><body><script>
const frames = FRAMES.map(([page, width]) => {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = page;
  document.body.append(frame);
  return [page, width, frame];
});
const scrolls = (element) => {
  for (; element; element = element.parentElement)
    if (/auto|scroll|hidden/.test(getComputedStyle(element).overflowX)) return true;
  return false;
};
addEventListener("load", () => setTimeout(() => {
  const found = frames.map(([page, width, frame]) => {
    const inside = frame.contentDocument, root = inside.scrollingElement;
    const over = root.scrollWidth - root.clientWidth;
    const wide = !over ? [] : [...inside.body.querySelectorAll("*")].filter(
      (each) => each.getBoundingClientRect().right > width + 1 && !scrolls(each.parentElement));
    return {page, width, over, who: wide.slice(0, 3).map((each) => each.outerHTML.slice(0, 200)),
            title: inside.title, scheme: inside.body.dataset.mdColorScheme};
  });
  const text = document.createElement("pre");
  text.textContent = JSON.stringify(found);
  document.body.replaceChildren(text);
}, 1000));
</script>"""


def _browse(url: str, scheme: Scheme, folder: Path, *options: str) -> str:
    """The document of a page as it stands when it is loaded."""
    binary = shutil.which("chromium")
    if binary is None:
        # Some 400 MB, which few machines have room for: also with `CI` set.
        pytest.skip("chromium is not installed")
    command = [
        *(binary, *_FLAGS, f"--user-data-dir={folder / scheme}"),
        f"--blink-settings=preferredColorScheme={_SCHEMES[scheme]}",
        *(*options, "--dump-dom", url),
    ]
    done = subprocess.run(command, capture_output=True, timeout=240, check=True)
    return done.stdout.decode()
