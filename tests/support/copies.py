"""What processes of tests do with copies of files, in a module that imports no torch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from shardwise.compat.wids.wids_dl import fetch


def write_half_and_wait(target: str, ready: Any) -> None:
    """Write half a copy of a file, say so, and wait to be killed."""

    def handler(_: str, path: str) -> None:
        Path(path).write_bytes(b"half of it")
        ready.set()
        time.sleep(600)

    fetch("own://x", target, handlers={"own": handler})


def fetch_counted(directory: str) -> None:
    """Copy a file, with a mark in `calls/` if it was this process that made the copy."""

    def handler(_: str, path: str) -> None:
        calls = Path(directory) / "calls"
        calls.mkdir(exist_ok=True)
        (calls / str(os.getpid())).touch()
        Path(path).write_bytes(b"all of it")

    path = fetch("own://x", Path(directory) / "copy.tar", handlers={"own": handler})
    assert Path(path).read_bytes() == b"all of it"
