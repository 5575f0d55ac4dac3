"""Remote storage as the core sees it.

Keeps I8 for writes: an object of up to 512 MiB is one request, and a killed program leaves nothing
of it. A larger one goes up in parts, which the store joins at the end; a killed program leaves
nameless parts, which the bucket's rule for incomplete uploads removes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardwise.base.errors import MissingShardError
from shardwise.base.process_group import made_once
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.listing import list_files
from shardwise.extensions.remote.pinned_object import PinnedObject
from shardwise.extensions.remote.prefetch.planned import PIECE_BYTES
from shardwise.extensions.remote.remote_file import RemoteFile, receive
from shardwise.extensions.remote.requests.event_loop import gather_or_cancel
from shardwise.extensions.remote.requests.ranges import payloads_of
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, ReadRequest
from shardwise.storage.remote import RemoteStorage

# A store joins the parts of a large object before it answers.
_MIN_ATTEMPT_S = 60.0
_MIN_REQUEST_S = 300.0


class _Stores:
    """Files in stores and on servers; see `shardwise.storage.remote.RemoteStorage`."""

    list_files = staticmethod(list_files)

    def open_file(self, url: str, options: StorageOptions) -> File:
        remote = RemoteFile(url, options)
        return remote if options.cache is None else CachedFile(remote, cache_of(options.cache))

    def read_whole(self, url: str, options: StorageOptions, *, once: bool = False) -> bytes:
        """Read the first 4 MiB, whose reply has the file's length, and then the rest at once."""
        if once:
            return made_once(f"shardwise/read {url}", lambda: self.read_whole(url, options))
        remote = PinnedObject(url, options)

        async def read() -> bytes:
            first = await remote.get(0, PIECE_BYTES, may_end=True)
            num_bytes = first.stat.num_bytes
            size = remote.client().latency.max_request_bytes
            starts = range(len(first.data), num_bytes, size)
            rest = await gather_or_cancel(
                remote.get(start, min(start + size, num_bytes)) for start in starts
            )
            return b"".join((first.data, *(reply.data for reply in rest)))

        return remote.process.run(read())

    def read_payloads(
        self, requests: Sequence[ReadRequest], starts: Sequence[int], lengths: Sequence[int]
    ) -> list[bytes | None]:
        return payloads_of(receive(requests), starts, lengths)

    def upload(
        self, url: str, source: bytes | Path, options: StorageOptions, *, etag: str = ""
    ) -> None:
        target = _patient(url, options)

        async def put() -> None:
            if etag:
                await target.client().replace(url, target.key, source, etag)
            else:
                await target.client().put(url, target.key, source)

        target.process.run(put())

    def remove(self, url: str, options: StorageOptions) -> None:
        target = _patient(url, options)

        async def delete() -> None:
            await target.client().remove(url, target.key)

        with contextlib.suppress(MissingShardError):
            target.process.run(delete())


def _patient(url: str, options: StorageOptions) -> PinnedObject:
    """The object of a URL, with time for a store to join the parts of a large one."""
    return PinnedObject(
        url,
        replace(
            options,
            attempt_timeout_s=max(options.attempt_timeout_s, _MIN_ATTEMPT_S),
            request_timeout_s=max(options.request_timeout_s, _MIN_REQUEST_S),
        ),
    )


REMOTE: RemoteStorage = _Stores()
