"""Opening shards, and keeping remote ones in a directory; keeping samples in memory or in LMDB."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import pickle
import re
import shutil
import sys
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO

from shardwise.base.shown import shown
from shardwise.compat.environment import variable
from shardwise.compat.webdataset import cached_files
from shardwise.compat.webdataset.cached_files import LRUCleanup
from shardwise.compat.webdataset.gopen import gopen, local_name
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.mapping import each_result
from shardwise.compat.webdataset.readers import find_reader
from shardwise.compat.webdataset.tar_stream import check_tar_format, why_no_tar
from shardwise.compat.webdataset.tariterators import expand_samples
from shardwise.compat.webdataset.utils import PipelineStage, pipelinefilter

default_cache_dir = variable("WDS_CACHE", "./_cache")

_NAMED_BY_PATH = ("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_CHUNK_BYTES = 1 << 20


def pipe_cleaner(spec: str) -> str:
    """The URL in a `pipe:` command, where there is one; other URLs as they are."""
    if spec.startswith("pipe:"):
        for word in spec.removeprefix("pipe:").split(" "):
            if re.match(r"^(https?|hdfs|gs|ais|s3):", word):
                return word
    return spec


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """A URL's last part with `ndir` directories; of others, the last 128 letters, quoted."""
    assert isinstance(url, str), url  # WebDataset's tests expect this error
    parsed = urllib.parse.urlparse(url)
    if parsed.scheme in _NAMED_BY_PATH:
        return "/".join(parsed.path.lstrip("/").split("/")[-1 - ndir :])
    return urllib.parse.quote(url, safe="_+{}*,-")[-128:]


def _copy(url: str, file: IO[bytes]) -> None:
    """Read all of a URL into a file, so that others can read it there."""
    with gopen(url) as stream:
        shutil.copyfileobj(stream, file, _CHUNK_BYTES)
    file.flush()


class _Opener:
    """A stage that opens one URL after the other; the handler is asked where that fails."""

    handler: Callable[[Exception], bool]
    _open: Callable[[str], dict[str, Any]]

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        named = (item["url"] if isinstance(item, dict) else os.fspath(item) for item in urls)
        return (opened for _, opened in each_result(named, self._open, self.handler))


@dataclass(eq=False, repr=False)
class StreamingOpen(_Opener):
    """Opens each URL as a stream: `{"url": ..., "stream": ...}`, local ones with `local_path`."""

    verbose: bool = False
    handler: Callable[[Exception], bool] = reraise_exception

    def _open(self, url: str) -> dict[str, Any]:
        if self.verbose:
            sys.stderr.write(f"# opening {shown(url)}\n")
        path = local_name(url)
        if path is None:
            return {"url": url, "stream": gopen(url)}
        return {"url": url, "stream": open(path, "rb"), "local_path": path}


@dataclass(eq=False, repr=False)
class FileCache(_Opener):
    """Opens each URL by way of a file in a cache directory; local files as they are.

    A file has its name when it is whole and `validator` has seen it. Where another URL, or a
    program's own file, has the name already, it gets another one. Without enough room, the shard is
    read without the cache, with a warning. Several processes may use one directory.

    Args:
        cache_dir: the directory; None for the environment's WDS_CACHE, or `./_cache`.
        url_to_name: maps a URL to the name of its file, which may contain directories.
        validator: maps a path to whether the file is a sound shard; None for no check.
        cache_size: the limit in bytes; beyond it, files used longest ago are deleted. -1 for none.
        cache_cleanup_interval: seconds between two looks at the limit while nothing is downloaded.
    """

    cache_dir: str | os.PathLike[str] | None = None
    _: KW_ONLY
    url_to_name: Callable[[str], str] = url_to_cache_name
    verbose: bool = False
    validator: Callable[[str], bool] | None = check_tar_format
    handler: Callable[[Exception], bool] = reraise_exception
    cache_size: InitVar[float] = -1
    cache_cleanup_interval: InitVar[float | None] = 30
    cleaner: LRUCleanup | None = field(default=None, init=False)

    def __post_init__(self, cache_size: float, cache_cleanup_interval: float | None) -> None:
        self.cache_dir = default_cache_dir if self.cache_dir is None else self.cache_dir
        if cache_size > 0:
            self.cleaner = LRUCleanup(
                self.cache_dir, cache_size, verbose=self.verbose,
                interval=cache_cleanup_interval, only=cached_files.is_cached,
            )  # fmt: skip

    def get_file(self, url: str) -> str:
        """The path of a URL's file, downloaded if it is not there; a local one is not opened."""
        local = local_name(url)
        if local is not None:
            return local
        path, stream = self._open_file(url)
        stream.close()
        return path

    def _fetch(self, url: str, places: list[Path]) -> None:
        if self.verbose:
            sys.stderr.write(f"# downloading {shown(url)} to {places[0]}\n")
        with cached_files.new_file(places, url) as file:
            _copy(url, file)
            if self.validator is not None and not self.validator(file.name):
                raise _invalid(file.name, url)

    def _open(self, url: str) -> dict[str, Any]:
        try:
            path, stream = self._open_file(url)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            warnings.warn(f"no room in the cache {self.cache_dir!r}, {shown(url)} is read without: "
                          f"{error}", stacklevel=3)  # fmt: skip
            return {"url": url, "stream": gopen(url)}
        return {"url": url, "stream": stream, "local_path": path}

    def _open_file(self, url: str) -> tuple[str, BinaryIO]:
        """The file of a URL and a stream of it, which keeps it from being deleted."""
        path = local_name(url)
        if path is not None:
            return path, open(path, "rb")
        places = cached_files.candidates(Path(self.cache_dir or "."), self.url_to_name(url), url)
        stream, is_new = None, False
        # None once more: another process deleted it just now, to make room.
        while stream is None:
            place = next((path for path in places if cached_files.holds(path, url)), None)
            if place is None:
                self._fetch(url, places)
                is_new = True
            else:
                stream = cached_files.open_locked(place)
        assert place is not None
        self._tidy(place, is_new=is_new)
        return str(place), stream

    def _tidy(self, place: Path, *, is_new: bool) -> None:
        """Mark a file as used last, so that it is deleted last, and keep the limit."""
        # A cache that is only read keeps its times.
        with contextlib.suppress(PermissionError):
            os.utime(place)
        if self.cleaner is not None:
            if is_new:
                self.cleaner.last_run = 0.0
            self.cleaner.cleanup()


def _invalid(fname: str, url: str) -> ValueError:
    reason = why_no_tar(fname) or "refused by the validator"
    with open(fname, "rb") as file:
        head = file.read(200)
    return ValueError(
        f"what was downloaded from {shown(url)} is not a tar archive, or not a whole one: "
        f"{reason}; {Path(fname).stat().st_size} bytes, which begin with {head!r}"
    )


def cached_url_opener(
    data: Iterable[dict[str, Any]],
    handler: Callable[[Exception], bool] = reraise_exception,
    cache_size: float = -1,
    cache_dir: str | os.PathLike[str] | None = None,
    url_to_name: Callable[[str], str] = pipe_cleaner,
    validator: Callable[[str], bool] | None = check_tar_format,
    verbose: bool = False,
    always: bool = False,  # noqa: ARG001 - local shards are read where they lie
) -> Iterator[dict[str, Any]]:
    """WebDataset 0.2's name for `FileCache`."""
    return FileCache(
        cache_dir, url_to_name=url_to_name, verbose=verbose, validator=validator, handler=handler,
        cache_size=cache_size,
    )(data)  # fmt: skip


def cached_tarfile_samples(
    src: Iterable[dict[str, Any]],
    handler: Callable[[Exception], bool] = reraise_exception,
    cache_size: float = -1,
    cache_dir: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    url_to_name: Callable[[str], str] = pipe_cleaner,
    always: bool = False,  # noqa: ARG001 - local shards are read where they lie
    select_files: Callable[[str], Any] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> Iterator[dict[str, Any]]:
    """WebDataset 0.2's name for `FileCache` followed by `tarfile_samples`."""
    opened = cached_url_opener(src, handler, cache_size, cache_dir, url_to_name, verbose=verbose)
    return expand_samples(opened, handler, select_files, rename_files)


cached_tarfile_to_samples = pipelinefilter(cached_tarfile_samples)


class Cached(PipelineStage):
    """Keeps all samples in memory; from the second pass on they come from there."""

    def __init__(self) -> None:
        self.cached: list[Any] | None = None

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        samples = []
        for sample in source if self.cached is None else self.cached:
            samples.append(sample)
            yield sample
        self.cached = samples


@dataclass(eq=False, repr=False)
class LMDBCached(PipelineStage):
    """Keeps all samples in LMDB, by reader; once complete, they come from there."""

    fname: str
    map_size: float = 1e12
    pickler: Any = pickle
    chunksize: int = 500

    @cached_property
    def db(self) -> Any:
        lmdb = importlib.import_module("lmdb")
        return lmdb.open(self.fname, readonly=False, map_size=int(self.map_size))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "db"}

    def close(self) -> None:
        if "db" in self.__dict__:
            self.__dict__.pop("db").close()

    def is_complete(self) -> bool:
        with self.db.begin(write=False) as transaction:
            return transaction.get(f"_{self._prefix}".encode()) is not None

    def add_samples(self, samples: Iterable[tuple[str, Any]]) -> None:
        with self.db.begin(write=True) as transaction:
            for key, sample in samples:
                transaction.put(key.encode(), self.pickler.dumps(sample))

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        prefix = self._prefix
        if self.is_complete():
            with self.db.begin(write=False) as transaction:
                cursor = transaction.cursor()
                found = cursor.set_range(prefix.encode())
                while found and cursor.key().startswith(prefix.encode()):
                    yield self.pickler.loads(cursor.value())
                    found = cursor.next()
            return
        samples = enumerate(source)
        while chunk := list(islice(samples, self.chunksize)):
            self.add_samples((f"{prefix}{i:012d}", sample) for i, sample in chunk)
            for _, sample in chunk:
                yield sample
        with self.db.begin(write=True) as transaction:
            transaction.put(f"_{prefix}".encode(), b"1")

    @property
    def _prefix(self) -> str:
        reader = find_reader()
        return f"s{reader.rank}.{reader.world_size}.{reader.worker}.{reader.num_workers}/"
