"""A process's part in a cache that the nodes of a job share: it joins, serves, and places."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np

from shardwise.base.errors import ServiceError
from shardwise.base.process_group import (
    NO_STORE,
    default_group,
    group_rank_and_size,
    group_store,
    shared_name,
)
from shardwise.extensions.remote.cache.block_file import text_digest
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.homes import HOME, LoaderFile, block_keys
from shardwise.extensions.service.addresses import host_and_port, parse_addresses, scheme_of
from shardwise.extensions.service.token import new_nonce, read_token
from shardwise.extensions.service.transports import listen
from shardwise.extensions.share.block_server import BlockServer
from shardwise.extensions.share.peers import FAILURES, JOIN_S, Peers, tls_files
from shardwise.extensions.share.placement import (
    holders,
    middle_samples,
    places_of,
    reading_ranks,
)
from shardwise.plan import Plan
from shardwise.plan.uses import NEVER
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.file_pool import FilePool

_logger = logging.getLogger("shardwise")


class Sharing(Peers):
    """The blocks that this process reads from other nodes, and serves to them."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self._cache, self._joining = cache, threading.Lock()
        self._job: object = None
        self._nodes_facts: dict[str, Any] = {}
        self._server: BlockServer | None = None
        self._joined_epoch = 0

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
        try:
            homes = LoaderFile(self._cache.folder, "homes", self._cache.usage_file().lock)
        except OSError:
            return []

        def fill() -> None:
            try:
                with self._joining:  # ranks may be threads of one process
                    self._join(rank, plan)
                self._place(homes, samples, pool, plan, first_step)
            except (OSError, ServiceError, ValueError) as error:
                _logger.warning("the cache in %r is not shared: %s", self._cache.folder, error)
            finally:
                if not homes.is_filled:
                    homes.close()

        threading.Thread(target=fill, name="shardwise-homes", daemon=True).start()
        return [homes]

    def _place(
        self, homes: LoaderFile, samples: Any, pool: FilePool, plan: Plan, first_step: int
    ) -> None:
        """Compute which nodes hold the blocks of an epoch."""
        manifest, facts, epoch = samples.source.manifest, dict(self._nodes_facts), plan.epoch
        if not facts:
            return  # the first pass has logged the reason
        if len(set(manifest.urls)) < len(manifest.urls):
            raise ValueError("several shards lie in one file, at places that are not known")
        if self._server is not None:
            self._server.add(manifest.urls, pool)
        num_blocks = np.maximum(1, -(-manifest.shard_bytes // self._cache.settings.block_bytes))
        indices = samples.transforms.indices
        shards, numbers, ids = middle_samples(manifest.sizes, num_blocks, indices)
        every = range(max(0, epoch - 1), epoch + 2)
        places = {each: places_of(plan, each, ids) for each in every}
        held = {}
        for each in every[:-1]:
            readers = np.array(facts["ranks"])[reading_ranks(plan, each, places[each])]
            held[each] = holders(readers, places[each + 1], facts["rooms"])
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
        if epoch > self._joined_epoch + 1:
            facts["warm"] = []  # their earlier blocks are where the plan puts them by now
        homes.fill(rows.tobytes() + json.dumps(facts).encode(), first_step, len(rows))

    def _join(self, rank: int, plan: Plan) -> None:
        """Exchange facts with the other nodes when the process group is new."""
        settings, cache, world_size = self._cache.settings, self._cache, plan.world_size
        job = settings.peers or default_group(), rank, world_size
        if job == self._job:
            return
        if self._server is not None:
            self._server.close()
        self._job, self._nodes_facts = job, {}
        self._server, self._joined_epoch = None, plan.epoch
        secret = shared_name("shardwise/share/token", new_nonce()) or ""
        token = read_token(settings.token_file) if settings.token_file else secret.encode()
        folder, is_warm = os.stat(cache.folder), cache.usage_file().read().num_bytes > 0  # noqa: PTH116
        name = f"{socket.gethostname()} {folder.st_dev} {folder.st_ino}"
        if settings.peers is not None:
            # As many ranks on each.
            count = len(settings.peers)
            of_rank = [each * count // world_size for each in range(world_size)]
            with suppress(OSError):  # another rank of this node serves
                self._serve(host_and_port(settings.peers[of_rank[rank]])[1], token)
            rooms = [self._room_of(each, token) for each in settings.peers]
            every = [
                [each, str(node), rooms[node], settings.peers[node], True]
                for each, node in enumerate(of_rank)
            ]
            name = str(of_rank[rank])
        else:
            address = self._serve(0, token) if secret else ""
            every = sorted(_gather([rank, name, cache.room, address, is_warm]) if secret else [])
        if {each[0] for each in every} != {*range(world_size)}:
            raise ValueError(
                f"the ranks did not meet within {JOIN_S:.0f} s: share=True needs a process group "
                "all of whose ranks iterate, or peers="
            )
        # Several ranks may read as one rank of the data, as those of tensor parallelism do.
        names = [*dict.fromkeys(each[1] for each in every)]
        reading = {each[0]: names.index(each[1]) for each in reversed(every)}
        of_node = [[each for each in every if each[1] == node] for node in names]
        self._nodes_facts = {
            "me": names.index(name), "ranks": [reading[each] for each in range(world_size)],
            "rooms": [some[0][2] for some in of_node],
            # The ranks of another node serve the ranks of this one in turn.
            "addresses": [some[rank % len(some)][3] for some in of_node], "token": token.decode(),
            "warm": [number for number, some in enumerate(of_node) if some[0][4]],
        }  # fmt: skip

    def _room_of(self, address: str, token: bytes) -> int:
        """The room of a node, once it serves; 0 if it does not in time."""
        until = time.monotonic() + JOIN_S
        while time.monotonic() < until:
            with suppress(*FAILURES, TypeError):
                return int(self._exchange(address, token.decode(), None, 0, until).body)
            time.sleep(0.05)
        return 0

    def _serve(self, port: int, token: bytes) -> str:
        """Serve at all addresses of this machine; returns one for the others."""
        listener = listen("tcp", "0.0.0.0", port, files=tls_files(self._cache.settings))  # noqa: S104
        self._server = BlockServer(listener, token, self._cache.room)
        scheme, host, store = scheme_of(listener.address), socket.gethostname(), group_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if scheme == "tcp" and hasattr(store, "host"):
            # The host in the network of the group's store; with TLS, the certificate's name.
            with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((store.host, 1))  # sends nothing
                host = probe.getsockname()[0]
        return f"{scheme}://{host}:{host_and_port(listener.address)[1]}"


def _gather(fact: list[Any]) -> list[Any]:
    """Gather a fact of each rank of the process group; empty if one sends none in time."""
    ranks, store = group_rank_and_size(), group_store()
    if ranks is None:
        return []
    try:
        # The n-th call of a process belongs to the n-th of all others.
        key = f"shardwise/share/{store.add(f'shardwise/share {ranks[0]}', 1)}"
        store.set(f"{key}/{ranks[0]}", json.dumps(fact))
        keys = [f"{key}/{rank}" for rank in range(ranks[1])]
        store.wait(keys, timedelta(seconds=JOIN_S))
        return [
            *map(
                json.loads,
                store.multi_get(keys) if store.has_extended_api() else map(store.get, keys),
            )
        ]
    except NO_STORE:
        return []
