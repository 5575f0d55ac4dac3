"""All other schemes, by fsspec: ssh, hdfs, ftp, memory and its plug-ins.

Host, port and user come from the URL, as in fsspec itself. Each call in flight has an instance of
the file system (`BlockingPool`), since most of them are not safe for two threads. A reply names no
version, so a file's version is requested again every two seconds while it is read.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from shardwise.base.errors import StorageError, imports_of
from shardwise.extensions.remote.requests.blocking_pool import BlockingPool
from shardwise.extensions.remote.requests.failures import no_answer
from shardwise.storage.client import AttemptError, Client, Reply
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import FileStat

T = TypeVar("T")

# A file's version is requested again after 2 s.
_FRESH_S = 2.0
# Files that an instance keeps open: opening a file costs as much as several reads.
_MAX_OPEN = 8
# Keys are names of plug-ins' exceptions, or parts of the texts of SSH's exceptions. Texts are not
# shown: they may hold secrets.
_FINAL = {
    "PasswordRequiredException": "the key is locked by a passphrase",
    "AuthenticationException": "the login was refused",
    "BadHostKeyException": "the host's key is not the one that is known",
    "not found in known_hosts": "the host's key is not known",
    "No authentication methods available": "no key and no password was given or found",
    "private key file": "the key's file is no private key",
    "Invalid key": "the key can't be read: its passphrase may be wrong",
}
# Errors of settings that name a file of this machine, such as SFTP's `key_filename`.
_BAD_SETTINGS = (FileNotFoundError, IsADirectoryError, PermissionError)
# These run commands or open other URLs, which a dataset's name must not do.
_NEVER = ("pipe", "shell", "filecache", "simplecache", "blockcache", "reference", "generic")


def require_scheme(scheme: str, url: str) -> None:
    """Check that a scheme can be opened, without opening anything.

    Raises:
        StorageError: it can't; the message lists what is supported.
        MissingExtraError: fsspec is not installed.
    """
    if scheme in _NEVER:
        raise StorageError(f"can't open {url!r}: the scheme {scheme!r} is not supported")
    with imports_of("remote", f"{scheme!r} URLs need fsspec"):
        import fsspec
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise StorageError(
            f"can't open {url!r}: the scheme {scheme!r} is not supported; supported are local "
            "paths, file://, s3://, gs://, az://, http(s)://, hf://, ais:// and what fsspec knows"
        ) from error
    except ImportError as error:
        raise StorageError(f"can't open {url!r}: fsspec says: {error}") from error


class _Instance:
    """A file system of one call at a time, and the files that it keeps open."""

    def __init__(self, fs: Any) -> None:
        from fsspec import AbstractFileSystem

        self.fs = fs
        # A file system without range requests opens the file each time: a request or two.
        self._keeps_open = type(fs).cat_file is AbstractFileSystem.cat_file
        self._files: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def read(self, path: str, start: int, stop: int, etag: str) -> bytes:
        """Bytes of a file; by one request where the file system has range requests."""
        if not self._keeps_open:
            return bytes(self.fs.cat_file(path, start=start, end=stop))
        key = (path, etag)
        file = self._files.pop(key, None)
        if file is None:
            file = self.fs.open(path, "rb", cache_type="none")
        self._files[key] = file
        while len(self._files) > _MAX_OPEN:
            self._files.popitem(last=False)[1].close()
        if hasattr(file, "readv"):
            # SFTP: pipelines its packets of 32 kB.
            return b"".join(file.readv([(start, stop - start)]))
        file.seek(start)
        return bytes(file.read(stop - start))

    def close(self) -> None:
        """Close the open files: a plug-in's destructor of a file may print an error."""
        while self._files:
            # Plug-ins raise exceptions of any kind; the call that failed has its own.
            with contextlib.suppress(Exception):
                self._files.popitem()[1].close()

    def version(self, path: str) -> tuple[int, str]:
        """Time and ETag of a file's version, for file systems without them in `info`."""
        from fsspec import AbstractFileSystem

        kind = type(self.fs)
        if kind.modified is not AbstractFileSystem.modified:
            return _mtime_ns({"mtime": self.fs.modified(path)}), ""
        if kind.ukey is not AbstractFileSystem.ukey:
            return 0, f'"{self.fs.ukey(path)}"'
        return 0, ""


class FsspecClient(Client):
    """A file system of fsspec; `root` is `sftp://user@host:2222`. Keys are whole URLs."""

    def __init__(self, root: str, options: StorageOptions) -> None:
        import fsspec

        scheme = root.partition(":")[0]
        settings = options.settings()
        kind = fsspec.get_filesystem_class(scheme)
        of_url = kind._get_kwargs_from_urls(f"{root}/")
        self._has_host = "host" in of_url

        def make() -> _Instance:
            try:
                # Instances of the program's own threads are not safe to share.
                made = kind(**{**of_url, **settings, "skip_instance_cache": True})
            except (*_BAD_SETTINGS, TypeError, ValueError, KeyError, RuntimeError) as error:
                # Its text may hold settings.
                raise AttemptError(
                    f"fsspec can't open {scheme}:// ({type(error).__name__}); the settings given "
                    f"are {', '.join(settings) or 'none'}",
                    "refused",
                ) from None
            return _Instance(made)

        self._kind = kind
        self._root = root
        self._scheme = scheme
        self._calls = BlockingPool(f"{scheme}://", make, _Instance.close)
        self._attempt_s = options.attempt_timeout_s
        # The last known version of each key, and when it was requested.
        self._stats: dict[str, tuple[FileStat, float]] = {}

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        stat, asked_at = self._stats.get(key, (None, 0.0))
        if stat is None or time.monotonic() - asked_at > _FRESH_S:
            stat = await self.head(key)
        if etag and stat.etag != etag:
            raise AttemptError("its version is another one", "changed")
        if start >= stat.num_bytes:
            raise AttemptError("the range begins after the end", "ended")
        stop = min(stop, stat.num_bytes)
        began, path, version = time.monotonic(), self._path(key), stat.etag
        data = await self._call(lambda instance: instance.read(path, start, stop, version))
        if len(data) != stop - start:
            raise AttemptError(
                f"the reply has {len(data)} bytes where {stop - start} were asked for", "passing"
            )
        return Reply(memoryview(data), stat, time.monotonic() - began)

    async def head(self, key: str) -> FileStat:
        path = self._path(key)

        def look(instance: _Instance) -> FileStat:
            # Or fsspec answers from its cache of listings.
            instance.fs.invalidate_cache()
            info = instance.fs.info(path)
            if info.get("type") == "directory" or info.get("size") is None:
                raise AttemptError(
                    "it is a directory, which is written with a slash at its end, or has no known "
                    "length",
                    "refused",
                )
            num_bytes, mtime_ns = int(info["size"]), _mtime_ns(info)
            etag = next((info[name] for name in ("ETag", "etag", "e_tag") if info.get(name)), "")
            if not etag and not mtime_ns:
                mtime_ns, etag = instance.version(path)
            if not etag and mtime_ns:
                etag = f'"{mtime_ns}-{num_bytes}"'
            return FileStat(num_bytes, mtime_ns, str(etag))

        stat = await self._call(look)
        self._stats[key] = stat, time.monotonic()
        return stat

    async def put(self, key: str, source: bytes | Path) -> None:
        path = self._path(key)

        def write(instance: _Instance) -> None:
            parent = path.rpartition("/")[0]
            if parent and self._has_host:
                instance.fs.makedirs(parent, exist_ok=True)
            if isinstance(source, bytes):
                instance.fs.pipe_file(path, source)
            else:
                instance.fs.put_file(str(source), path)

        await self._call(write)
        self._stats.pop(key, None)

    async def remove(self, key: str) -> None:
        path = self._path(key)
        await self._call(lambda instance: instance.fs.rm_file(path))
        self._stats.pop(key, None)

    async def names(self, prefix: str, *, delimiter: bool) -> list[str]:
        directory = prefix.rpartition("/")[0]
        path = self._path(f"{directory}/")

        def look(instance: _Instance) -> list[str]:
            instance.fs.invalidate_cache()
            return list(instance.fs.find(path, maxdepth=1 if delimiter else None))

        # The paths have no scheme, and may be written in another way.
        paths = await self._call(look)
        names = [f"{directory}/{each.removeprefix(path).lstrip('/')}" for each in paths]
        return sorted(name for name in names if name.startswith(prefix))

    def _path(self, key: str) -> str:
        """The file's path for the file system."""
        # If the path kept the host, `?` and `#` in names would be parsed as parts of a URL.
        return key.removeprefix(self._root) if self._has_host else self._kind._strip_protocol(key)

    async def _call(self, work: Callable[[_Instance], T]) -> T:
        try:
            return await self._calls.call(work, timeout_s=self._attempt_s)
        except AttemptError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise AttemptError("the store has no such object", "missing") from None
        except PermissionError:
            raise AttemptError("access denied", "denied") from None
        except TimeoutError:
            raise no_answer(self._attempt_s) from None
        except (NotImplementedError, ImportError) as error:
            raise AttemptError(
                f"{self._scheme}: {type(error).__name__}: {error}", "refused"
            ) from None
        except Exception as error:  # noqa: BLE001 - plug-ins raise exceptions of any kind
            names = [kind.__name__ for kind in type(error).__mro__]
            text = str(error) if "SSHException" in names else ""
            for sign, cause in _FINAL.items():
                if sign in names or sign in text:
                    raise AttemptError(cause, "denied") from None
            # Only the type: the text may hold a URL with a signature.
            raise AttemptError(f"{self._scheme}: {names[0]}", "passing") from None


def _mtime_ns(info: Any) -> int:
    names = ("mtime", "LastModified", "last_modified", "modified")
    modified = next((info[name] for name in names if info.get(name)), None)
    if modified is None and isinstance(info.get("modificationTime"), int):
        return int(info["modificationTime"]) * 1_000_000  # HDFS: milliseconds
    if isinstance(modified, datetime):
        modified = modified.timestamp()
    with contextlib.suppress(TypeError, ValueError):
        # A float of seconds holds microseconds.
        return round(float(modified or 0) * 1e6) * 1000
    return 0
