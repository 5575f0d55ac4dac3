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
from shardwise.extensions.remote.cache.homes import HOME
from shardwise.extensions.remote.cache.loader_file import LoaderFile, block_keys
from shardwise.extensions.service.addresses import host_and_port, parse_addresses, scheme_of
from shardwise.extensions.service.token import new_nonce, read_token
from shardwise.extensions.service.transports import listen
from shardwise.extensions.share.block_server import BlockServer
from shardwise.extensions.share.peers import JOIN_S, tls_files
from shardwise.extensions.share.placement import holders, middle_samples, places_of
from shardwise.plan import Plan
from shardwise.plan.uses import NEVER
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.file_pool import FilePool

_logger = logging.getLogger("shardwise")


class Sharing:
    """This process's part in the shared cache of a job, over all passes of its loaders."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._job: object = None
        self._facts: dict[str, Any] | None = None
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
        if settings.peers is None:
            return None
        peers = parse_addresses(settings.peers)
        scheme = "tcp" if files is None else "tls"
        if settings.token_file is None or {scheme_of(each) for each in peers} != {scheme}:
            raise ValueError(
                f"peers={list(peers)}: give token_file=, and addresses of tls:// with tls_cert= or "
                "of tcp:// without it"
            )
        return peers

    def share(self, samples: Any, pool: FilePool, plan: Plan, **where: int) -> LoaderFile:
        """Share the blocks of a pass: who holds them is computed beside the program.

        Reads of missing blocks wait for that, up to `JOIN_S`. Raises OSError.
        """
        homes = LoaderFile(self._cache.folder, "homes", self._cache.usage_file().lock)

        def compute() -> None:
            try:
                with self._lock:  # ranks may be threads of one process
                    self._compute(homes, samples, pool, plan, **where)
            except (OSError, ServiceError, ValueError) as error:
                directory = self._cache.settings.directory
                _logger.warning("the cache in %r is not shared: %s", directory, error)
            finally:
                if not homes.is_filled:
                    homes.close()

        threading.Thread(target=compute, name="shardwise-homes", daemon=True).start()
        return homes

    def _compute(
        self,
        homes: LoaderFile,
        samples: Any,
        pool: FilePool,
        plan: Plan,
        *,
        epoch: int,
        rank: int,
        first_step: int,
    ) -> None:
        manifest, indices = samples.source.manifest, samples.transforms.indices
        if len(set(manifest.urls)) < len(manifest.urls):
            raise ValueError("several shards lie in one file, at places that are not known")
        job = self._cache.settings.peers or default_group(), rank, plan.world_size
        if job != self._job:
            if self._server is not None:
                self._server.close()
            self._facts, self._joined_epoch = self._join(rank, plan.world_size), epoch
            self._job = job
        if self._facts is None:
            raise ValueError(
                f"the ranks did not meet within {JOIN_S:.0f} s: share=True needs a process group "
                "all of whose ranks iterate, or peers="
            )
        if self._server is not None:
            self._server.add(manifest.urls, pool)
        size, nodes = plan.global_batch_size, {key: self._facts[key] for key in ("ranks", "rooms")}
        num_blocks = np.maximum(1, -(-manifest.shard_bytes // self._cache.settings.block_bytes))
        shards, numbers, ids = middle_samples(manifest.sizes, num_blocks, indices)
        places, following = places_of(plan, epoch, ids), places_of(plan, epoch + 1, ids)
        rows = np.empty(len(ids), HOME)
        digests = np.array([int(text_digest(url), 16) for url in manifest.urls], np.uint64)
        rows["key"] = block_keys(digests[shards], numbers)
        rows["home"] = holders(plan, epoch, places, following, **nodes)
        rows["before"] = -1
        if epoch:
            before = places_of(plan, epoch - 1, ids)
            rows["before"] = holders(plan, epoch - 1, before, places, **nodes)
        rows["due"] = np.where(places < 0, NEVER, first_step + (places - plan.start) // size)
        end = first_step + plan.num_steps
        rows["next"] = np.where(following < 0, NEVER, end + following // size)
        rows.sort(order="key")
        # What other nodes have been given before they joined may be worth asking for.
        asks_all = epoch <= self._joined_epoch + 1
        facts = json.dumps({**self._facts, "warm": self._facts["warm"] if asks_all else []})
        homes.fill(rows.tobytes() + facts.encode(), first_step, len(rows))

    def _join(self, rank: int, world_size: int) -> dict[str, Any] | None:
        """Tell the other nodes of this one, and hear of them; None if they do not come in time."""
        settings, room = self._cache.settings, self._cache.room
        token = None if settings.token_file is None else read_token(settings.token_file)
        if settings.peers is not None:
            assert token is not None
            peers = settings.peers
            ranks = [each * len(peers) // world_size for each in range(world_size)]
            self._server = None
            with suppress(OSError):  # another rank of this node serves
                self._server = self._serve(host_and_port(peers[ranks[rank]])[1], token)
            return {
                "me": ranks[rank], "ranks": ranks, "rooms": [room] * len(peers),
                "addresses": [[each] for each in peers], "token": token.hex(),
                "warm": [*range(len(peers))],
            }  # fmt: skip
        secret = shared_name("shardwise/share/token", new_nonce())
        if secret is None:
            return None
        token = token or secret.encode()
        self._server = self._serve(0, token)
        folder, is_warm = os.stat(self._cache.folder), self._cache.usage_file().read().num_bytes > 0  # noqa: PTH116
        node = f"{socket.gethostname()} {folder.st_dev} {folder.st_ino}"
        said = gathered(
            "shardwise/share",
            json.dumps([rank, node, room, self._server.address, is_warm]),
            timeout_s=JOIN_S,
        )
        facts = sorted(json.loads(each) for each in said or ())
        if {each[0] for each in facts} != {*range(world_size)}:
            return None
        # Several ranks may read as one rank of the data, as those of tensor parallelism do.
        nodes = [*dict.fromkeys(name for _, name, *_ in facts)]
        reading = {each[0]: nodes.index(each[1]) for each in reversed(facts)}
        return {
            "me": nodes.index(node), "ranks": [reading[each] for each in range(world_size)],
            "rooms": [next(each[2] for each in facts if each[1] == name) for name in nodes],
            "addresses": [[each[3] for each in facts if each[1] == name] for name in nodes],
            "token": token.hex(), "warm": sorted({nodes.index(each[1]) for each in facts if each[4]}),
        }  # fmt: skip

    def _serve(self, port: int, token: bytes) -> BlockServer:
        """Serve on all of this machine's addresses, under the token; OSError for a taken port."""
        files = tls_files(self._cache.settings)
        listener = listen("tcp", "0.0.0.0", port, files=files)  # noqa: S104
        host = socket.gethostname()
        if files is None:
            # This machine's address in the network of the group's store; it sends nothing.
            with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((group_host() or "", 1))
                host = probe.getsockname()[0]
        return BlockServer(listener, self._cache, token, host=host)
