"""Shards that a manifest file lists: each is held against its entry when it is first used.

Opening a million of them is reading one file. A process that gets them pickled reads the file
again, and refuses another content than the one that was opened.
"""

from __future__ import annotations

import logging
import mmap
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.base.parallel import in_threads
from shardwise.base.shown import in_command, shown, without_query
from shardwise.sources.manifest import Manifest
from shardwise.sources.shard_names import LazyNames, NumberedNames, ShardNames
from shardwise.sources.tar.index.build import index_for
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.manifest_file import (
    ManifestFile,
    decode,
    tag_of,
    tag_says_etag,
    version_path,
)
from shardwise.sources.tar.index.opened_shards import REMOTE_THREADS
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_lists import place_of
from shardwise.sources.tar.index.shard_version import require_end, unfinished
from shardwise.storage import (
    FileStat,
    LocalFile,
    StorageOptions,
    atomic_write,
    described,
    expand,
    is_local,
    local_path,
    read_whole,
    require_not_written_since,
)
from shardwise.storage.column_file import map_file
from shardwise.storage.missing import explain_missing
from shardwise.storage.user_dirs import name_beside, user_cache_dir

_logger = logging.getLogger("shardwise")


def is_manifest_file(url: str) -> bool:
    """Whether a URL names a manifest file, by its name: `*.swm`.

    >>> is_manifest_file("https://host/train.swm?sig=abc"), is_manifest_file("train.tar")
    (True, False)
    """
    return without_query(url).endswith(".swm")


def manifest_files(url: str, options: StorageOptions | None) -> list[str]:
    """The manifest files that a name or a pattern (`{a,b}/train.swm`, `*/train.swm`) stands for."""
    return expand(url, suffixes=(".swm",), options=options)


class ListedShards:
    """The shards of a manifest file. Pickles as the file's URL and version.

    Any thread may call `stat`. A manifest does not say where the indexes are: `store` does.
    """

    def __init__(self, url: str, store: IndexStore, version: int | str | None = None) -> None:
        self._number = version
        self.url = local_path(url) if is_local(url) else url
        self._store = store
        self._version = ""
        self._opened_ns = time.time_ns()
        self._stats: dict[int, FileStat] = {}
        self.unsaved: dict[int, ShardIndex] = {}
        self._opened: tuple[ManifestFile, Manifest] | None = None
        content = self.content
        self.fields, self.has_digests = content.fields, content.has_digests
        has_keys = self.manifest.num_samples > 0
        self.key_lengths = frozenset({content.key_length} if has_keys else ())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stats": {}, "unsaved": {}, "_opened": None}

    @property
    def content(self) -> ManifestFile:
        """The content of the file."""
        return self._open()[0]

    @property
    def removed(self) -> NDArray[np.int64]:
        return self.content.removed.astype(np.int64)

    @property
    def manifest(self) -> Manifest:
        """The shards with their counts; the fingerprint is that of a dataset of them alone."""
        return self._open()[1]

    def _open(self) -> tuple[ManifestFile, Manifest]:
        """Read the file once per process, at the first use: errors come from reads, not pickles."""
        if self._opened is not None:
            return self._opened
        content, version = self._load()
        if self._version not in ("", version):
            raise StaleIndexError(
                "the manifest was replaced while it was in use: its content is another than when "
                "it was opened; open the dataset again",
                url=self.url,
            )
        self._version = version
        if content.num_unfinished and not self._store.accept_unfinished:
            raise DataError(
                f"{content.num_unfinished} of {len(content.names)} shards that the manifest lists "
                f"are not whole: {unfinished(int(content.samples.sum()))}",
                url=self.url,
            )
        urls = _urls_of(content.names, self.url)
        manifest = Manifest.of_columns("tar", urls, content.samples, content.lengths)
        manifest.fingerprint = content.fingerprint
        self._opened = content, manifest
        return self._opened

    def pins(self) -> Iterator[tuple[str, FileStat]]:
        """Nothing: versions are known at first use."""
        return iter(())

    def stat(self, shard: int) -> FileStat:
        """A shard as it was at its first use, when it is held against its entry."""
        stat = self._stats.get(shard)
        if stat is None:
            stat = self.check(shard)
            # Only a shard that passed; of two threads, both checked it.
            self._stats[shard] = stat
        return stat

    def check_all(self) -> None:
        """Hold every shard against its entry."""
        urls = self.manifest.urls
        are_local = all(map(is_local, ShardNames.of(urls).examples()))
        shards = range(len(urls))
        checked = (
            map(self.stat, shards) if are_local else in_threads(self.stat, shards, REMOTE_THREADS)
        )
        deque(checked, maxlen=0)

    def check(self, shard: int, *, save: bool = True) -> FileStat:
        """Hold a shard against its entry; with `save`, a new index is kept on this machine."""
        url, content, store = self.manifest.urls[shard], self.content, self._store
        try:
            stat = store.stat(url)
        except MissingShardError as error:
            raise MissingShardError(
                f"the manifest {shown(self.url)!r} lists this shard, and it is not there "
                f"({error.reason}): put it back, or make the manifest again without it by "
                f"`shardwise index --merge {in_command(self.url)} URLS`",
                url=url,
            ) from error
        tag = int(content.tags[shard])
        length = self.manifest.shard_bytes.item(shard)
        if stat.num_bytes != length:
            raise self._stale(url, f"it lists {length:,} bytes, there are {described(stat)}")
        if stat.etag and tag_says_etag(tag) and tag_of(stat) != tag:
            raise self._stale(url, f"it lists another ETag than there is ({described(stat)})")
        if tag_of(stat) != tag:
            require_not_written_since(self._opened_ns, stat, url)
        if save:
            # Refuses an index that does not fit; of a copy with another time, the headers are
            # compared: see `IndexStore.load`.
            try:
                store.find(url, stat)
            except StaleIndexError as error:
                how = f"its index is of another shard than there is ({described(stat)})"
                raise self._stale(url, how) from error
        index = store.load(url, stat)
        is_new = index is None
        if index is None:
            _logger.info("%s has no index that fits and is indexed now", shown(url))
            index = index_for(url, store)
        if not store.accept_unfinished:
            require_end(index.header, url)
        if index.content_digest() != int(content.index_digests[shard]):
            raise self._stale(
                url,
                f"it lists {content.samples[shard]:,} samples in {length:,} bytes, the index has "
                f"{index.num_samples:,} in {index.num_bytes:,}, at other places or of other names",
            )
        unlisted = np.setdiff1d(self.manifest.ids_of({shard: index.header.removed}), self.removed)
        if len(unlisted):
            raise self._stale(url, f"{len(unlisted)} samples were removed since")
        if is_new and save:
            try:
                store.save(url, index)
            except OSError as error:
                _logger.info("the index of %s can't be kept: %s", shown(url), error)
                self.unsaved[shard] = index
        return stat

    def _stale(self, url: str, how: str) -> StaleIndexError:
        return StaleIndexError(
            f"the shard is not the one that the manifest {shown(self.url)!r} lists: {how}; put the "
            f"shard back, or make the manifest again with `shardwise index --merge "
            f"{in_command(self.url)} URLS`",
            url=url,
        )

    def _load(self) -> tuple[ManifestFile, str]:
        """The file's content, and a text that identifies it."""
        if self._number is not None:
            return self._load_version()
        if is_local(self.url):
            with explain_missing([self.url]):
                LocalFile(self.url).open()
            return _decode(map_file(self.url), self.url)
        if self._version:
            # The copy of the process that opened it.
            with suppress(OSError, DataError):
                return _decode(map_file(self._copy(self._version)), self.url)
        data = read_whole(self.url, options=self._store.options, once=True)
        content, version = _decode(data, self.url)
        self._keep(data, version)
        return content, version

    def _load_version(self) -> tuple[ManifestFile, str]:
        """The content of the version of that number or fingerprint."""
        options, wanted = self._store.options, self._number
        newest = _decode(read_whole(self.url, options=options, once=True), self.url)
        versions = [*newest[0].history, newest[0].fingerprint]
        self._number = max((n for n, v in enumerate(versions, 1) if wanted in (n, v)), default=0)
        if not self._number:
            raise ValueError(
                f"version={wanted!r:.40}: {shown(self.url)!r} has {len(versions)} versions, number "
                f"1 to {len(versions)}, the newest of fingerprint {versions[-1]!r}"
            )
        if self._number == len(versions):
            return newest
        path = version_path(self.url, self._number)
        return _decode(read_whole(path, options=options, once=True), path)

    def _copy(self, version: str) -> str:
        """The path of this machine's copy of one version of a remote file."""
        name = name_beside(self.url, without_query(self.url))
        return str(user_cache_dir() / "manifests" / f"{name}-{version}.swm")

    def _keep(self, data: bytes, version: str) -> None:
        """Write the copy that other processes of this machine map, and remove older ones."""
        path = Path(self._copy(version))
        if path.exists():
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(data)
            for old in path.parent.glob(f"{path.name.removesuffix(f'-{version}.swm')}-*.swm"):
                if old != path:
                    old.unlink(missing_ok=True)
        except OSError as error:
            _logger.info("no copy of %s can be kept: %s", shown(self.url), error)


def _decode(data: mmap.mmap | bytes, path: str) -> tuple[ManifestFile, str]:
    content = decode(data, path=path)
    return content, f"{content.fingerprint}-{bytes(data[-4:]).hex()}"


def _urls_of(names: Sequence[str], manifest: str) -> ShardNames:
    """The URLs of names that are relative to a manifest's location, or absolute."""
    base = without_query(manifest)
    assert isinstance(names, ShardNames)
    parts: list[Sequence[str]] = []
    for part in names.parts:
        if not isinstance(part, NumberedNames):
            parts.append(_Placed(part, base))
            continue
        place_of(part[-1], base)
        url = place_of(part[0], base)
        # All names of the pattern gain, or lose, the same prefix.
        kept = len(part[0]) - len(part.prefix)
        parts.append(replace(part, prefix=url[: len(url) - kept]))
    return ShardNames(parts)


class _Placed(LazyNames):
    """Names that become URLs, and are checked, on request."""

    __slots__ = ("_base", "_names")

    def __init__(self, names: Sequence[str], base: str) -> None:
        self._names = names
        self._base = base

    def __len__(self) -> int:
        return len(self._names)

    def one(self, place: int) -> str:
        return place_of(self._names[place], self._base)
