"""A process's part in a cache that the nodes of a job share: it joins, serves, and places."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import suppress
from typing import Any

import numpy as np

from shardwise.base.errors import ServiceError
from shardwise.base.process_group import default_group, gathered, group_host, shared_name
from shardwise.extensions.remote.cache.block_file import text_digest
from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.homes import HOME, LoaderFile, block_keys
from shardwise.extensions.service.addresses import host_and_port, parse_addresses, scheme_of
from shardwise.extensions.service.token import new_nonce, read_token
from shardwise.extensions.service.transports import listen
from shardwise.extensions.share.block_server import BlockServer
from shardwise.extensions.share.peers import JOIN_S, Peers, tls_files
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
    """What this process reads of other nodes, and does for them, over all passes of its loaders."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self._cache, self._joining = cache, threading.Lock()
        self._job: object = None
        self._nodes_facts: dict[str, Any] = {}
        self._server: BlockServer | None = None
        self._joined_epoch = 0

    @staticmethod
    def checked_peers(settings: CacheSettings) -> tuple[str, ...] | None:
        """The addresses of `peers=`; ValueError or ServiceError for settings that do not fit."""
        files = tls_files(settings)
        if files is not None:
            files.context(is_server=True)
        if settings.token_file is not None:
            read_token(settings.token_file)
        peers = None if settings.peers is None else parse_addresses(settings.peers)
        scheme = "tcp" if files is None else "tls"
        if peers and (not settings.token_file or {*map(scheme_of, peers)} != {scheme}):
            raise ValueError(
                f"peers={list(peers)}: give token_file=, and addresses of tls:// with tls_cert= or "
                "of tcp:// without it"
            )
        return peers

    def share(
        self, samples: Any, pool: FilePool, plan: Plan, rank: int, first_step: int
    ) -> LoaderFile | None:
        """Share the blocks of the plan's epoch; who holds them is computed beside the program.

        Reads of missing blocks wait for that, up to `JOIN_S`. None if the disk refuses it.
        """
        try:
            homes = LoaderFile(self._cache.folder, "homes", self._cache.usage_file().lock)
        except OSError:
            return None

        def compute() -> None:
            try:
                with self._joining:  # ranks may be threads of one process
                    self._join(rank, plan)
                self._place(homes, samples, pool, plan, first_step)
            except (OSError, ServiceError, ValueError) as error:
                _logger.warning("the cache in %r is not shared: %s", self._cache.folder, error)
            finally:
                if not homes.is_filled:
                    homes.close()

        threading.Thread(target=compute, name="shardwise-homes", daemon=True).start()
        return homes

    def _place(
        self, homes: LoaderFile, samples: Any, pool: FilePool, plan: Plan, first_step: int
    ) -> None:
        """Compute who holds the blocks of an epoch."""
        manifest, facts, epoch = samples.source.manifest, dict(self._nodes_facts), plan.epoch
        if len(set(manifest.urls)) < len(manifest.urls):
            raise ValueError("several shards lie in one file, at places that are not known")
        if self._server is not None:
            self._server.add(manifest.urls, pool)
        num_blocks = np.maximum(1, -(-manifest.shard_bytes // self._cache.settings.block_bytes))
        indices = samples.transforms.indices
        shards, numbers, ids = middle_samples(manifest.sizes, num_blocks, indices)
        # By epoch, from the one before on; before the first one nobody holds anything.
        every = range(max(0, epoch - 1), epoch + 2)
        places = {each: places_of(plan, each, ids) for each in every}
        held = {
            each: holders(
                reading_ranks(plan, each, places[each]), places[each + 1],
                nodes=facts["ranks"], rooms=facts["rooms"],
            )
            for each in every[:-1]
        }  # fmt: skip
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
            facts["warm"] = []  # what they had before is where the plan says by now
        homes.fill(rows.tobytes() + json.dumps(facts).encode(), first_step, len(rows))

    def _join(self, rank: int, plan: Plan) -> None:
        """Tell the other nodes of this one, and hear of them, when the process group is new."""
        settings, cache, world_size = self._cache.settings, self._cache, plan.world_size
        job = settings.peers or default_group(), rank, world_size
        if job == self._job:
            return
        if self._server is not None:
            self._server.close()
        self._server, self._joined_epoch = None, plan.epoch
        secret = shared_name("shardwise/share/token", new_nonce()) or ""
        token = read_token(settings.token_file) if settings.token_file else secret.encode()
        folder, is_warm = os.stat(cache.folder), cache.usage_file().read().num_bytes > 0  # noqa: PTH116
        name = f"{socket.gethostname()} {folder.st_dev} {folder.st_ino}"
        if settings.peers is not None:
            # As many ranks on each, with disks like this one's.
            count = len(settings.peers)
            of_rank = [each * count // world_size for each in range(world_size)]
            with suppress(OSError):  # another rank of this node serves
                self._serve(host_and_port(settings.peers[of_rank[rank]])[1], token)
            every = [
                [each, str(of_rank[each]), cache.room, settings.peers[of_rank[each]], True]
                for each in range(world_size)
            ]
            name = str(of_rank[rank])
        else:
            address = self._serve(0, token) if secret else ""
            fact = json.dumps([rank, name, cache.room, address, is_warm])
            said = gathered("shardwise/share", fact, timeout_s=JOIN_S) or ()
            every = sorted(json.loads(each) for each in said)
        if {each[0] for each in every} != {*range(world_size)}:
            raise ValueError(
                f"the ranks did not meet within {JOIN_S:.0f} s: share=True needs a process group "
                "all of whose ranks iterate, or peers="
            )
        self._job = job
        # Several ranks may read as one rank of the data, as those of tensor parallelism do.
        names = [*dict.fromkeys(each[1] for each in every)]
        reading = {each[0]: names.index(each[1]) for each in reversed(every)}
        of_node = [[each for each in every if each[1] == node] for node in names]
        self._nodes_facts = {
            "me": names.index(name), "ranks": [reading[each] for each in range(world_size)],
            "rooms": [some[0][2] for some in of_node],
            # The ranks of another node serve the ranks of this one in turn.
            "addresses": [some[rank % len(some)][3] for some in of_node], "token": token.hex(),
            "warm": [number for number, some in enumerate(of_node) if some[0][4]],
        }  # fmt: skip

    def _serve(self, port: int, token: bytes) -> str:
        """Serve at all addresses of this machine; returns one for the others."""
        listener = listen("tcp", "0.0.0.0", port, files=tls_files(self._cache.settings))  # noqa: S104
        self._server = BlockServer(listener, token)
        scheme, host = scheme_of(listener.address), socket.gethostname()
        if scheme == "tcp":
            # The one in the network of the group's store; a certificate has the name.
            with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((group_host() or "", 1))  # sends nothing
                host = probe.getsockname()[0]
        return f"{scheme}://{host}:{host_and_port(listener.address)[1]}"
