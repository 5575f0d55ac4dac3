"""Remote storage as the core sees it.

Keeps I8 for writes: an object of up to 512 MiB is one request, and a killed program leaves nothing
of it. A larger one goes up in parts, which the store joins at the end; a killed program leaves
nameless parts, which the bucket's rule for incomplete uploads removes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.extensions.remote.prefetch.planned import PIECE_BYTES
from shardwise.extensions.remote.remote_file import PinnedObject, RemoteFile, receive
from shardwise.extensions.remote.requests.event_loop import gather_or_cancel
from shardwise.extensions.remote.stores.connect import location_of, url_of
from shardwise.storage.byte_ranges import payloads_of
from shardwise.storage.found_once import found_once, made_once
from shardwise.storage.listing import INDEX, MAGIC, WEB, shards_among
from shardwise.storage.open import RemoteStorage
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, ReadRequest

# A store joins the parts of a large object before it answers.
_MIN_ATTEMPT_S = 60.0
_MIN_REQUEST_S = 300.0


def list_files(
    url: str, *, suffixes: tuple[str, ...], ignored: str | tuple[str, ...], options: StorageOptions
) -> list[str]:
    """List the URLs that a directory or a glob stands for; see `shardwise.storage.listing`.

    The ranks of a process group list once.
    """
    if url.lower().startswith(WEB):
        raise StorageError(
            f"can't list {url!r}: web servers have no listing that programs can rely on; name the "
            "files by a brace pattern, such as https://HOST/train-{000..123}.tar"
        )

    what = f"list {suffixes} {ignored}"
    return list(found_once(what, [url], options, lambda: _list(url, suffixes, ignored, options)))


def _list(
    url: str, suffixes: tuple[str, ...], ignored: str | tuple[str, ...], options: StorageOptions
) -> list[str]:
    location = location_of(url)
    key = location.key
    if key.endswith("/") or not key:
        names = [name[len(key) :] for name in _keys(url, key, options, delimiter=True)]
        matches = [key + name for name in shards_among(names, url, suffixes)]
    else:
        start = MAGIC.split(key, maxsplit=1)[0]
        is_flat = "/" not in key[len(start) :]
        patterns = [key.split("/")]
        if any(suffix.endswith(INDEX) for suffix in suffixes):
            patterns.append(f"{key}{INDEX}".split("/"))
        matches = [
            name
            for name in _keys(url, start, options, delimiter=is_flat)
            if name == key
            or (
                not name.endswith(ignored)
                and any(_matches(name.split("/"), parts) for parts in patterns)
            )
        ]
        if not matches:
            raise MissingShardError("no file in the store matches the pattern", url=url)
    return [url_of(location, name) for name in sorted(matches)]


def _keys(url: str, prefix: str, options: StorageOptions, *, delimiter: bool) -> list[str]:
    file = RemoteFile(url, options)
    return [name for name in file.names(prefix, delimiter=delimiter) if not name.endswith("/")]


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a key matches a glob, both cut at the slashes."""
    if not parts:
        return not names
    first, others = parts[0], parts[1:]
    if first == "**":
        if not others:
            return bool(names) and not any(name.startswith(".") for name in names)
        # No directory, or one that is not hidden and any more.
        return _matches(names, others) or (
            len(names) > 1 and not names[0].startswith(".") and _matches(names[1:], parts)
        )
    if not names or (names[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatchcase(names[0], first) and _matches(names[1:], others)


class _Stores:
    """Files in stores and on servers; see `shardwise.storage.open.RemoteStorage`."""

    list_files = staticmethod(list_files)

    def open_file(self, url: str, options: StorageOptions) -> File:
        remote = RemoteFile(url, options)
        return remote if options.cache is None else CachedFile(remote, cache_of(options.cache))

    def read_whole(self, url: str, options: StorageOptions, *, once: bool = False) -> bytes:
        """Read the first 4 MiB, whose reply has the file's length, and then the rest at once."""
        if once:
            return made_once("read", [url], options, lambda: self.read_whole(url, options))
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
