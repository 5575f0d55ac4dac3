"""The block server of a process: gives what its cache holds to the other nodes of the job.

A node that is asked as the holder of a block fetches one that it lacks, once for all who ask.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, TypeAlias

import numpy as np

from shardwise.base.errors import DataError, StorageError
from shardwise.extensions.remote.cache import CachedFile
from shardwise.extensions.remote.cache.block_file import BLOCK_NAME
from shardwise.extensions.remote.cache.fetch import MissingBlock, fetch_or_wait
from shardwise.extensions.service import frames
from shardwise.extensions.service.greeting import Admission, greeting_steps, welcome
from shardwise.extensions.service.reception import Reception
from shardwise.extensions.service.transport import Connection, Listener
from shardwise.extensions.share.peers import MAX_BYTES, MAX_HEADER, VERSION, block_digest
from shardwise.storage.file_pool import FilePool
from shardwise.storage.protocol import ByteRange, byte_ranges

_logger = logging.getLogger("shardwise")

# A connection that nobody uses is closed; its client opens another one.
_IDLE_S = 15.0
# A block that can't be fetched so fast goes to those who ask while they still wait.
_FETCH_S = 5.0

_Files: TypeAlias = Mapping[str, tuple[str, weakref.ref[FilePool]]]


class BlockServer:
    """Serves blocks of `files` to those who have the token, until closed.

    `files` has the pool that opens a file, and its URL, by the digest of the URL. Whatever a
    connection sends, only that connection is given up.
    """

    def __init__(self, listener: Listener, token: bytes, *, room: int, files: _Files) -> None:
        self._room, self._files, self._pid = room, files, os.getpid()
        greet = partial(greeting_steps, token=token, has_dataset=True)
        self._reception = Reception(listener, greet=greet, take=self._take)
        self._reception.start()

    def close(self) -> None:
        """Take no more connections; a forked child leaves its parent's socket alone."""
        if self._pid == os.getpid():
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
        """The numbers of the blocks that are here with the digests of their bytes, and these.

        For no request, the number of blocks that this node has room for.
        """
        if body is None:
            return frames.encoded(self._room)
        asked, num_bytes = [], 0
        with frames.decoding("request"):
            through, blocks = body
            for name, starts, ends in blocks:
                ends = [num_bytes + int(end) for end in ends]
                parts = byte_ranges([*map(int, starts)], ends, num_bytes)
                asked.append((name, parts, slice(num_bytes, ends[-1])))
                num_bytes = ends[-1]
                if not parts or num_bytes > MAX_BYTES or not BLOCK_NAME.fullmatch(name):
                    raise ValueError(f"{name}: {len(parts)} ranges up to byte {num_bytes}")
        buffer, given, missing = np.empty(num_bytes, np.uint8), [], {}
        for each, (name, parts, _) in enumerate(asked):
            block = self._find_block(name, parts)
            if block is not None and block.cache.read(name, parts, buffer.data):
                given.append(each)
            elif block is not None and through is True:
                missing[each] = block
        if missing:
            # Between two passes it is not known who else has them: those who ask know it.
            know = next(iter(missing.values())).cache.peers.know([*missing.values()])
            missing = dict(compress(missing.items(), know))
        is_done = bool(missing) and _fetch([*missing.values()], buffer.data)
        for each, block in missing.items():
            if is_done or block.cache.read(block.name, block.ranges, buffer.data):
                given.append(each)
        given.sort()
        data = [buffer[asked[each][2]] for each in given]
        names = [asked[each][0] for each in given]
        return frames.encoded([given, [*map(block_digest, names, data)]], data)

    def _find_block(self, name: str, parts: Sequence[ByteRange]) -> MissingBlock | None:
        """A block of this node's version of a file; None for others'."""
        url, pool = self._files.get(name[:16], ("", lambda: None))
        number = int(name[33:41], 16)
        try:
            file = None if (opened := pool()) is None else opened.get(url)
            block = file.block_for_peer(number, parts) if isinstance(file, CachedFile) else None
        except (DataError, StorageError) as error:
            _logger.debug("a block can't be read for another node: %s", error)
            return None
        return block if block is not None and block.name == name else None


def _fetch(missing: list[MissingBlock], view: memoryview) -> bool:
    """Fetch blocks, which may take longer than this waits; returns whether all are in the view."""
    done = []

    def fetch() -> None:
        try:
            fetch_or_wait(missing, view)
            done.append(True)
        except (DataError, StorageError) as error:
            _logger.debug("blocks can't be fetched for another node: %s", error)

    thread = threading.Thread(target=fetch, name="shardwise-peer", daemon=True)
    thread.start()
    thread.join(_FETCH_S)
    return bool(done)
