"""Read-ahead into the cache on disk: blocks are fetched before a reader in sequence lacks them.

The readers of a file whose blocks are all cached ask nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from shardwise.extensions.remote.prefetch.concurrency import AdaptiveConcurrency
from shardwise.extensions.remote.prefetch.sequential import FileState, Readable, SequentialPrefetch
from shardwise.storage.protocol import ByteRange

# Fetches blocks by one request and calls a function for each that is whole, with its bytes and the
# seconds to the reply's first byte. Blocks; whether nothing kept it from going on.
FetchBlocks = Callable[[Sequence[int], Callable[[int, float], None]], bool]

# 192 MiB with blocks of 4 MiB.
_MAX_BLOCKS_AHEAD = 48
# Each takes a thread; of all files.
_MAX_REQUESTS = 16
# What is fetched ahead must not evict what was fetched ahead before.
_SHARE_AHEAD = 4
# After 32 reads at random without a miss, or 32 blocks that were cached already, stop.
_MAX_IDLE = 32


class CacheReadAhead(SequentialPrefetch[FetchBlocks]):
    """The read-ahead of a cache in one process, for all threads.

    Args:
        holds: whether the cache has a block, by the name of its file's version and its number.
        block_bytes: the length of a block.
        most_blocks: how many the cache has room for.
    """

    def __init__(
        self, holds: Callable[[str, int], bool], *, block_bytes: int, most_blocks: int
    ) -> None:
        most_ahead = max(1, min(_MAX_BLOCKS_AHEAD, most_blocks // _SHARE_AHEAD)) * block_bytes
        concurrency = AdaptiveConcurrency(most_ahead, _MAX_REQUESTS)
        super().__init__(concurrency, block_bytes)
        self._holds = holds
        self._num_threads = 0
        self._lock = threading.Lock()

    def note(
        self, source: Readable[FetchBlocks], ranges: Sequence[ByteRange], *, had_to_wait: bool
    ) -> bool:
        """Note a read, and fetch the blocks behind it if the file is read in sequence.

        Returns:
            Whether the next read is to be noted, too, if it lacks no block.
        """
        with self._lock:
            file, _ = self._note_read(source, ranges)
            file.block_bytes = self._block_bytes
            if had_to_wait:
                file.num_idle = 0
            if file.is_sequential:
                position = file.pattern.position // file.block_bytes
                file.next_number = max(file.next_number, position)
                self._go_on(source, file, is_late=had_to_wait)
            else:
                file.next_number = 0
                file.num_idle += not had_to_wait
            return file.num_idle <= _MAX_IDLE

    def _has(self, source: Readable[FetchBlocks], number: int) -> bool:
        file = self._file(source.name)
        if number < file.next_number:
            return True
        is_held = self._holds(source.name, number)
        if is_held and number == file.next_number:
            file.next_number += 1
            file.num_idle += 1
        return is_held

    def _start(
        self,
        source: Readable[FetchBlocks],
        numbers: range,
        *,
        begin: int,  # noqa: ARG002 - blocks on disk are whole
        is_needed: bool = False,  # noqa: ARG002
    ) -> int:
        if self._num_threads >= _MAX_REQUESTS:
            return 0
        file = self._file(source.name)
        # A daemon: prefetching must not delay the interpreter's exit.
        thread = threading.Thread(
            target=self._fetch, args=(source, file, numbers), name="shardwise-cache", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is ending, or the process may have no more threads: readers fetch
            # what they lack.
            return 0
        self._num_threads += 1
        file.in_flight += 1
        file.next_number, file.num_idle = numbers.stop, 0
        return len(numbers)

    def _fetch(self, source: Readable[FetchBlocks], file: FileState, numbers: range) -> None:
        def arrived(num_bytes: int, head_s: float) -> None:
            with self._lock:
                self._concurrency.add(num_bytes, head_s)

        is_whole = False
        try:
            is_whole = source.fetch(numbers, arrived)
        finally:
            with self._lock:
                self._num_threads -= 1
                self._ended(source, file, is_whole=is_whole)
