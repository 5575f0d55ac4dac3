"""Work in several threads that begin at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def at_once(work: Callable[[int], Any], count: int) -> list[Any]:
    """What `work(0)`, `work(1)`, ... give, each in a thread of its own."""
    begin = threading.Barrier(count)

    def run(number: int) -> Any:
        begin.wait(60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
