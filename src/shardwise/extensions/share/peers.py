"""Reads of blocks that other nodes hold; whatever these do, it costs a miss and a bounded wait."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import IO_COUNTS
from shardwise.base.errors import DataError, ServiceError
from shardwise.engine.processes.shared_memory import aligned
from shardwise.extensions.remote.cache.block_file import DIGEST_NAME, digest, is_length
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.homes import Homes, keys_of_names
from shardwise.extensions.remote.cache.usage import live_files
from shardwise.extensions.service import frames
from shardwise.extensions.service.frames import FrameError
from shardwise.extensions.service.greeting import ClientSide, greet
from shardwise.extensions.service.tls import TlsFiles
from shardwise.extensions.service.transport import Connection
from shardwise.extensions.service.transports import connect_to
from shardwise.extensions.service.version import VersionWord
from shardwise.storage.byte_ranges import ByteRange, num_bytes_of
from shardwise.storage.options import CacheSettings

_logger = logging.getLogger("shardwise")

# The version word of both ends; a batch server has another one.
VERSION = VersionWord(VersionWord.release_here(), "blocks", DIGEST_NAME)
# Until the nodes have found each other, at the start of a pass.
JOIN_S = 10.0
# For the answers to one read, as a holder may fetch the block, and to that of a holder, for whom
# others wait; a host that is up accepts at once.
_ANSWER_S, _HOLDER_S, CONNECT_S = 10.0, 3.0, 1.0
# A node that fails is left alone, each time twice as long; one that sends wrong bytes for a minute.
_PAUSE_S, _LONG_PAUSE_S = 5.0, 60.0
# Servers close a connection that nobody uses for 15 s.
_MAX_IDLE_S = 5.0
# Limits of the blocks of a request, of its header, and of all keys of a node: for 8,388,608 blocks.
MAX_BYTES, MAX_HEADER, _MAX_KEYS_BYTES = 1 << 30, 1 << 20, 64 << 20

# Errors that may end a connection; ValueError: of an address that none can have.
FAILURES = (ServiceError, FrameError, EOFError, OSError, RuntimeError, ValueError)
# The address of a node, the job's token, and whether the node fetches a block that it lacks.
_Node = tuple[str, str, bool]
_Receive = Callable[[Connection], Any]
_Wanted = tuple[Any, Sequence[ByteRange]]
# A requested block with its ranges, and the nodes that are left to ask.
_Ask = tuple[_Wanted, list[_Node] | None]


def tls_files(settings: CacheSettings) -> TlsFiles | None:
    """The files of both ends of a connection; None without TLS."""
    cert, ca = (each and os.fspath(each) for each in (settings.tls_cert, settings.tls_ca))
    return TlsFiles(cert or None, ca=ca or None) if cert or ca else None


class Peers:
    """The other nodes' blocks, for this process; any thread may read."""

    def __init__(self, cache: Cache) -> None:
        self._settings, self._folder = cache.settings, cache.folder
        # Names of blocks for which some node sent bytes that an index knows to be wrong.
        self.distrusted: set[str] = set()
        self._homes: dict[Path, Homes] = {}
        # Connections that nobody uses, and since when, by process and address.
        self._idle: defaultdict[tuple[int, str], list[tuple[float, Connection]]] = defaultdict(list)
        # Time until which an address is left alone, and how often in a row it failed.
        self._down: dict[str, tuple[float, int]] = {}

    def read(self, wanted: Sequence[_Wanted], buffer: memoryview) -> list[_Wanted]:
        """Fill a buffer with ranges of blocks; returns those that no other node gave."""
        if sum(num_bytes_of(ranges) for _, ranges in wanted) > MAX_BYTES:
            return [*wanted]
        is_holder = any(block.for_peer for block, _ in wanted)
        until = time.monotonic() + (_HOLDER_S if is_holder else _ANSWER_S)
        asks = [*zip(wanted, self._holders([block for block, _ in wanted]), strict=True)]
        left = []
        while asks:
            by_node: defaultdict[_Node, list[_Ask]] = defaultdict(list)
            for each, holders in asks:
                nodes = [node for node in holders or () if self._is_up(node[0])]
                if nodes and time.monotonic() < until:
                    by_node[nodes[0]].append((each, nodes[1:]))
                else:
                    left.append(each)
            asks = []
            for node, some in by_node.items():
                given = self._ask(node, [each for each, _ in some], buffer, until)
                asks += [each for number, each in enumerate(some) if number not in given]
        return left

    def ask_holders(self, blocks: Sequence[Any]) -> list[bool]:
        """Whether a read of each block waits for another node, which may fetch it."""
        return [any(through for *_, through in nodes or ()) for nodes in self._holders(blocks)]

    def know(self, blocks: Sequence[Any]) -> list[bool]:
        """Whether a loader here knows who holds each block; between two passes none does."""
        return [nodes is not None for nodes in self._holders(blocks)]

    def _holders(self, blocks: Sequence[Any]) -> list[list[_Node] | None]:
        """The nodes to ask for each block; waits for homes that are about to be computed."""
        is_pending = True
        while is_pending and (missing := [each for each in blocks if each.nodes is None]):
            known, is_pending = self._known_homes()
            for homes in known:
                rows, are_known = homes.rows(keys_of_names([block.name for block in missing]))
                for block, row in compress(zip(missing, rows, strict=True), are_known):
                    if block.nodes is None:
                        block.nodes = self._nodes(block, row, homes.facts)
            if is_pending and any(block.nodes is None for block in missing):
                time.sleep(2e-3)
        return [block.nodes for block in blocks]

    def _known_homes(self) -> tuple[list[Homes], bool]:
        """The homes that this machine's loaders have computed, and whether others are to come."""
        found, is_pending = {}, False
        for path in live_files(self._folder, "homes"):
            with suppress(DataError, OSError):  # its loader closes it
                homes = self._homes.get(path) or Homes(path)
                is_pending |= not homes.facts and time.time() - path.stat().st_mtime < JOIN_S
                if homes.facts:
                    found[path] = homes
        self._homes = found
        return list(found.values()), is_pending

    def _nodes(self, block: Any, row: Any, facts: dict[str, Any]) -> list[_Node]:
        """The nodes that hold a block, held it before, or have it from an earlier job."""
        if block.name in self.distrusted:
            return []
        addresses, me, home = facts["addresses"], facts["me"], int(row["home"])
        if not block.for_peer:  # in place of a home that fails, the next one for all who ask
            after = [(home + n) % len(addresses) for n in range(len(addresses))]
            home = next((n for n in after if n == me or self._is_up(addresses[n])), home)
        return [
            (addresses[n], facts["token"], n == home and not block.for_peer)
            for n in dict.fromkeys([home, int(row["before"]), int(row["warm"])])
            if n not in (-1, me)
        ]

    def _is_up(self, address: str) -> bool:
        return self._down.get(address, (0.0, 0))[0] <= time.monotonic()

    def _ask(
        self, node: _Node, wanted: Sequence[_Wanted], buffer: memoryview, until: float
    ) -> list[int]:
        """Ask a node for blocks; returns the numbers of the blocks that it sent."""
        address, token, through = node
        body = [
            [block.name, [each.start for each in ranges],
             np.cumsum([each.stop - each.start for each in ranges]).tolist()]
            for block, ranges in wanted
        ]  # fmt: skip
        given: list[int] = []

        def receive(connection: Connection) -> None:
            for number, (block, ranges) in enumerate(wanted):
                given.extend([number] * _receive_block(connection, block.name, ranges, buffer))

        try:
            self._exchange(address, token, [through, body], receive, until)
            self._down.pop(address, None)
        except FAILURES as error:
            _, times = self._down.get(address, (0.0, 0))
            if not times:
                _logger.warning("the cache at %s fails (%r): it is passed over", address, error)
            is_wrong = isinstance(error, FrameError)
            pause_s = _LONG_PAUSE_S if is_wrong else min(_PAUSE_S * 2**times, _LONG_PAUSE_S)
            self._down[address] = time.monotonic() + pause_s, times + 1
        IO_COUNTS.add(peer_bytes=sum(num_bytes_of(wanted[number][1]) for number in given))
        return given

    def _ask_room(self, address: str, token: str, until: float) -> tuple[int, NDArray[np.uint64]]:
        """The number of blocks that a node has room for, and the keys of those that it has."""
        receive = partial(frames.read_frame, limits=frames.Limits(MAX_HEADER, _MAX_KEYS_BYTES))
        frame = self._exchange(address, token, None, receive, until)
        with frames.decoding("answer"):
            [keys] = frame.arrays
            if not is_length(frame.body):
                raise ValueError(f"room for {frame.body!r:.60} blocks")
            return frame.body, keys.astype(np.uint64, casting="no")

    def _exchange(
        self, address: str, token: str, body: Any, receive: _Receive, until: float
    ) -> Any:
        """Send a request and receive its answer; raises `FAILURES`."""
        link: list[Connection] = []
        # A node may send a byte now and then: the connection is closed when the time is over.
        timer = threading.Timer(until - time.monotonic(), _close, [link])
        timer.daemon = True
        try:
            timer.start()
            idle = self._idle[os.getpid(), address]
            with suppress(IndexError):  # none is left
                while not link:
                    since, connection = idle.pop()
                    link += [connection] if time.monotonic() - since < _MAX_IDLE_S else []
            if not link:
                connect = connect_to([address], files=tls_files(self._settings))
                link.append(connect(address, timeout_s=CONNECT_S))
                side = ClientSide(VERSION, {}, bytes, needs_pickle=False, token=token.encode())
                link[0].limit(None)  # a busy node greets late
                greet(link[0], side)
            frames.write(link[0], frames.Kind.REQUEST, 0, frames.encoded(body))
            answer = receive(link[0])
        except FAILURES:
            _close(link)
            raise
        finally:
            timer.cancel()
        idle.append((time.monotonic(), link[0]))
        return answer


def _close(links: Sequence[Connection]) -> None:
    for each in links:
        each.close()


def block_digest(name: str, data: NDArray[np.uint8]) -> int:
    """The digest of a block's bytes under its name: an answer of another block has another one."""
    return digest(data.data) ^ digest(name.encode())


def _receive_block(
    connection: Connection, name: str, ranges: Sequence[ByteRange], buffer: memoryview
) -> bool:
    """Receive ranges of a block into a buffer, unless the node lacks it; FrameError for others."""
    size, begin = num_bytes_of(ranges), ranges[0].begin
    # A frame pads its arrays.
    is_in_place = len(ranges) == 1 and size == aligned(size)

    def memory(num_bytes: int) -> NDArray[np.uint8]:
        if is_in_place and num_bytes == size:
            return np.frombuffer(buffer[begin : begin + size], np.uint8)
        return np.empty(num_bytes, np.uint8)

    frame = frames.read_frame(connection, frames.Limits(MAX_HEADER, aligned(size)), memory)
    if frame.body is None:
        return False
    with frames.decoding("answer"):
        [data] = frame.arrays
        is_one = data.dtype == np.uint8 and data.shape == (size,)
        if not is_one or block_digest(name, data) != frame.body:
            raise ValueError("it differs from its digest, or is of another block")
    begin = 0
    for start, stop, at in () if is_in_place else ranges:
        buffer[at : at + stop - start] = data[begin : begin + stop - start].data
        begin += stop - start
    return True
