"""Reads of blocks that other nodes hold; whatever these do, it costs a miss and a bounded wait."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import ServiceError
from shardwise.extensions.remote.cache.block_file import DIGEST_NAME, digest
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.homes import Homes, keys_of_names
from shardwise.extensions.service import frames
from shardwise.extensions.service.frames import FrameError
from shardwise.extensions.service.greeting import ClientSide, greet
from shardwise.extensions.service.tls import TlsFiles
from shardwise.extensions.service.transport import Connection
from shardwise.extensions.service.transports import connect_to
from shardwise.extensions.service.version import VersionWord
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.counts import IO_COUNTS
from shardwise.storage.protocol import ByteRange, num_bytes_of

_logger = logging.getLogger("shardwise")

# The version word of both ends; a batch server has another one.
VERSION = VersionWord(VersionWord.release_here(), "blocks", DIGEST_NAME)
# Until the nodes have found each other, at the start of a pass.
JOIN_S = 10.0
# For the answers to one read, as a holder may fetch the block; a host that is up accepts at once.
_ANSWER_S, _CONNECT_S = 10.0, 1.0
# A node that fails is left alone for a while, one that sends wrong bytes for a minute.
_PAUSE_S, _LIAR_PAUSE_S = 5.0, 60.0
# Servers close a connection that nobody uses for 15 s.
_MAX_IDLE_S = 5.0
# Limits of the blocks of a request, and of its header.
MAX_BYTES, MAX_HEADER = 128 << 20, 1 << 20

# Errors that may end a connection.
FAILURES = (ServiceError, FrameError, EOFError, OSError, RuntimeError)
# The address of a node, the job's token, and whether the node fetches a block that it lacks.
_Node = tuple[str, str, bool]
_Wanted = tuple[Any, Sequence[ByteRange]]
# A requested block with its ranges, and the nodes that are left to ask.
_Ask = tuple[_Wanted, list[_Node]]


def tls_files(settings: CacheSettings) -> TlsFiles | None:
    """The files of both ends of a connection; None without TLS."""
    cert, ca = (each and os.fspath(each) for each in (settings.tls_cert, settings.tls_ca))
    return TlsFiles(cert or None, ca=ca or None) if cert or ca else None


class Peers:
    """The other nodes' blocks, for this process; any thread may read."""

    def __init__(self, cache: Cache) -> None:
        self._settings, self._folder = cache.settings, Path(cache.folder) / "homes"
        # Names of blocks for which some node sent bytes that an index knows to be wrong.
        self.distrusted: set[str] = set()
        self._homes: dict[Path, Homes] = {}
        # A connection, and since when nobody uses it, by process and address.
        self._idle: dict[tuple[int, str], tuple[float, Connection]] = {}
        # Time until which an address is left alone.
        self._down: dict[str, float] = {}

    def read(self, wanted: Sequence[_Wanted], buffer: memoryview) -> list[_Wanted]:
        """Fill a buffer with ranges of blocks; returns those that no other node gave."""
        if sum(num_bytes_of(ranges) for _, ranges in wanted) > MAX_BYTES:
            return [*wanted]
        known, until = self._known_homes(), time.monotonic() + _ANSWER_S
        asks = [(each, self._holders(each[0], known)) for each in wanted]
        left = []
        while asks:
            by_node: defaultdict[_Node, list[_Ask]] = defaultdict(list)
            for each, holders in asks:
                nodes = [node for node in holders if self._is_up(node[0])]
                if nodes and time.monotonic() < until:
                    by_node[nodes[0]].append((each, nodes[1:]))
                else:
                    left.append(each)
            asks = []
            for node, some in by_node.items():
                given = self._ask(node, [each for each, _ in some], buffer, until)
                asks += [each for number, each in enumerate(some) if number not in given]
        return left

    def asks_holder(self, block: Any) -> bool:
        """Whether a read of a block waits for another node, which may fetch it."""
        return any(through for *_, through in self._holders(block, self._known_homes()))

    def _known_homes(self) -> list[Homes]:
        """The homes that this machine's loaders have computed; waits while one is about to."""
        while True:
            found, is_pending = {}, False
            for path in self._folder.glob("*"):
                with suppress(OSError, ValueError):  # its loader opens or closes it
                    homes = self._homes.get(path) or Homes(path)
                    is_pending |= not homes.facts and time.time() - path.stat().st_mtime < JOIN_S
                    if homes.facts:
                        found[path] = homes
            self._homes = found
            if not is_pending:
                return list(found.values())
            time.sleep(2e-3)

    def _holders(self, block: Any, known: Sequence[Homes]) -> list[_Node]:
        """The nodes that hold a block, held it before, or may have it from an earlier job."""
        for homes in known:
            [row], [is_known] = homes.rows(keys_of_names([block.name]))
            if not is_known or block.name in self.distrusted:
                continue
            addresses, me = homes.facts["addresses"], homes.facts["me"]
            home = int(row["home"])
            while home != me and not block.for_peer and not self._is_up(addresses[home]):
                home = (home + 1) % len(addresses)  # in place of one that fails, for all who ask
            return [
                (addresses[n], homes.facts["token"], n == home and not block.for_peer)
                for n in dict.fromkeys([home, int(row["before"]), *homes.facts["warm"]])
                if n not in (-1, me)
            ]
        return []

    def _is_up(self, address: str) -> bool:
        return self._down.get(address, 0.0) <= time.monotonic()

    def _ask(
        self, node: _Node, wanted: Sequence[_Wanted], buffer: memoryview, until: float
    ) -> list[int]:
        """Ask a node for blocks; returns the numbers of the blocks that it sent."""
        address, token, through = node
        sizes = [num_bytes_of(ranges) for _, ranges in wanted]
        body = [
            [block.name, [each.start for each in ranges],
             np.cumsum([each.stop - each.start for each in ranges]).tolist()]
            for block, ranges in wanted
        ]  # fmt: skip
        try:
            frame = self._exchange(address, token, [through, body], sum(sizes), until)
            given, data = _check_answer(frame, sizes)
        except FAILURES as error:
            if address not in self._down:
                _logger.warning("the cache at %s fails (%r): it is passed over", address, error)
            pause_s = _LIAR_PAUSE_S if isinstance(error, FrameError) else _PAUSE_S
            self._down[address] = time.monotonic() + pause_s
            return []
        self._down.pop(address, None)
        begin = 0
        for number in given:
            for start, stop, at in wanted[number][1]:
                buffer[at : at + stop - start] = data[begin : begin + stop - start].data
                begin += stop - start
        IO_COUNTS.add(peer_bytes=begin)
        return given

    def _exchange(
        self, address: str, token: str, body: Any, num_bytes: int, until: float
    ) -> frames.Frame:
        """Send a request and receive its answer; raises `FAILURES`."""
        link: list[Connection] = []
        # A node may send a byte now and then: the connection is closed when the time is over.
        timer = threading.Timer(until - time.monotonic(), _close, [link])
        timer.daemon = True
        try:
            timer.start()
            since, idle = self._idle.pop((os.getpid(), address), (0.0, None))
            if idle is not None and time.monotonic() - since < _MAX_IDLE_S:
                link.append(idle)
            else:
                connect = connect_to([address], files=tls_files(self._settings))
                link.append(connect(address, timeout_s=_CONNECT_S))
                side = ClientSide(VERSION, {}, bytes, needs_pickle=False, token=token.encode())
                greet(link[0], side)
                link[0].limit(None)
            frames.write(link[0], frames.Kind.REQUEST, 0, frames.encoded(body))
            frame = frames.read_frame(link[0], frames.Limits(MAX_HEADER, num_bytes + 64))
        except FAILURES:
            _close(link)
            raise
        finally:
            timer.cancel()
        self._idle[os.getpid(), address] = time.monotonic(), link[0]
        return frame


def _close(links: Sequence[Connection]) -> None:
    for each in links:
        each.close()


def _check_answer(frame: frames.Frame, sizes: Sequence[int]) -> tuple[list[int], NDArray[Any]]:
    """The numbers of the blocks that a node gives, and their bytes; FrameError for wrong ones."""
    with frames.decoding("answer"):
        given, expected = frame.body
        [data] = frame.arrays
        are_all = data.dtype == np.uint8 and data.shape == (sum(sizes[each] for each in given),)
        if not are_all or sorted({*given}) != given or digest(data.data) != expected:
            raise ValueError("it differs from its digest, or is of other blocks")
    return given, data
