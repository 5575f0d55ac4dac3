"""Read-ahead into the cache on disk: announced blocks are fetched, in order, before their readers.

Runs in a few threads, which end when nothing is announced.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

from shardwise.base.errors import DataError, StorageError
from shardwise.storage.counts import give_up_reads

# Blocks per request: 16 MiB with blocks of 4 MiB.
_MAX_RUN = 4
_MAX_THREADS = 8
# Blocks fetched ahead must not evict blocks that were fetched ahead before.
_SHARE_AHEAD = 4
# Interval at which fetches without a reader are given up.
_POLL_S = 0.05

# A `MissingBlock`, which knows its cache.
Block: TypeAlias = Any


class CacheAhead:
    """The announced blocks of a cache in one process; `most_blocks` is how many it has room for."""

    def __init__(self, most_blocks: int) -> None:
        self._most_ahead = max(1, most_blocks // _SHARE_AHEAD)
        # The blocks that no thread has taken yet, by name, in order.
        self._queue: OrderedDict[str, Block] = OrderedDict()
        # The newest owner of each announced block, by name.
        self._owners: dict[str, Hashable] = {}
        self._names: dict[Hashable, list[str]] = {}
        # What each thread fetches.
        self._runs: dict[threading.Thread, Sequence[Block]] = {}
        self._lock = threading.Condition()

    def add(
        self,
        owner: Hashable,
        blocks: Iterable[Block],
        fetch: Callable[[Sequence[Block]], None],
    ) -> None:
        """Announce blocks, after those that were announced before; `fetch` fetches some."""
        with self._lock:
            names = self._names.setdefault(owner, [])
            for block in blocks:
                if block.name not in self._owners:
                    if len(self._owners) >= self._most_ahead:
                        break
                    if not block.is_cached:
                        self._queue[block.name] = block
                self._owners[block.name] = owner
                names.append(block.name)
            while len(self._runs) < min(_MAX_THREADS, len(self._queue)):
                # A daemon: read-ahead must not delay the interpreter's exit.
                thread = threading.Thread(
                    target=self._run, args=(fetch,), name="shardwise-cache", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    return  # the interpreter is ending: readers fetch what they lack
                self._runs[thread] = ()

    def withdraw(self, owner: Hashable) -> None:
        """Forget what an owner announced, and end fetches of blocks that no other one announced."""
        with self._lock:
            for name in self._names.pop(owner, ()):
                if self._owners.get(name) == owner:
                    del self._owners[name]
                    self._queue.pop(name, None)
            while useless := [
                thread
                for thread, run in self._runs.items()
                if run and thread is not threading.current_thread() and thread.is_alive()
                if not any(block.name in self._owners for block in run)
            ]:
                for thread in useless:
                    # Its request would be retried for minutes, or is about to be sent.
                    give_up_reads(thread.ident or 0)
                self._lock.wait(_POLL_S)

    def _run(self, fetch: Callable[[Sequence[Block]], None]) -> None:
        while run := self._take():
            try:
                fetch(run)
            except (DataError, StorageError):
                continue  # the reader that needs the block meets the error itself

    def _take(self) -> Sequence[Block]:
        """The next block, and announced ones that follow it in its file; empty ends the thread."""
        with self._lock:
            self._lock.notify_all()
            if not self._queue:
                self._runs.pop(threading.current_thread(), None)
                return ()
            _, block = self._queue.popitem(last=False)
            run = [block]
            while len(run) < _MAX_RUN and run[-1].next_name in self._queue:
                run.append(self._queue.pop(run[-1].next_name))
            self._runs[threading.current_thread()] = run
            return run
