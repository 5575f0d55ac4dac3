"""One batch for several ranks: on each machine one of them makes it, and the others map its memory.

They meet through the store of the process group when each has started to iterate. From then on the
lowest rank of a machine sends its batches through Unix sockets, and the others map each slot
privately: writing into a batch changes no other rank's. No collective, lock or file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from shardwise.base.errors import RankError, StallError, WorkerError
from shardwise.base.process_group import exchange, group_rank_and_size
from shardwise.engine.processes.slots import MAX_HOLDERS
from shardwise.engine.processes.transport import message_slots, pack, receive, send
from shardwise.engine.processes.worker_errors import pack_error, unpack_error
from shardwise.engine.request import Batch, BatchRequest


def sharing_ranks(group: Any, share: Any) -> tuple[int, list[int]]:
    """Return this process's rank and all that `share` names, ascending, of the whole world."""
    found = group_rank_and_size()
    if found is None or group is None:
        raise ValueError(f'share={share!r:.80} goes with group=, such as group=mesh["dp"]')
    if share and isinstance(share, str | tuple | list):
        names = [share] if isinstance(share, str) else share
        for name in names:
            _dimension(group, name)
        mesh = group._get_root_mesh()
        place = zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True)
        ranks = mesh.mesh[tuple(slice(None) if name in names else at for name, at in place)]
        members = sorted(ranks.flatten().tolist())
    elif hasattr(share, "rank") and hasattr(share, "size"):
        members = sorted(sys.modules["torch.distributed"].get_process_group_ranks(share))
    else:
        raise TypeError(f"share={share!r:.80}: give names of dimensions, or a process group")
    if found[0] not in members:
        raise RankError(f"share= has the ranks {members}, and this is rank {found[0]}")
    return found[0], members


def _dimension(group: Any, name: Any) -> tuple[int, int]:
    """Return rank and size in a dimension of the mesh that `group` is another dimension of."""
    mesh: Any = group._get_root_mesh() if hasattr(group, "_get_root_mesh") else None
    known = [n for n in getattr(mesh, "mesh_dim_names", ()) if n not in group.mesh_dim_names]
    if name not in known:
        raise ValueError(
            f"{name!r} is no dimension beside group= of its mesh, which has {known}: give group= a "
            'dimension of a mesh, such as mesh["dp"], and here names of others'
        )
    return mesh.get_local_rank(name), mesh.size(mesh.mesh_dim_names.index(name))


def halves_of(group: Any, halves: Any) -> Callable[[Any], Any]:
    """Return a function that cuts fields `[rows, length]` of a batch, by dimension of the mesh.

    Of 2 n chunks, rank r of n gets the r-th from either end: equal work under a causal mask.
    """
    if not isinstance(halves, Mapping) or any(isinstance(f, str) for f in halves.values()):
        raise TypeError(f"halves={halves!r:.80}: give fields by dimension: {{'cp': ['tokens']}}")
    return partial(_cut_batch, [(*_dimension(group, n), f) for n, fs in halves.items() for f in fs])


def _cut_batch(places: list[tuple[int, int, str]], data: Any) -> Any:
    for rank, size, name in places:
        value = data.get(name) if isinstance(data, Mapping) else None
        shape = tuple(getattr(value, "shape", ()))
        if value is None or len(shape) < 2 or shape[1] % (2 * size):
            raise ValueError(
                f"halves= names {name!r}, which has shape {list(shape)} in this batch: give fields "
                f"[rows, length] whose length is a multiple of {2 * size}, for {size} ranks, as "
                f"collate=sw.pad(multiple={2 * size}) makes it"
            )
        chunks = value.reshape((shape[0], 2 * size, shape[1] // (2 * size), *shape[2:]))
        own = chunks[:, [rank, 2 * size - 1 - rank]]
        data = {**data, name: own.reshape((shape[0], shape[1] // size, *shape[2:]))}
    return data


_KIND, _PEER = (socket.AF_UNIX, socket.SOCK_SEQPACKET), struct.Struct("3i")
# Room for about 10 small messages: what is larger lies in a slot, whose descriptor is sent.
_SEND_BYTES, _MAX_INLINE_BYTES = 4096, 1024
# The maker was never this far ahead in a pass that the ranks left.
_MAX_STALE = 64
# Ranks that load or compile a part of a model come late to their first batch.
_MEET_S = 600.0
_SENT = ("data", "num_rows", "num_skipped", "num_replaced", "rows")


class Sharing:
    """The ranks that get the same batches; arguments as of `DataLoader`.

    Attributes:
        rank, ranks: this process's in the whole world, and all of them, ascending.
        maker: the rank that makes the batches of this machine; None before they have met.
    """

    def __init__(self, group: Any, share: Any, timeout: float | None) -> None:
        self.rank, self.ranks = sharing_ranks(group, share)
        self._timeout = timeout
        self._peers: dict[int, socket.socket] = {}
        self.close()

    def close(self) -> None:
        """Close the sockets; ranks that all did so meet again at their next batch."""
        for peer in self._peers.values():
            peer.close()
        self.maker: int | None = None
        self._peers = {}
        self._pid, self._num_passes, self._holder = os.getpid(), 0, 0
        self._slots, self._maps = message_slots(max_idle=4), list[None]()

    def run(
        self,
        requests: Iterator[BatchRequest],
        make: Callable[[Iterator[BatchRequest]], Generator[Batch, None, None]],
    ) -> Generator[Batch, None, None]:
        """Yield a batch for each request: one that `make` makes here, or the maker's.

        Raises:
            StallError: another rank does not come, or sends or takes no batch, within the timeout.
            WorkerError: the maker has ended.
            RankError: the ranks ask for different batches.
        """
        if self._pid != os.getpid():
            raise RankError("a loader with share= is for the process that made it: make one here")
        if self.maker is None:
            self._meet()
        self._num_passes += 1
        if self.maker != self.rank:
            yield from map(self._receive_batch, requests)
            return
        names: deque[tuple[int, int, bytes]] = deque()

        def named(request: BatchRequest) -> BatchRequest:
            names.append(_name_of(request))
            return request

        try:
            with closing(make(map(named, requests))) as batches:
                for batch in batches:
                    self._send(names.popleft(), {each: getattr(batch, each) for each in _SENT})
                    yield batch
        except Exception as error:  # all ranks raise what making a batch raised
            self._send(None, pack_error(error))
            raise

    def _send(self, *message: Any) -> None:
        if not self._peers:
            return
        packed = pack((self._num_passes, *message), self._slots, max_inline=_MAX_INLINE_BYTES)
        if packed.slot is not None:
            packed.slot.hold(self._peers)
        for number, peer in list(self._peers.items()):
            try:
                send(peer, packed)
            except (BrokenPipeError, ConnectionResetError):
                # It may have left after its last step, while this rank looks ahead.
                self._peers.pop(number).close()
            except TimeoutError:
                self._peers.pop(number).close()
                raise StallError(
                    f"one of ranks {self.ranks} took no batch of rank {self.rank} for "
                    f"{self._timeout:g} s: iterate alike on all of them, or raise timeout="
                ) from None

    def _receive_batch(self, request: BatchRequest) -> Batch:
        [peer] = self._peers.values()
        step = f"step {request.step} of epoch {request.epoch}"
        maker = f"rank {self.maker}, which makes the batches of ranks {self.ranks} on this machine"
        for _ in range(_MAX_STALE):
            try:
                message = receive(peer, self._maps, holder=self._holder)
            except TimeoutError:
                raise StallError(
                    f"no batch for {self._timeout:g} s: {step} waits for {maker}; raise timeout= "
                    "if it may take this long"
                ) from None
            if message is None:
                raise WorkerError(f"{step} can't be had: {maker}, has ended or closed its loader")
            number, name, made = message[0]
            if number < self._num_passes:
                continue  # of a pass that was left, and the maker was ahead
            if name is None:
                raise unpack_error(made)
            if (number, name) == (self._num_passes, _name_of(request)):
                return Batch(**made)
            break
        raise RankError(
            f"pass {self._num_passes} of rank {self.rank} asks for {step}, and {maker}, has made "
            f"step {name[0]} of epoch {name[1]} in its pass {number}, or other samples: give all "
            "these loaders the same arguments and states, and iterate them alike"
        )

    def _meet(self) -> None:
        """Find the ranks of this machine, and connect the others with the lowest one."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        # Sockets without a file belong to a network name space.
        node = f"{boot.strip()} {Path('/proc/self/ns/net').readlink()} "
        name, wait_s = f"shardwise-{secrets.token_hex(16)}", max(_MEET_S, self._timeout or 0)
        with socket.socket(*_KIND) as listener:
            listener.bind(f"\0{name}")
            listener.listen(MAX_HOLDERS)
            told = exchange("shardwise/share", node + name, self.ranks, timeout_s=wait_s)
            here = {r: t for r, t in zip(self.ranks, told, strict=True) if t.startswith(node)}
            if len(here) > MAX_HOLDERS:
                raise RankError(f"share= has {len(here)} ranks of a machine: {MAX_HOLDERS} at most")
            maker, self._holder = min(here), list(here).index(self.rank)
            listener.settimeout(wait_s)
            while maker == self.rank and len(self._peers) < len(here) - 1:
                peer = self._of_user(listener.accept()[0])
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
                self._peers[peer.recv(1)[0]] = peer
        if maker != self.rank:
            peer = socket.socket(*_KIND)
            peer.connect("\0" + here[maker].removeprefix(node))
            self._peers[0] = self._of_user(peer)
            peer.send(bytes([self._holder]))
        self.maker = maker

    def _of_user(self, peer: socket.socket) -> socket.socket:
        """Return a connection with a process of this user, whose pickles may be read."""
        peer.settimeout(self._timeout)
        user = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
        if user != os.getuid():
            raise RankError(f"user {user} is at the other end of a socket of ranks {self.ranks}")
        return peer


def _name_of(request: BatchRequest) -> tuple[int, int, bytes]:
    """Return step and epoch of a batch, for messages, and a digest of its rows."""
    valid = b"" if request.valid is None else request.valid.tobytes()
    digest = hashlib.blake2b(request.ids.tobytes() + valid, digest_size=16)
    return request.step, request.epoch, digest.digest()
