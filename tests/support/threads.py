"""Work in several threads that begin at once, and threads that a fork would lose."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def at_once(work: Callable[[int], Any], count: int) -> list[Any]:
    """What `work(0)`, `work(1)`, ... give, each in a thread of its own."""
    begin = threading.Barrier(count)

    def run(number: int) -> Any:
        begin.wait(60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def other_threads() -> list[str]:
    """Threads whose locks a fork may leave locked; jemalloc, of pyarrow, takes care of its."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # it ended meanwhile
            continue
        if int(task.name) != os.getpid() and name != "jemalloc_bg_thd":
            names.append(name)
    return names
