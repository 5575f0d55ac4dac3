"""The block server of a process: gives what its cache holds to the other nodes of the job.

A node that is asked as the holder of a block fetches one that it lacks, once for all who ask.
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
from shardwise.extensions.remote.cache.block_file import digest, text_digest
from shardwise.extensions.remote.cache.fetch import fetch_or_wait
from shardwise.extensions.service import frames
from shardwise.extensions.service.greeting import Admission, greeting_steps, welcome
from shardwise.extensions.service.reception import Reception
from shardwise.extensions.service.transport import Connection, Listener
from shardwise.extensions.share.peers import MAX_BYTES, MAX_HEADER, VERSION
from shardwise.storage.file_pool import FilePool
from shardwise.storage.protocol import byte_ranges, num_bytes_of

_logger = logging.getLogger("shardwise")

# A connection that nobody uses is closed; its client opens another one.
_IDLE_S = 15.0


class BlockServer:
    """Serves blocks of files to those who have the token, until closed.

    Whatever a connection sends, only that connection is given up.
    """

    def __init__(self, listener: Listener, token: bytes, room: int) -> None:
        self._room = room
        # The URL and the pool that opens a file, by the digest of its URL.
        self._files: dict[str, tuple[str, FilePool]] = {}
        greet = partial(greeting_steps, token=token, has_dataset=True)
        self._reception = Reception(listener, greet=greet, take=self._take)
        self._reception.start()

    def add(self, urls: Iterable[str], pool: FilePool) -> None:
        """Serve the blocks of more files."""
        self._files |= {text_digest(url): (url, pool) for url in urls}

    def close(self) -> None:
        self._reception.close()

    def _take(self, connection: Connection, admission: Admission) -> None:
        connection.limit(_IDLE_S)
        args = (connection, admission.word)
        threading.Thread(target=self._serve, args=args, name="shardwise-peer", daemon=True).start()

    def _serve(self, connection: Connection, version: object) -> None:
        try:
            if version == VERSION:
                welcome(connection, 1)
            while version == VERSION:
                frame = frames.read_frame(connection, frames.Limits(MAX_HEADER, 0))
                frames.write(connection, frames.Kind.BATCH, 0, self._answer(frame.body))
        except (frames.FrameError, EOFError, OSError, MemoryError) as error:
            _logger.debug("a connection of another node ended: %s", error)
        finally:
            connection.close()

    def _answer(self, body: Any) -> frames.Encoded:
        """The numbers of the blocks that are here, the digest of their bytes, and these.

        For no request, the number of blocks that this node has room for.
        """
        if body is None:
            return frames.encoded(self._room)
        with frames.decoding("request"):
            through, blocks = body
            asked = [
                (name, byte_ranges([*map(int, starts)], [*map(int, ends)], 0), int(name[33:41], 16))
                for name, starts, ends in blocks
            ]
            sizes = [num_bytes_of(parts) for _, parts, _ in asked]
            if min(sizes) <= 0 or sum(sizes) > MAX_BYTES:
                raise ValueError(f"blocks of {sizes} bytes")
        buffer, end, given = np.empty(sum(sizes), np.uint8), 0, []
        for each, (name, parts, number) in enumerate(asked):
            url, pool = self._files.get(name[:16], ("", None))
            try:
                file = None if pool is None else pool.get(url)
                block = isinstance(file, CachedFile) and file.block_for_peer(number, parts)
                if not block or block.name != name:
                    continue
                view = buffer[end:].data
                if not block.cache.read(name, parts, view):
                    if through is not True:
                        continue
                    fetch_or_wait([block], view)
            except (DataError, StorageError) as error:
                _logger.debug("a block can't be read for another node: %s", error)
                continue
            given.append(each)
            end += sizes[each]
        return frames.encoded([given, digest(buffer[:end].data)], [buffer[:end]])
