"""Reads of blocks that other nodes hold; whatever these do, it costs a miss and a bounded wait."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import ServiceError
from shardwise.engine.processes.shared_memory import aligned
from shardwise.extensions.remote.cache.block_file import DIGEST_NAME, digest
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.homes import Homes
from shardwise.extensions.remote.cache.loader_file import keys_of_names
from shardwise.extensions.service.frames import (
    FrameError,
    Kind,
    Limits,
    encoded,
    read_frame,
    write,
)
from shardwise.extensions.service.greeting import ClientSide, greet
from shardwise.extensions.service.tls import TlsFiles
from shardwise.extensions.service.transport import Connection
from shardwise.extensions.service.transports import connect_to
from shardwise.extensions.service.version import VersionWord
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.counts import IO_COUNTS
from shardwise.storage.protocol import ByteRange, num_bytes_of

_logger = logging.getLogger("shardwise")

# What both ends have the same of: a batch server has another one.
VERSION = VersionWord(VersionWord.release_here(), "blocks", DIGEST_NAME)
# Until the nodes have found each other, at the start of a pass.
JOIN_S = 10.0
# For the answers to one read, of whatever nodes: a holder may fetch the block meanwhile. A machine
# that is gone answers nothing, and one that is there accepts at once.
_ANSWER_S, _CONNECT_S = 10.0, 1.0
# A node that fails is left alone for a while, one that sends wrong bytes for a minute.
_PAUSE_S, _LIAR_PAUSE_S = 5.0, 60.0
# Servers close a connection that nobody uses for 15 s.
_MAX_IDLE_S = 5.0
# Of the blocks of a request, and of its header.
MAX_BYTES, MAX_HEADER = 128 << 20, 1 << 20


def tls_files(settings: CacheSettings) -> TlsFiles | None:
    """The files of both ends of a connection; None without TLS."""
    cert, ca = (each and os.fspath(each) for each in (settings.tls_cert, settings.tls_ca))
    return TlsFiles(cert or None, ca=ca or None) if cert or ca else None


@dataclass(frozen=True)
class _Node:
    """Whom to ask: its servers, the job's token, and whether it fetches the block."""

    addresses: Sequence[str]
    token: bytes
    through: bool


@dataclass
class _Ask:
    """What a read wants of a block, and the nodes that are not asked yet."""

    block: Any
    ranges: Sequence[ByteRange]
    nodes: list[_Node]


class Peers:
    """The other nodes' blocks, for this process; any thread may read."""

    def __init__(self, cache: Cache) -> None:
        self._settings, self._folder = cache.settings, Path(cache.folder) / "homes"
        # Blocks of which some node gave bytes that an index knows to be wrong.
        self.distrusted: set[str] = set()
        self._start()

    def _start(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._homes: dict[Path, Homes] = {}
        self._idle: defaultdict[str, list[tuple[float, Connection]]] = defaultdict(list)
        # By address: until when it is left alone.
        self._down: dict[str, float] = {}

    def read(
        self, wanted: Sequence[tuple[Any, Sequence[ByteRange]]], buffer: memoryview
    ) -> list[tuple[Any, Sequence[ByteRange]]]:
        """Fill a buffer with ranges of blocks; returns those that no other node gave."""
        if self._pid != os.getpid():
            self._start()
        known = self._known_homes()
        asks = [_Ask(block, ranges, self._nodes(block, known)) for block, ranges in wanted]
        until, left = time.monotonic() + _ANSWER_S, []
        while asks:
            by_address: defaultdict[str, list[_Ask]] = defaultdict(list)
            for each in asks:
                while each.nodes and not self._up(each.nodes[0].addresses):
                    del each.nodes[0]
                if each.nodes and time.monotonic() < until:
                    up = self._up(each.nodes[0].addresses) or each.nodes[0].addresses
                    by_address[up[each.block.number % len(up)]].append(each)
                else:
                    left.append((each.block, each.ranges))
            asks = []
            for address, some in by_address.items():
                asks += self._ask(address, some, buffer, until)
        return left

    def _known_homes(self) -> list[Homes]:
        """What the loaders of this machine have computed; waits while one is about to."""
        while True:
            found, is_pending = {}, False
            for path in self._folder.glob("*"):
                try:
                    homes = self._homes.get(path) or Homes(path)
                    age_s = time.time() - path.stat().st_mtime if homes.is_pending else JOIN_S
                except (OSError, ValueError):
                    continue  # its loader opens or closes it
                is_pending |= age_s < JOIN_S
                if homes.facts:
                    found[path] = homes
            self._homes = found
            if not is_pending:
                return list(found.values())
            time.sleep(2e-3)

    def _nodes(self, block: Any, known: Sequence[Homes]) -> list[_Node]:
        """Who holds a block, who held it before, and who may have it from an earlier job."""
        key = keys_of_names([block.name])
        for homes in known:
            [row], [is_known] = homes.rows(key)
            if not is_known or block.name in self.distrusted:
                continue
            addresses, me = homes.facts["addresses"], homes.facts["me"]
            home, before = int(row["home"]), int(row["before"])
            # The next node stands for one that fails: all ask the same one.
            after = [(home + more) % len(addresses) for more in range(len(addresses))]
            home = next(n for n in after if n == me or block.for_peer or self._up(addresses[n]))
            others = dict.fromkeys([home, before, *homes.facts["warm"]])
            token = bytes.fromhex(homes.facts["token"])
            return [
                _Node(addresses[n], token, through=n == home and not block.for_peer)
                for n in others
                if n not in (-1, me)
            ]
        return []

    def _up(self, addresses: Sequence[str]) -> list[str]:
        now = time.monotonic()
        return [each for each in addresses if self._down.get(each, 0.0) <= now]

    def _ask(
        self, address: str, asks: Sequence[_Ask], buffer: memoryview, until: float
    ) -> list[_Ask]:
        """Ask a node for blocks; returns what is left to ask others."""
        nodes = [each.nodes.pop(0) for each in asks]
        sizes = [num_bytes_of(each.ranges) for each in asks]
        num_asked = max(1, int(np.searchsorted(np.cumsum(sizes), MAX_BYTES, side="right")))
        body = [
            [each.block.name, [[start, stop] for start, stop, _ in each.ranges], node.through]
            for each, node in zip(asks[:num_asked], nodes, strict=False)
        ]
        most = Limits(MAX_HEADER, sum(map(aligned, sizes[:num_asked])))
        connection: Connection | None = None
        # A node may send a byte now and then: the connection is closed when the time is over.
        timer = threading.Timer(max(0.0, until - time.monotonic()), lambda: _close(connection))
        timer.daemon = True
        try:
            timer.start()
            connection, is_new = self._open(address)
            if is_new:
                side = ClientSide(VERSION, {}, bytes, needs_pickle=False, token=nodes[0].token)
                greet(connection, side)
            write(connection, Kind.REQUEST, 0, encoded(body))
            frame = read_frame(connection, most)
            given = _checked(frame.body, frame.arrays, sizes[:num_asked])
        except (ServiceError, FrameError, EOFError, OSError, RuntimeError) as error:
            _close(connection)
            if address not in self._down:
                _logger.warning("the cache at %s fails (%r): it is passed over", address, error)
            pause_s = _LIAR_PAUSE_S if isinstance(error, FrameError) else _PAUSE_S
            self._down[address] = time.monotonic() + pause_s
            return list(asks)
        finally:
            timer.cancel()
        self._down.pop(address, None)
        with self._lock:
            self._idle[address].append((time.monotonic(), connection))
        left = list(asks[num_asked:])
        for each, data in zip(asks, given, strict=False):
            if data is None:
                left.append(each)
                continue
            begin = 0
            for start, stop, at in each.ranges:
                buffer[at : at + stop - start] = data[begin : begin + stop - start].data
                begin += stop - start
            IO_COUNTS.add(peer_bytes=begin)
        return left

    def _open(self, address: str) -> tuple[Connection, bool]:
        """A connection that nobody uses, or a new one, and whether it is new."""
        with self._lock:
            while self._idle[address]:
                since, connection = self._idle[address].pop()
                if time.monotonic() - since < _MAX_IDLE_S:
                    return connection, False
                connection.close()
        connect = connect_to([address], files=tls_files(self._settings))
        connection = connect(address, timeout_s=_CONNECT_S)
        connection.limit(None)
        return connection, True


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()


def _checked(
    digests: Any, arrays: Sequence[NDArray[Any]], sizes: Sequence[int]
) -> list[NDArray[np.uint8] | None]:
    """The bytes of each block, None for one that the node lacks; FrameError for a wrong answer."""
    rest = iter(arrays)
    is_list = isinstance(digests, list) and len(digests) == len(sizes)
    given = [None if each is None else next(rest, None) for each in digests] if is_list else []
    for data, expected, size in zip(given, digests if is_list else (), sizes, strict=False):
        form = None if data is None else (data.dtype.str, data.shape)
        if expected is not None and (
            form != ("|u1", (size,)) or data is None or digest(data.data) != expected
        ):
            raise FrameError(f"the digest of {size} bytes differs")
    if not is_list or next(rest, None) is not None:
        raise FrameError("an answer to another request")
    return given
