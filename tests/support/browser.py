"""Pages in a real browser: Debian's Chromium without a window."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

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


def look_at(page: Path, scheme: Literal["dark", "light"], folder: Path) -> tuple[np.ndarray, str]:
    """The page's picture `[height, width, 3]` in a colour scheme, and its document as it stands."""
    binary = shutil.which("chromium")
    if binary is None:
        # Some 400 MB, which few machines have room for: also with `CI` set.
        pytest.skip("chromium is not installed")
    picture = folder / f"{scheme}.png"
    command = [
        *(binary, *_FLAGS, f"--user-data-dir={folder / scheme}"),
        f"--blink-settings=preferredColorScheme={_SCHEMES[scheme]}",
        *(f"--screenshot={picture}", "--dump-dom", page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, timeout=240, check=True)
    return np.asarray(Image.open(picture).convert("RGB")), done.stdout.decode()
