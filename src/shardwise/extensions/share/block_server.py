"""The block server of a process: gives what its cache holds to the other nodes of the job.

A node that is asked as the holder of a block fetches one that it lacks, once for all who ask.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

from shardwise.base.errors import DataError, StorageError
from shardwise.extensions.remote.cache import Cache, CachedFile
from shardwise.extensions.remote.cache.block_file import BLOCK_NAME
from shardwise.extensions.remote.cache.fetch import MissingBlock, fetch_or_wait
from shardwise.extensions.remote.cache.homes import keys_of_names
from shardwise.extensions.service import frames
from shardwise.extensions.service.greeting import Admission, greeting_steps, welcome
from shardwise.extensions.service.reception import Reception
from shardwise.extensions.service.transport import Connection, Listener
from shardwise.extensions.share.peers import MAX_BYTES, MAX_HEADER, VERSION, block_digest
from shardwise.storage.byte_ranges import ByteRange, byte_ranges
from shardwise.storage.file_pool import FilePool

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

    def __init__(self, listener: Listener, token: bytes, *, cache: Cache, files: _Files) -> None:
        self._cache, self._files, self._pid = cache, files, os.getpid()
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
                for number, answer in enumerate(self._answers(frame.body)):
                    frames.write(connection, frames.Kind.BATCH, number, answer)
        except (frames.FrameError, EOFError, OSError, MemoryError, ReferenceError) as error:
            _logger.debug("a connection of another node ended: %s", error)
        finally:
            connection.close()

    def _answers(self, body: Any) -> Iterator[frames.Encoded]:
        """The digest of each requested block's bytes, and these; None for one that is not here.

        For no request, the number of blocks that this node has room for, and all their keys.
        """
        if body is None:
            names = [each.name for each in Path(self._cache.folder, "blocks").iterdir()]
            keys = keys_of_names([*filter(BLOCK_NAME.fullmatch, names)])
            yield frames.encoded(self._cache.room, [keys])
            return
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
        memory = self._cache.take_memory(num_bytes)
        found = [self._find_block(name, parts) for name, parts, _ in asked]
        missing = [each for each in found if each and not each.cache.holds(each.name)]
        if missing:
            # Between two passes it is not known who else has them: those who ask know it.
            know = missing[0].cache.peers.know(missing) if through is True else ()
            missing = [*compress(missing, know)]
        is_done = not missing or _fetch(missing, memory.data)
        for (name, parts, place), block in zip(asked, found, strict=True):
            is_here = block and (
                (is_done and block in missing) or block.cache.read(name, parts, memory.data)
            )
            data = [memory[place]] if is_here else []
            yield frames.encoded(block_digest(name, *data) if data else None, data)
        if is_done:
            self._cache.spare_memory(memory)

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
