"""The cache of one machine: who fetches a block, where it is kept, when it goes.

Keeps I6 and I8. A block is claimed under the ledger's lock by making its part file, locked for as
long as its maker lives and already as long as the block will be: the limit counts what is in
flight, and a block has one maker. It is published by a rename, once it is whole. A process that
dies leaves a part without a lock, which the next one sweeps. Whatever the disk refuses makes reads
go past the cache, with one warning, and is counted. Imports this package and the counts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from shardwise.shown import shown
from shardwise.storage.cache.block_lock import (
    Claim,
    Refusal,
    holds_bytes,
    make_part,
    require_space,
    write_at,
)
from shardwise.storage.cache.blocks import (
    BlockInfo,
    chunk_digests,
    digest_values,
    space_of,
    trailer,
    trailer_bytes,
)
from shardwise.storage.cache.eviction import Room, remove_block, sweep_parts
from shardwise.storage.cache.open_block import Held, Outcome
from shardwise.storage.cache.usage import Books, Ledger
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.limits import max_open_files
from shardwise.storage.requests.counts import IO_COUNTS

__all__ = ["FOLDER", "Cache"]

FOLDER = "shardwise-cache-v1"

_logger = logging.getLogger("shardwise")

# The folders and the ledger take space, too.
_OVERHEAD = 16 << 10
# How long nothing is written after the disk refused something.
_PAUSE_S = 30.0
# So many hits are carried over into the ledger at a time.
_CARRIED_HITS = 4096
_MOST_HELPERS = 16


class Cache:
    """The blocks of a directory, for this process; any thread may use it.

    Nothing is touched before the first use. After a fork the child begins anew.
    """

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self.folder = f"{settings.directory}/{FOLDER}"
        self._blocks = f"{self.folder}/blocks"
        self._parts = f"{self.folder}/parts"
        # Who adds up the files while they change counts some that go and some that come.
        headroom = min(settings.max_bytes // 16, 16 * settings.block_bytes)
        self._limit = settings.max_bytes - _OVERHEAD - headroom
        self._most_open = max_open_files()
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._helpers = threading.Semaphore(_MOST_HELPERS)
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._room = Room(self._blocks, self._parts)
        self._ledger: Ledger | None = None
        self._is_warned = self._is_passed_by = False
        self._resume_at = 0.0
        self._hits = 0

    def read(self, name: str, spans: Sequence[tuple[int, int, int]], buffer: memoryview) -> Outcome:
        """Read parts of a block into a buffer, if it is there; see `Held.read`.

        A damaged block is thrown away. A disk that can't be read counts as no block.
        """
        if self._pid != os.getpid():
            self._start()
        held = self._held.get(name)
        try:
            if held is not None:
                outcome = held.read(spans, buffer)
                if outcome is Outcome.READ:
                    return outcome
                self._forget(name, held)
            # Not there, or another one by now.
            found = Held.open(f"{self._blocks}/{name}", name)
            if isinstance(found, Outcome):
                outcome = found
            else:
                outcome = found.read(spans, buffer)
                if outcome is Outcome.READ:
                    self._keep(found)
                    return outcome
            if outcome is Outcome.DAMAGED:
                self._throw_away(name)
        except OSError as error:
            self._degrade(error)
            return Outcome.GONE
        return outcome

    def holds(self, name: str) -> bool:
        """Whether a block seems to be there."""
        return name in self._held or os.path.lexists(f"{self._blocks}/{name}")

    def claim(self, name: str, info: BlockInfo) -> Claim | Refusal:
        """Claim a block that is not there."""
        if self._pid != os.getpid():
            self._start()
        if time.monotonic() < self._resume_at:
            IO_COUNTS.add(degraded=1)
            return Refusal.FULL
        num_bytes = info.num_bytes + trailer_bytes(info)
        if space_of(num_bytes) > self._limit:
            return Refusal.FULL
        try:
            with self.ledger().hold() as books:
                return self._claim(books, name, info, num_bytes)
        except OSError as error:
            self._degrade(error)
            return Refusal.FULL

    def _claim(self, books: Books, name: str, info: BlockInfo, num_bytes: int) -> Claim | Refusal:
        part = f"{self._parts}/{name}.part"
        is_begun = os.path.lexists(part)
        # In this order: a part becomes the block without the ledger's lock.
        if holds_bytes(f"{self._blocks}/{name}"):
            return Refusal.THERE
        if is_begun:
            freed = remove_block(part)
            if not freed:
                return Refusal.BUSY
            books.num_bytes -= freed
        space = space_of(num_bytes)
        evicted = self._room.make(books, space, self._limit)
        if evicted:
            IO_COUNTS.add(evictions=evicted)
        if books.num_bytes + space > self._limit:
            return Refusal.FULL
        require_space(self._parts, num_bytes)
        claim = Claim(name, info, make_part(part, num_bytes), space)
        books.num_bytes += space
        books.misses += 1
        books.hits += self._hits
        books.max_bytes = self.settings.max_bytes
        self._hits = 0
        return claim

    def publish(self, claim: Claim, payload: memoryview) -> None:
        """Put a block under its name, for everybody."""
        digests = chunk_digests(payload)
        part = f"{self._parts}/{claim.name}.part"
        try:
            write_at(claim.fd, payload, 0)
            end = trailer(claim.name, claim.info, digests)
            write_at(claim.fd, memoryview(end), len(payload))
            now = time.time_ns()
            os.utime(claim.fd, ns=(now, now))
            # Before others see it, and may write into it.
            checked_ns = os.fstat(claim.fd).st_mtime_ns
            os.rename(part, f"{self._blocks}/{claim.name}")  # noqa: PTH104
        except OSError as error:
            self.abandon(claim)
            self._degrade(error)
            return
        claim.is_over = True
        fcntl.flock(claim.fd, fcntl.LOCK_UN)
        values = digest_values(digests)
        self._keep(Held(claim.name, claim.fd, claim.info, values, checked_ns=checked_ns))
        with self._changed:
            self._changed.notify_all()

    def abandon(self, claim: Claim) -> None:
        """Give a claim back, unless it has ended."""
        if claim.is_over:
            return
        claim.is_over = True
        part = f"{self._parts}/{claim.name}.part"
        try:
            with self.ledger().hold() as books:
                os.ftruncate(claim.fd, 0)
                os.unlink(part)  # noqa: PTH108
                books.num_bytes -= claim.space
        except OSError as error:
            self._degrade(error)
        finally:
            fcntl.flock(claim.fd, fcntl.LOCK_UN)
            os.close(claim.fd)
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until something was published or given back here, but no longer than that."""
        with self._changed:
            self._changed.wait(seconds)

    def ahead(self, work: Callable[[], None]) -> None:
        """Do some work in another thread, unless many do such work already."""
        if self._helpers.acquire(blocking=False):
            # Daemons: what is fetched ahead must not hold up the end of the interpreter.
            threading.Thread(
                target=_help, args=(work, self._helpers), name="shardwise-cache", daemon=True
            ).start()

    def drop(self, name: str) -> bool:
        """Remove a block, because what it holds is of no use; False if it stays or is not there."""
        if self._pid != os.getpid():
            self._start()
        held = self._held.get(name)
        if held is not None:
            self._forget(name, held)
        try:
            with self.ledger().hold() as books:
                freed = remove_block(f"{self._blocks}/{name}")
                books.num_bytes -= freed
        except OSError as error:
            self._degrade(error)
            return False
        return freed > 0

    def count_hits(self, hits: int) -> None:
        """Count blocks that were read from the cache."""
        IO_COUNTS.add(hits=hits)
        self._hits += hits
        if self._hits >= _CARRIED_HITS:
            self.flush()

    def flush(self) -> None:
        """Carry the hits over into the ledger."""
        try:
            with self.ledger().hold() as books:
                books.hits += self._hits
                self._hits = 0
        except OSError:
            # Statistics of a disk that can't be written.
            self._hits = 0

    def close(self) -> None:
        """Close all files; the next use opens them again."""
        if self._pid == os.getpid() and self._hits:
            self.flush()
        self._start()

    def ledger(self) -> Ledger:
        """The ledger; at the first use the folders are made and leftovers swept."""
        with self._lock:
            ledger = self._ledger
            if ledger is None:
                os.makedirs(os.path.dirname(self.folder), 0o700, exist_ok=True)  # noqa: PTH103, PTH120
                for folder in (self.folder, self._blocks, self._parts):
                    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
                ledger = Ledger(f"{self.folder}/ledger", self._room.count)
                with ledger.hold() as books:
                    sweep_parts(self._parts, books)
                self._ledger = ledger
            return ledger

    def _keep(self, held: Held) -> None:
        with self._lock:
            self._held[held.name] = held
            while len(self._held) > self._most_open:
                self._held.popitem(last=False)

    def _forget(self, name: str, held: Held) -> None:
        with self._lock:
            if self._held.get(name) is held:
                del self._held[name]

    def _throw_away(self, name: str) -> None:
        """Remove a damaged block, unless somebody has replaced it already."""
        path = f"{self._blocks}/{name}"
        with self.ledger().hold() as books:
            found = Held.open(path, name)
            is_sound = isinstance(found, Held) and found.is_sound()
            if found is Outcome.GONE or is_sound:
                return
            freed = remove_block(path)
            if not freed:
                return  # somebody reads it, and finds out as well
            books.num_bytes -= freed
            books.damaged += 1
        IO_COUNTS.add(damaged=1)
        _logger.warning("a block of the cache was damaged and is fetched once more: %s", path)

    def pass_by(self, url: str) -> None:
        """Count a read of a file without a version, which can't be kept, and say so once."""
        IO_COUNTS.add(degraded=1)
        if not self._is_passed_by:
            self._is_passed_by = True
            _logger.warning(
                "%r is not cached: its store tells neither an ETag nor a time of change, so that a "
                "replaced file could not be told from this one",
                shown(url),
            )

    def _degrade(self, error: OSError) -> None:
        """Read past the cache for a while, and say so once."""
        if isinstance(error, FileNotFoundError):
            self._ledger = None  # somebody removed the cache: it's made anew
        self._resume_at = time.monotonic() + _PAUSE_S
        IO_COUNTS.add(degraded=1)
        if self._is_warned:
            return
        self._is_warned = True
        _logger.warning(
            "the cache in %r can't be used (%s): what it lacks is read directly; make room on its "
            "disk, or give another directory",
            os.fspath(self.settings.directory),
            error.strerror or error,
        )


def _help(work: Callable[[], None], places: threading.Semaphore) -> None:
    try:
        work()
    finally:
        places.release()
