"""A process's part in a cache that the nodes of a job share: it joins, serves, and places."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np

from shardwise.base.errors import DataError, ServiceError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.process_group import (
    NO_STORE,
    default_group,
    group_rank_and_size,
    group_reference,
    group_store,
    shared_name,
)
from shardwise.extensions.remote.cache.block_file import is_length, text_digest
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.homes import HOME, block_keys
from shardwise.extensions.remote.cache.usage import LoaderFile, boot_id, read_usage
from shardwise.extensions.remote.cache.uses import NEVER
from shardwise.extensions.service.addresses import (
    host_and_port,
    is_loopback,
    parse_addresses,
    scheme_of,
    tcp_address,
    with_scheme,
)
from shardwise.extensions.service.token import new_nonce, read_token
from shardwise.extensions.service.transports import listen
from shardwise.extensions.share import placement
from shardwise.extensions.share.block_server import BlockServer
from shardwise.extensions.share.peers import CONNECT_S, FAILURES, JOIN_S, Peers, tls_files
from shardwise.plan import Plan
from shardwise.storage.file_pool import FilePool
from shardwise.storage.options import CacheSettings

_logger = logging.getLogger("shardwise")

# A rank's facts in the group's store: the names of a node and of its host.
_MAX_FACT_BYTES = 4096
# The interpreter's end waits so long for threads that use the group's store.
_END_S = 5.0


class Sharing(Peers):
    """The blocks that this process reads from other nodes, and serves to them."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self._cache, self._joining = cache, threading.Lock()
        # Set where the interpreter ends while a thread uses the group's store.
        self._is_ending = threading.Event()
        # Facts of the nodes, by the data set, the rank and the world size of loaders.
        self._group = group_reference()
        self._jobs: dict[tuple[str, int, int], dict[str, Any]] = {}
        self._server: BlockServer | None = None
        # The token, and the arguments of `_address` for others.
        self._served: tuple[bytes, list[Any]] = b"", []
        self._files: dict[str, tuple[str, weakref.ref[FilePool]]] = {}

    @staticmethod
    def checked_peers(settings: CacheSettings) -> tuple[str, ...] | None:
        """The addresses of `peers=`; ValueError for settings that do not go together."""
        peers = None if settings.peers is None else parse_addresses(settings.peers)
        scheme = "tcp" if tls_files(settings) is None else "tls"
        if peers and (not settings.token_file or {*map(scheme_of, peers)} != {scheme}):
            raise ValueError(
                f"peers={list(peers)}: give token_file=, and addresses of tls:// with tls_cert= or "
                "of tcp:// without it"
            )
        return peers

    def share(
        self, samples: Any, pool: FilePool, plan: Plan, rank: int, first_step: int
    ) -> list[LoaderFile]:
        """Share the blocks of the plan's epoch; returns a file, or none if the disk refuses it.

        It is filled beside the program; reads of missing blocks wait for it, up to `JOIN_S`.
        """
        has_left_store = threading.Event()
        try:
            homes = LoaderFile(self._cache.folder, "homes", self._cache.usage_file().lock)
        except OSError:
            return []

        def fill() -> None:
            try:
                urls, opener = samples.source.manifest.urls, weakref.ref(pool)
                self._files |= {text_digest(url): (url, opener) for url in urls}
                facts = self._join(homes, samples, rank, plan)
                has_left_store.set()
                if facts:
                    self._place(homes, samples, facts, plan, first_step)
            except (DataError, OSError, ServiceError, *NO_STORE) as error:
                _logger.warning("the cache in %r is not shared: %s", self._cache.folder, error)
            finally:
                has_left_store.set()
                if not homes.is_filled:
                    homes.close()

        thread = threading.Thread(target=fill, name="shardwise-homes", daemon=True)
        thread.start()
        if self._settings.peers is None:
            # In C++ code of the store, it would abort the process as the interpreter ends.
            weakref.finalize(thread, _wait_for, has_left_store, self._is_ending, os.getpid())
        return [homes]

    def _place(
        self, homes: LoaderFile, samples: Any, facts: dict[str, Any], plan: Plan, first_step: int
    ) -> None:
        """Compute which nodes hold the blocks of an epoch."""
        manifest, epoch = samples.source.manifest, plan.epoch
        if len(set(manifest.urls)) < len(manifest.urls):
            raise ValueError("several shards lie in one file, at places that are not known")
        num_blocks = np.maximum(1, -(-manifest.shard_bytes // self._cache.settings.block_bytes))
        indices = samples.transforms.indices
        shards, numbers, ids = placement.middle_samples(manifest.sizes, num_blocks, indices)
        every = range(max(0, epoch - 1), epoch + 2)
        places = {each: placement.places_of(plan, each, ids) for each in every}
        held = {}
        for each in every[:-1]:
            readers = np.array(facts["ranks"])[placement.reading_ranks(plan, each, places[each])]
            held[each] = placement.holders(readers, places[each + 1], facts["rooms"])
        rows = np.empty(len(ids), HOME)
        digests = np.array([int(text_digest(url), 16) for url in manifest.urls], np.uint64)
        rows["key"] = block_keys(digests[shards], numbers)
        rows["home"], rows["before"] = held[epoch], held.get(epoch - 1, -1)
        size, end = plan.global_batch_size, first_step + plan.num_steps
        due = first_step + (places[epoch] - plan.start) // size
        due = np.where(places[epoch] < 0, NEVER, due)
        again = np.where(places[epoch + 1] < 0, NEVER, end + places[epoch + 1] // size)
        due[rows["before"] != facts["me"]] = -1
        rows["use"] = np.where(rows["home"] == facts["me"], again, due)
        rows.sort(order="key")
        # Later, blocks of an earlier job are where the plan puts them by now.
        rows["warm"], until = -1, time.monotonic() + JOIN_S / 2
        for node in {*facts["warm"]} - {facts["me"]} if epoch <= facts["epoch"] + 1 else ():
            with suppress(*FAILURES):
                _, kept = self._ask_room(facts["addresses"][node], facts["token"], until)
                rows["warm"][np.isin(rows["key"], kept)] = node
        contents = rows.tobytes() + json.dumps(facts).encode()
        homes.fill(contents, first_step, len(rows))

    def _join(self, homes: LoaderFile, samples: Any, rank: int, plan: Plan) -> dict[str, Any]:
        """The facts of the nodes of a job; empty if its loader ends before all are there."""
        job = samples.fingerprint, rank, plan.world_size
        with self._joining:  # ranks may be threads of one process
            if self._group() is not default_group():
                self._group, self._jobs = group_reference(), {}
            is_new = job not in self._jobs
            facts = self._jobs.setdefault(job, {"epoch": plan.epoch})
            if "addresses" in facts:
                return facts
            # Containers of a machine may share a directory.
            folder = os.stat(self._cache.folder)  # noqa: PTH116
            name = f"{boot_id().decode() or socket.gethostname()} {folder.st_dev} {folder.st_ino}"
            if self._settings.peers is None and is_new:
                facts["key"] = self._publish(name, *job)
        if self._settings.peers is not None:
            name, every = self._meet(
                self._settings.peers, rank, plan, JOIN_S if is_new else CONNECT_S
            )
        else:  # without a key, an earlier pass has logged the reason
            every = []
            if "key" in facts:
                every = _gather(facts["key"], homes, plan.world_size, self._is_ending)
        of_node: dict[str, list[list[Any]]] = {}
        for each in every:
            of_node.setdefault(each[0], []).append(each)
        numbers, firsts = {node: n for n, node in enumerate(of_node)}, [*of_node.values()]
        facts = {
            **facts,
            # Another rank of the data's rank, as in tensor parallelism, may have come first.
            "me": numbers.get(name, len(numbers)),
            "ranks": [numbers[each[0]] for each in every],
            "rooms": [some[0][1] for some in firsts],
            # The ranks of another node serve the ranks of this one in turn.
            "addresses": [some[rank % len(some)][3] for some in firsts],
            "token": self._served[0].decode(),
            "warm": [number for number, some in enumerate(firsts) if some[0][2]],
        }
        if every and all(facts["rooms"]):
            self._jobs[job] = facts
        return facts if every else {}

    def _publish(self, name: str, fingerprint: str, rank: int, world_size: int) -> str:
        """Serve, and tell the other ranks; returns the key of all in the store of the group."""
        ranks, store = group_rank_and_size(), group_store()
        secret = shared_name("shardwise/share/token", new_nonce())
        if ranks is None or secret is None:
            raise ValueError("share=True needs a process group with a store, or peers=")
        file, is_warm = self._settings.token_file, read_usage(self._cache.folder).num_bytes > 0
        self._serve(0, read_token(file) if file else secret.encode())
        key = f"shardwise/share/{fingerprint}/{world_size}"
        # The n-th call of a rank belongs to the n-th of all others.
        key = f"{key}/{store.add(f'{key} {ranks[0]}', 1)}"
        fact = json.dumps([name, self._cache.room, is_warm, *self._served[1]])
        is_first = bytes(store.compare_set(f"{key}/{rank}", "", fact)) == fact.encode()
        if is_first and store.add(f"{key}/count", 1) == world_size:
            store.set(f"{key}/all", "1")
        return key

    def _meet(
        self, peers: Sequence[str], rank: int, plan: Plan, seconds: float
    ) -> tuple[str, list[list[Any]]]:
        """This node's name and what `_gather` returns, of `peers=` with as many ranks on each."""
        nodes = [each * len(peers) // plan.world_size for each in range(plan.world_size)]
        token, until = read_token(self._settings.token_file or ""), time.monotonic() + seconds
        with suppress(OSError):  # another rank of this node serves
            self._serve(host_and_port(peers[nodes[rank]])[1], token)
        rooms: dict[str, int] = {}
        while (missing := {*peers} - {*rooms}) and time.monotonic() < until:
            for each in missing:
                with suppress(*FAILURES):
                    soon = time.monotonic() + CONNECT_S
                    rooms[each], _ = self._ask_room(each, token.decode(), soon)
            time.sleep(0.02)
        every = [[str(n), rooms.get(peers[n], 0), True, peers[n]] for n in nodes]
        return str(nodes[rank]), every

    def _serve(self, port: int, token: bytes) -> None:
        """Serve at all addresses of this machine, to those who have a token."""
        if self._served[0] == token:
            return
        if self._server is not None:
            self._server.close()  # of an earlier process group
        self._served, files = (token, []), tls_files(self._settings)
        any_host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
        listener = listen("tcp", any_host, port, files=files)
        cache = weakref.proxy(self._cache)  # the server ends with it
        self._server = BlockServer(listener, token, cache=cache, files=self._files)
        weakref.finalize(self, self._server.close)
        host, store = socket.gethostname(), group_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if files is None and hasattr(store, "host"):
            # The host in the network of the group's store; with TLS, the certificate's name.
            with suppress(OSError):
                family, *_, place = socket.getaddrinfo(store.host, 1, type=socket.SOCK_DGRAM)[0]
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.connect(place)  # sends nothing
                    host = probe.getsockname()[0]
        scheme, port = scheme_of(listener.address), host_and_port(listener.address)[1]
        self._served = token, [scheme, host, socket.gethostname(), port]


def _wait_for(has_left: threading.Event, is_ending: threading.Event, pid: int) -> None:
    """Let a thread leave the group's store as the interpreter ends; a forked child has none."""
    if pid == os.getpid() and not has_left.is_set():
        is_ending.set()
        has_left.wait(_end_at() - time.monotonic())


@cache
def _end_at() -> float:
    """The time up to which the interpreter's end waits for all threads together."""
    return time.monotonic() + _END_S


def _address(scheme: str, host: str, name: str, port: int) -> str:
    """The address of a node, by its name where its own address is one of another's loopback."""
    is_far = is_loopback(host) and name != socket.gethostname()
    return with_scheme(scheme, tcp_address(name if is_far else host, port))


def _gather(
    key: str, homes: LoaderFile, world_size: int, is_ending: threading.Event
) -> list[list[Any]]:
    """Node, room, warmth and address of each rank; none if the loader ends before."""
    store, late_at, pause_s = group_store(), time.monotonic() + JOIN_S, 2e-3
    # Waiting in the store would keep other threads from it.
    while homes.is_open and not is_ending.is_set():
        if store.check([f"{key}/all"]):
            keys = [f"{key}/{rank}" for rank in range(world_size)]
            get = store.multi_get if store.has_extended_api() else partial(map, store.get)
            return [_parse_fact(bytes(fact)) for fact in get(keys)]
        if time.monotonic() > late_at:
            late_at = math.inf
            text = "share=True: reading without other nodes until all %d ranks iterate"
            _logger.warning(text, world_size)
        is_ending.wait(pause_s)
        pause_s = min(1.5 * pause_s, 0.25)
    return []


def _parse_fact(text: bytes) -> list[Any]:
    """Node, room, warmth and address of a rank; DataError if they are anything else."""
    with as_data_error("a rank's facts can't be used", url="the group's store"):
        if len(text) > _MAX_FACT_BYTES:
            raise ValueError(f"{len(text)} bytes")
        name, room, is_warm, *place = json.loads(text)
        scheme, host, machine, port = place
        if {*map(type, (name, scheme, host, machine))} != {str} or type(is_warm) is not bool:
            raise ValueError(f"{text[:100]!r}")
        if not (is_length(room) and is_length(port)):
            raise ValueError(f"room for {room!r:.60} blocks at port {port!r:.60}")
        return [name, room, is_warm, *parse_addresses([_address(*place)])]
