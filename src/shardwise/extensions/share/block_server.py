"""The block server of a process: gives what its cache holds to the other nodes of the job.

Whatever a connection sends, only that connection is given up. A node that is asked as the holder of
a block fetches one that it lacks, once for all who ask.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from shardwise.base.errors import DataError, StorageError
from shardwise.extensions.remote.cache import CachedFile
from shardwise.extensions.remote.cache.block_file import BLOCK_NAME, digest, text_digest
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.fetch import fetch_or_wait
from shardwise.extensions.service.addresses import host_and_port
from shardwise.extensions.service.frames import (
    FrameError,
    Kind,
    Limits,
    decoding,
    encoded,
    read_frame,
    write,
)
from shardwise.extensions.service.greeting import (
    Admission,
    Refusal,
    greeting_steps,
    refuse,
    welcome,
)
from shardwise.extensions.service.reception import Reception
from shardwise.extensions.service.transport import Connection, Listener
from shardwise.extensions.share.peers import MAX_BYTES, MAX_HEADER, VERSION
from shardwise.storage.file_pool import FilePool
from shardwise.storage.protocol import ByteRange, num_bytes_of

_logger = logging.getLogger("shardwise")

# A connection that nobody uses is closed; its client opens another one.
_IDLE_S = 15.0
_REQUEST = Limits(header=MAX_HEADER, payload=0)


class BlockServer:
    """Serves the blocks of a cache, until closed; others reach it at `host`."""

    def __init__(self, listener: Listener, cache: Cache, token: bytes, *, host: str) -> None:
        scheme, port = listener.address.partition(":")[0], host_and_port(listener.address)[1]
        self.address = f"{scheme}://{host}:{port}"
        self._cache = cache
        # By the digest of its URL: what opens a file.
        self._files: dict[str, tuple[str, FilePool]] = {}
        greet = partial(greeting_steps, token=token, has_dataset=True)
        self._reception = Reception(listener, greet=greet, take=self._take)
        self._reception.start()

    def add(self, urls: Iterable[str], pool: FilePool) -> None:
        """Serve the blocks of these files, too."""
        self._files |= {text_digest(url): (url, pool) for url in urls}

    def close(self) -> None:
        """Take no more connections."""
        self._reception.close()

    def _take(self, connection: Connection, admission: Admission) -> None:
        connection.limit(_IDLE_S)
        thread = threading.Thread(
            target=self._serve, args=(connection, admission), name="shardwise-peer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the system refuses a thread
            connection.close()

    def _serve(self, connection: Connection, admission: Admission) -> None:
        try:
            if admission.word != VERSION:
                refuse(connection, Refusal("this node has another release, or lacks xxhash"))
                return
            welcome(connection, 1)
            while (frame := read_frame(connection, _REQUEST)).kind == Kind.REQUEST:
                self._answer(connection, frame.body)
        except (FrameError, EOFError, OSError, MemoryError) as error:
            _logger.debug("a connection of another node ended: %s", error)
        finally:
            connection.close()

    def _answer(self, connection: Connection, body: Any) -> None:
        """Send of each block its digest and its bytes, or None."""
        with decoding("request"):
            asked = [(BLOCK_NAME.fullmatch(name)[0], _parts(ranges), through is True)  # type: ignore[index]
                     for name, ranges, through in body]  # fmt: skip
            sizes = [num_bytes_of(parts) for _, parts, _ in asked]
            if min(sizes) <= 0 or sum(sizes) > MAX_BYTES:
                raise ValueError(f"blocks of {sizes} bytes")
        digests, arrays = [], []
        for (name, parts, through), size in zip(asked, sizes, strict=True):
            array = np.empty(size, np.uint8)
            is_read = self._read(name, parts, array.data, through=through)
            digests.append(digest(array.data) if is_read else None)
            arrays += [array] if is_read else []
        write(connection, Kind.BATCH, 0, encoded(digests, arrays))

    def _read(self, name: str, parts: list[ByteRange], view: memoryview, *, through: bool) -> bool:
        """Read parts of a block; with `through` also from the store, into the cache."""
        url, pool = self._files.get(name[:16], ("", None))
        try:
            file = None if pool is None else pool.get(url)
            block = file.block_for_peer(name, parts) if isinstance(file, CachedFile) else None
            if block is None:
                return False
            if not self._cache.read(name, parts, view):
                if not through:
                    return False
                fetch_or_wait([block], view)
        except (DataError, StorageError) as error:
            _logger.debug("a block can't be read for another node: %s", error)
            return False
        return True


def _parts(ranges: Iterable[tuple[int, int]]) -> list[ByteRange]:
    """Ranges of a file, one behind the other in a buffer."""
    parts, begin = [], 0
    for start, stop in ranges:
        parts.append(ByteRange(int(start), int(stop), begin))
        begin += int(stop) - int(start)
    return parts
