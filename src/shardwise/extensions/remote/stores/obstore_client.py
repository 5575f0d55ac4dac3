"""Object stores and web servers, by obstore: one attempt at a time, its reply checked.

Long ranges of S3 without TLS come by `SignedBodies`, where the settings allow it. obstore's own
retries are off: they don't cover cut bodies of servers without ETags, and nothing would count them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.extensions.remote.requests.event_loop import runtime
from shardwise.extensions.remote.requests.failures import (
    NO_RANGES,
    empty_file,
    from_obstore,
    no_answer,
    short_reply,
)
from shardwise.extensions.remote.stores.signed_bodies import SignedBodies
from shardwise.storage.client import AttemptError, Client, Reply
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat

if TYPE_CHECKING:
    from obstore import GetOptions

_BARE = frozenset("[]{}|\\^`")
_CONNECT_S = 5.0
_LIST_CHUNK = 1000
# Up to this size an object is one request: a kill leaves nothing of it. It is in memory meanwhile.
# Parts of a killed upload would stay in the store: obstore neither lists nor aborts them.
_WHOLE_BYTES = 512 << 20
# Stores accept at most 10,000 parts.
_PART_BYTES = 8 << 20
_MAX_PARTS = 9000
_CONCURRENT_PARTS = 8
# A shorter range costs more by its request than by its bytes.
_LONG_BYTES = 8 << 20
# Stores accept clocks that differ by as much.
_SIGNED_FOR = timedelta(minutes=15)


class ObstoreClient(Client):
    """A client of one bucket, container or web server: of obstore's `store`.

    With `head_by_get` a refused HEAD is repeated as a GET of one byte: signed URLs often allow
    nothing else. With `signed_at`, the store's endpoint as it may be shown, signed URLs are used
    for long ranges.
    """

    def __init__(
        self,
        store: Any,
        options: StorageOptions,
        *,
        head_by_get: bool = False,
        signed_at: str = "",
    ) -> None:
        import obstore
        from obstore.exceptions import BaseError

        self._obstore = obstore
        # obstore raises FileNotFoundError for missing objects, ValueError for malformed names.
        self._errors = (BaseError, OSError, ValueError)
        self._store = store
        self._native = runtime(obstore=True).native
        self._attempt_s = options.attempt_timeout_s
        self._head_by_get = head_by_get
        self._signed = SignedBodies(signed_at, self._sign, options) if signed_at else None

    def _substitute(self, key: str) -> tuple[Client, str] | None:  # noqa: ARG002
        """The client for a key that obstore can't read, and the key as that client writes it."""
        return None

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        if other := self._substitute(key):
            return await other[0].get(other[1], start, stop, etag)
        try:
            result, stat, head_s = await self._ask(key, start, stop, etag)
            data = memoryview(await self._native.result(result.bytes_async()))
        except self._errors as error:
            raise await self._failure(key, error) from None
        first, last = result.range
        if len(data) != last - first:
            raise short_reply(len(data), last - first)
        return Reply(data, stat, head_s)

    async def stream(
        self, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        if other := self._substitute(key):
            async for reply in other[0].stream(other[1], start, stop, etag, piece_bytes):
                yield reply
            return
        signed = self._signed
        if signed is not None and stop - start >= _LONG_BYTES and not signed.is_refused:
            received = signed.stream(key, start, stop, etag, piece_bytes)
            async with contextlib.aclosing(received) as replies:
                async for reply in replies:
                    yield reply
            return
        try:
            result, stat, head_s = await self._ask(key, start, stop, etag)
            first, last = result.range
            pieces, num_bytes = result.stream(min_chunk_size=piece_bytes), 0
            while num_bytes < last - first:
                try:
                    data = memoryview(await self._native.result(pieces.__anext__()))
                except StopAsyncIteration:
                    raise short_reply(num_bytes, last - first) from None
                num_bytes += len(data)
                yield Reply(data, stat, head_s)
        except self._errors as error:
            raise await self._failure(key, error) from None

    async def _sign(self, key: str) -> str:
        try:
            # It may have to renew the keys first.
            async with asyncio.timeout(self._attempt_s):
                return await self._native.result(
                    self._obstore.sign_async(self._store, "GET", key, _SIGNED_FOR)
                )
        except TimeoutError:
            raise no_answer(self._attempt_s) from None
        except (*self._errors, TypeError) as error:
            # A malformed name is a TypeError here; as a GET's failure it has its cause.
            raise from_obstore(error) from None

    async def _ask(self, key: str, start: int, stop: int, etag: str) -> tuple[Any, FileStat, float]:
        """Send a request; the open response, the object's version, seconds to the first byte."""
        request: GetOptions = {"range": (start, stop)}
        if etag and not etag.startswith("W/"):
            # A weak ETag never matches; the caller compares the reply's.
            request["if_match"] = etag
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._attempt_s):
                result = await self._native.result(
                    self._obstore.get_async(self._store, key, options=request)
                )
        except TimeoutError:
            raise no_answer(self._attempt_s) from None
        stat, (first, last) = _stat(result.meta), result.range
        if first != start or last != min(stop, max(stat.num_bytes, start)):
            raise AttemptError(
                f"the server sent bytes {first} to {last} where {start} to {stop} were asked for",
                "passing",
            )
        return result, stat, time.monotonic() - began

    async def _failure(self, key: str, error: Exception) -> AttemptError:
        """The failure of a range request: servers send an empty file as if all was requested."""
        failed = from_obstore(error)
        if failed.cause == NO_RANGES:
            with contextlib.suppress(AttemptError, *self._errors, TimeoutError):
                if not (await self._stat_of(key)).num_bytes:
                    return empty_file()
        return failed

    async def _stat_of(self, key: str) -> FileStat:
        async with asyncio.timeout(self._attempt_s):
            return _stat(await self._native.result(self._obstore.head_async(self._store, key)))

    async def head(self, key: str) -> FileStat:
        if other := self._substitute(key):
            return await other[0].head(other[1])
        try:
            return await self._stat_of(key)
        except TimeoutError:
            raise no_answer(self._attempt_s) from None
        except self._errors as error:
            failed = from_obstore(error)
        if self._head_by_get and failed.kind in ("denied", "refused"):
            with contextlib.suppress(AttemptError):
                return (await self.get(key, 0, 1, "")).stat
        raise failed

    async def put(self, key: str, source: bytes | Path) -> None:
        num_bytes = len(source) if isinstance(source, bytes) else source.stat().st_size
        part_bytes = max(_PART_BYTES, num_bytes // _MAX_PARTS)
        try:
            await self._native.result(
                self._obstore.put_async(
                    self._store,
                    key,
                    source,
                    use_multipart=num_bytes > _WHOLE_BYTES,
                    chunk_size=part_bytes,
                    max_concurrency=_CONCURRENT_PARTS,
                )
            )
        except self._errors as error:
            raise from_obstore(error) from None

    async def replace(self, key: str, source: bytes | Path, etag: str) -> None:
        put = self._obstore.put_async(self._store, key, source, mode={"e_tag": etag})
        try:
            await self._native.result(put)
        except self._errors as error:
            raise from_obstore(error) from None

    async def remove(self, key: str) -> None:
        try:
            await self._native.result(self._obstore.delete_async(self._store, key))
        except self._errors as error:
            failed = from_obstore(error)
        else:
            return
        # Gateways exist whose reply to a removal obstore can't read: what counts is the object.
        try:
            await self.head(key)
        except AttemptError as error:
            if error.kind == "missing":
                return
        raise failed

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        # A store's prefixes are whole directories; the rest is matched here.
        directory = prefix.rpartition("/")[0]
        try:
            if delimiter:
                entries = await self._native.result(
                    self._obstore.list_with_delimiter_async(self._store, directory or None)
                )
                names = [each["path"] for each in entries["objects"]]
                names += [f"{each}/" for each in entries["common_prefixes"]]
            else:
                stream = self._obstore.list(self._store, directory or None, chunk_size=_LIST_CHUNK)
                objects = await self._native.result(stream.collect_async())
                names = [each["path"] for each in objects]
        except self._errors as error:
            raise from_obstore(error) from None
        return sorted(name for name in names if name.startswith(prefix))


def redirects_are_followed(key: str) -> bool:
    """Whether obstore follows a redirect of a key: not if the key has unescaped characters."""
    return _BARE.isdisjoint(key)


def client_options(options: StorageOptions, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of obstore's HTTP client: time limits, then the user's settings."""
    return {
        "timeout": f"{options.request_timeout_s:.3f}s",
        "read_timeout": f"{options.attempt_timeout_s:.3f}s",
        "connect_timeout": f"{min(_CONNECT_S, options.attempt_timeout_s):.3f}s",
        "pool_idle_timeout": "30s",
        "user_agent": "shardwise",
        **settings,
    }


def _stat(meta: Any) -> FileStat:
    changed = meta["last_modified"]
    mtime_ns = int(changed.timestamp()) * 1_000_000_000 if changed else 0
    return FileStat(meta["size"], max(0, mtime_ns), meta["e_tag"] or "")
