"""Waiting for what other threads, processes and servers do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any


def wait_for(
    condition: Callable[[], object],
    *,
    process: subprocess.Popen[Any] | None = None,
    seconds: float = 120,
    every_s: float = 0.002,
) -> None:
    """Wait until a condition holds; an error after `seconds`, or if `process` ends before it.

    A condition that costs more than a look is checked less often: `every_s`.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"it ended: {process.returncode}"
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        time.sleep(every_s)
