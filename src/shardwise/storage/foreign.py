"""All other schemes, by fsspec: ssh, hdfs, ftp, memory, whatever its plug-ins open.

fsspec's file systems block, so each request has a thread of its own; and what a range belongs to
is not told, so a change of the file is seen only when its length or its ETag is looked at anew.
Imports this package; fsspec when a client is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path
from typing import Any

from shardwise.errors import MissingExtraError, StorageError
from shardwise.storage.attempts import Reply
from shardwise.storage.blocking import in_thread
from shardwise.storage.failures import AttemptError
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat

__all__ = ["FsspecClient", "require_scheme"]

_PIECE = 8 << 20
# They run a command or open other URLs, which a data set's name must not do.
_NEVER = ("pipe", "shell", "filecache", "simplecache", "blockcache", "reference", "generic")


def require_scheme(scheme: str, url: str) -> None:
    """Find out whether a scheme can be opened, without opening anything.

    Raises:
        StorageError: it can't; the message says what is supported.
        MissingExtraError: fsspec is not installed.
    """
    if scheme in _NEVER:
        raise StorageError(f"can't open {url!r}: the scheme {scheme!r} is not supported")
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(f"{scheme!r} URLs need fsspec", extra="remote") from error
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise StorageError(
            f"can't open {url!r}: the scheme {scheme!r} is not supported; supported are local "
            "paths, file://, s3://, gs://, az://, http(s)://, hf://, ais:// and what fsspec knows"
        ) from error
    except ImportError as error:
        raise StorageError(f"can't open {url!r}: fsspec says: {error}") from error


class FsspecClient:
    """A file system of fsspec. Keys are whole URLs.

    Args:
        scheme: names the file system.
        options: its settings, and the time that an attempt may take.
    """

    moves_objects = False

    def __init__(self, scheme: str, options: StorageOptions) -> None:
        import fsspec

        # Not shared with the rest of the program: its instances may belong to another thread.
        settings = options.settings()
        try:
            self._fs = fsspec.filesystem(scheme, skip_instance_cache=True, **settings)
        except Exception as error:  # noqa: BLE001 - plug-ins raise whatever they like
            # Not its text: it may hold what was given.
            raise StorageError(
                f"fsspec can't open {scheme}:// ({type(error).__name__}); the settings given are "
                f"{', '.join(settings) or 'none'}"
            ) from None
        self._scheme = scheme
        self._attempt_s = options.attempt_timeout_s
        self._stats: dict[str, FileStat] = {}

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:  # noqa: ARG002
        """See `Client.get`; the version can't be asked for."""
        stat = self._stats.get(key)
        if stat is None:
            stat = self._stats[key] = await self.head(key)
        if start >= stat.num_bytes:
            raise AttemptError("the range begins after the end", "ended")
        stop = min(stop, stat.num_bytes)
        began = time.monotonic()
        path = self._fs._strip_protocol(key)
        data = await self._call(lambda: self._fs.cat_file(path, start=start, end=stop))
        if len(data) != stop - start:
            raise AttemptError(
                f"the reply has {len(data)} bytes where {stop - start} were asked for", "passing"
            )
        return Reply(memoryview(data), stat, time.monotonic() - began)

    async def stream(
        self, key: str, start: int, stop: int, etag: str, piece_bytes: int
    ) -> AsyncGenerator[Reply, None]:
        """See `Client.stream`; each piece is a request."""
        while start < stop:
            reply = await self.get(key, start, min(stop, start + max(_PIECE, piece_bytes)), etag)
            yield reply
            start += len(reply.data)

    async def head(self, key: str) -> FileStat:
        """See `Client.head`."""
        path = self._fs._strip_protocol(key)

        def look() -> Any:
            # Directories that were listed before are remembered otherwise.
            self._fs.invalidate_cache()
            return self._fs.info(path)

        info = await self._call(look)
        if info.get("type") == "directory" or info.get("size") is None:
            raise AttemptError("it is a directory, or has no known length", "refused")
        etag = next((info[name] for name in ("ETag", "etag", "e_tag") if info.get(name)), "")
        stat = self._stats[key] = FileStat(int(info["size"]), _mtime_ns(info), str(etag))
        return stat

    async def put(self, key: str, source: bytes | Path) -> None:
        """Store a file whole; how far it appears at once is up to the file system."""
        path = self._fs._strip_protocol(key)

        def write() -> None:
            if isinstance(source, bytes):
                self._fs.pipe_file(path, source)
            else:
                self._fs.put_file(str(source), path)
            self._stats.pop(key, None)

        await self._call(write)

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        """See `Client.names`."""
        directory = prefix.rpartition("/")[0]
        path = self._fs._strip_protocol(f"{directory}/")

        def look() -> list[str]:
            self._fs.invalidate_cache()
            return list(self._fs.find(path, maxdepth=1 if delimiter else None))

        # Paths come back without the scheme, and not always written as they were asked for.
        found = [name.removeprefix(path).lstrip("/") for name in await self._call(look)]
        names = [f"{directory}/{name}" for name in found]
        return sorted(name for name in names if name.startswith(prefix))

    async def _call(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._attempt_s):
                return await in_thread(work)
        except (FileNotFoundError, NotADirectoryError):
            raise AttemptError("the store has no such object", "missing") from None
        except PermissionError:
            raise AttemptError("access denied", "denied") from None
        except TimeoutError:
            raise AttemptError(
                f"no answer in {self._attempt_s:g} s (attempt_timeout_s)", "passing"
            ) from None
        except (NotImplementedError, ImportError) as error:
            raise AttemptError(
                f"{self._scheme}: {type(error).__name__}: {error}", "refused"
            ) from None
        except Exception as error:  # noqa: BLE001 - plug-ins raise whatever they like
            # Only the type: their texts may hold URLs with signatures.
            raise AttemptError(f"{self._scheme}: {type(error).__name__}", "passing") from None


def _mtime_ns(info: Any) -> int:
    found = next((info[n] for n in ("mtime", "LastModified", "last_modified") if info.get(n)), 0)
    if isinstance(found, datetime):
        found = found.timestamp()
    with contextlib.suppress(TypeError, ValueError):
        return int(float(found) * 1e9)
    return 0
