"""The store of shard indexes: they are loaded, compared with their shards, and published.

An index lies beside its shard, or in the directory that the user names. Indexes of remote shards
are copied to this machine, so that every process maps one file and a second run reads nothing of
the shard: into the user's directory if that is a local one, else into the user's cache directory.
A loaded index matches the shard that is there now; otherwise it is an error or is built again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError, StorageError
from shardwise.base.shown import in_command, shown
from shardwise.sources.tar.index.index_file import IndexHeader, decode, read_header
from shardwise.sources.tar.index.shard_index import ShardIndex, index_path
from shardwise.sources.tar.index.shard_version import changed, fits, has_headers_of
from shardwise.storage import (
    File,
    FileStat,
    LocalFile,
    StorageOptions,
    is_local,
    local_path,
    open_file,
    read_whole,
)
from shardwise.storage.user_dirs import user_cache_dir
from shardwise.storage.write import upload

_logger = logging.getLogger("shardwise")


def open_uncached(url: str, options: StorageOptions | None) -> File:
    """A file without cache or prefetch: it is read once, and a scan knows what it needs next."""
    options = replace(options or StorageOptions(), cache=None, prefetch_bytes=0)
    return open_file(url, options=options)


@dataclass(frozen=True)
class SavedIndex:
    """A shard's index as kept: "fresh", or "missing", "stale" or "damaged" (see `error`)."""

    stat: FileStat
    state: Literal["fresh", "missing", "stale", "damaged"]
    index: ShardIndex | None = None
    error: DataError | None = None


@dataclass(frozen=True)
class IndexStore:
    """The location of a dataset's indexes, and how its files are reached. Immutable; pickles.

    `directory` is a path or a URL, or None for beside the shards; with `accept_unfinished` shards
    without an end are taken as they are.
    """

    directory: str | None = None
    options: StorageOptions | None = None
    accept_unfinished: bool = False

    def published_path(self, url: str) -> str:
        """The path or URL where the index of a shard is published."""
        return index_path(url, self.directory)

    def path(self, url: str) -> str:
        """The file on this machine that holds, or would hold, the index of a shard."""
        published = self.published_path(url)
        if is_local(published):
            return published
        return index_path(url, str(user_cache_dir() / "index"))

    def origin(self, url: str) -> str | None:
        """The URL of a remote index that `path` may be a copy of; None without one."""
        places = (self.published_path(url), index_path(url))
        return next((place for place in places if not is_local(place)), None)

    def stat(self, url: str) -> FileStat:
        """The shard as it is now; raises as `File.stat` does."""
        if is_local(url):
            return LocalFile(local_path(url)).stat()
        return open_uncached(url, self.options).stat()

    def find(self, url: str, stat: FileStat) -> IndexHeader | None:
        """The header of a shard's index, now copied here; StaleIndexError if it doesn't fit."""
        path = self.path(url)
        try:
            header = read_header(path)
            if fits(header, url, stat):
                return header
        except (FileNotFoundError, NotADirectoryError, DataError):
            # `load` looks for another one, or raises.
            pass
        except OSError as error:
            raise StorageError(f"can't read the index {path!r}: {error.strerror}") from error
        index = self.load(url, stat)
        if index is None:
            return None
        if not fits(index.header, url, stat):
            raise StaleIndexError(
                f"{changed(index.header, stat)}; bring the index up to date with "
                f"`{self.command} {in_command(url)}`",
                url=url,
            )
        if self.origin(url) is not None:
            try:
                self.save(url, index)
            except OSError as error:
                _logger.info("no copy of the index of %s can be kept: %s", shown(url), error)
        return index.header

    def load(self, url: str, stat: FileStat, *, check: bool = True) -> ShardIndex | None:
        """The index of a shard, whether it fits or not; None without one.

        If a shard has the indexed size and another time, some headers are compared: if they match
        the index, it is the same shard, copied, and the index gets its new time. An outdated
        index in the user's cache counts as missing.
        """
        index: ShardIndex | None = None
        try:
            index = ShardIndex.load(self.path(url), check=check)
        except OSError:
            pass
        except DataError:
            # A damaged index in the user's cache counts as missing.
            if not self._is_own(url):
                raise
        else:
            index = self._as_copied(index, url, stat)
        if index is not None and (self.origin(url) is None or fits(index.header, url, stat)):
            return index
        return self.fetch(url, stat) or (None if self._is_own(url) else index)

    def look(self, url: str) -> SavedIndex:
        """The index of a shard and its state, for people; changes nothing."""
        stat = self.stat(url)
        try:
            index = self.load(url, stat)
        except DataError as error:
            return SavedIndex(stat, "damaged", error=error)
        if index is None:
            return SavedIndex(stat, "missing")
        return SavedIndex(stat, "fresh" if fits(index.header, url, stat) else "stale", index)

    def fetch(self, url: str, stat: FileStat) -> ShardIndex | None:
        """The remote index of a shard, in memory, compared as by `load`; None without one."""
        origin = self.origin(url)
        if origin is None:
            return None
        try:
            index, _ = read_index(origin, options=self.options)
        except MissingShardError:
            return None
        except StorageError as error:
            # Without the right to list a bucket, a missing object is "forbidden".
            _logger.info("no index can be read from %s: %s", shown(origin), error)
            return None
        return self._as_copied(index, url, stat)

    def valid(self, url: str, stat: FileStat) -> ShardIndex | None:
        """An index that is whole and fits the shard: the published one, else a copy of it.

        A copied shard's index is saved with its new time, so that headers are compared once.
        """
        with suppress(DataError):
            index = self.fetch(url, stat) if self._is_own(url) else None
            if index is not None and fits(index.header, url, stat):
                return index
        with suppress(DataError, FileNotFoundError):
            saved = ShardIndex.load(self.path(url))
            index = self._as_copied(saved, url, stat)
            if fits(index.header, url, stat):
                if index is not saved:
                    with suppress(OSError):
                        self.save(url, index)
                return index
        return None

    def publish(self, url: str, index: ShardIndex) -> tuple[str, str]:
        """Save an index in place and here; returns where, and why not in place ("" if it is)."""
        path, published, note = self.path(url), self.published_path(url), ""
        if published not in (path, index.path):
            try:
                upload(published, index.to_bytes(), options=self.options)
            except StorageError as error:
                note = (
                    f"the index can't be written to {shown(published)!r} ({error}): it is kept in "
                    f"{path!r}"
                )
        if index.path != path:
            try:
                self.save(url, index)
            except OSError:
                # Without the copy every process fetches the published index again.
                if path == published or note:
                    raise
        return (path if note else published), note

    def save(self, url: str, index: ShardIndex) -> None:
        """Save an index on this machine only."""
        path = self.path(url)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        index.save(path)

    @property
    def command(self) -> str:
        """The command that brings indexes up to date."""
        return "shardwise index" + (
            "" if self.directory is None else f" --index {in_command(self.directory)}"
        )

    def _is_own(self, url: str) -> bool:
        """Whether the index on this machine is a copy in the user's cache directory."""
        return not is_local(self.published_path(url))

    def _as_copied(self, index: ShardIndex, url: str, stat: FileStat) -> ShardIndex:
        """The index with the shard's new time, if the shard is a copy of the indexed one."""
        header = index.header
        if (
            fits(header, url, stat)
            or header.num_bytes != stat.num_bytes
            # Different ETags prove other content.
            or (header.etag and stat.etag)
        ):
            return index
        shard = open_uncached(url, self.options)
        # If it was replaced since `stat`, it would be reported as cut.
        shard.pin(stat)
        if not has_headers_of(index, shard):
            return index
        return index.of_version(stat.mtime_ns, stat.etag)


def read_index(path: str, *, options: StorageOptions | None = None) -> tuple[ShardIndex, int]:
    """An index file, local or remote, and its size."""
    if is_local(path):
        return ShardIndex.load(path, check=False), Path(path).stat().st_size
    data = read_whole(path, options=options)
    return ShardIndex(*decode(data, path=path), path=path), len(data)
