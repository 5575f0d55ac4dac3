"""Making manifest files: what is known of each shard, put into one file.

Names are relative to the file's directory where the shards lie in or below it, so that a dataset
that is copied as a whole opens. No query, user or password of a URL is kept.
"""

from __future__ import annotations

import logging
import os
import string
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.shown import in_command, shown, without_query
from shardwise.sources.manifest import Manifest
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed_shards import is_manifest_file
from shardwise.sources.tar.index.manifest_file import (
    ManifestFile,
    decode,
    encode,
    tag_of,
    version_path,
)
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.index.shard_lists import place_of
from shardwise.storage import FileStat, StorageOptions, is_local, local_path, read_whole
from shardwise.storage.write import write_whole

_logger = logging.getLogger("shardwise")


class ManifestBuilder:
    """Collects shards and writes the file, to a path or a URL. Keeps numbers, and no index."""

    def __init__(self, path: str, *, options: StorageOptions | None = None) -> None:
        require_manifest_name(path)
        self.path = local_path(path) if is_local(path) else path
        self._options = options
        self._urls: list[str] = []
        self._names: list[str] = []
        # A shard's samples, bytes, tag, digest and bytes of its index.
        self._numbers: list[tuple[int, int, int, int, int]] = []
        self._fields: dict[str, None] = {}
        self._key_lengths: set[int | None] = set()
        self._has_digests = False
        self._removed: dict[int, tuple[int, ...]] = {}
        self._num_unfinished = 0
        self._num_queries = 0

    def add(self, url: str, index: ShardIndex, stat: FileStat) -> None:
        """Append a shard."""
        header = index.header
        self._names.append(self._name(url))
        self._urls.append(url)
        digest, index_bytes = index.content_digest(), len(index.to_bytes())
        self._numbers.append(
            (header.num_samples, stat.num_bytes, tag_of(stat), digest, index_bytes)
        )
        self._removed[len(self._removed)] = header.removed
        self._fields.update(dict.fromkeys(header.fields))
        if header.num_samples:
            self._key_lengths.add(header.key_length)
        self._has_digests = self._has_digests or header.has_digests
        self._num_unfinished += not header.has_end

    def write(self, *, keep: bool = False) -> Manifest:
        """Write the file, whole or not at all, and `keep` another one that is there as a version.

        Returns the manifest that it holds.
        """
        if len(set(self._names)) < len(self._names):
            twice = Counter(self._names).most_common(1)[0][0]
            raise ValueError(
                f"two shards are called {shown(twice)!r}: a manifest keeps no query of a URL, and "
                "no shard twice"
            )
        if self._num_queries:
            _logger.warning(
                "the queries of %d URLs are not kept in %s: signatures run out. Its readers "
                "need credentials of the store",
                self._num_queries, shown(self.path),
            )  # fmt: skip
        samples, lengths, tags, digests, index_bytes = zip(*self._numbers, strict=True)
        manifest = Manifest.of_columns("tar", self._urls, np.array(samples), np.array(lengths))
        one_length = len(self._key_lengths) == 1
        content = ManifestFile(
            fingerprint=manifest.fingerprint,
            names=self._names,
            samples=manifest.sizes,
            lengths=manifest.shard_bytes,
            tags=np.array(tags, np.uint64),
            index_digests=np.array(digests, np.uint64),
            index_bytes=np.array(index_bytes, np.int64),
            fields=tuple(self._fields),
            key_length=next(iter(self._key_lengths)) if one_length else None,
            has_digests=self._has_digests,
            num_unfinished=self._num_unfinished,
            removed=manifest.ids_of(self._removed),
        )
        data = encode(content)
        with suppress(MissingShardError):
            before = read_whole(self.path, options=self._options) if keep else b""
            if before:
                old = decode(before, path=self.path)
                data = encode(replace(content, history=old.history))
                if data != before:
                    number = len(old.history) + 1
                    write_whole(version_path(self.path, number), before, options=self._options)
                    data = encode(replace(content, history=(*old.history, old.fingerprint)))
        write_whole(self.path, data, options=self._options)
        return manifest

    def _name(self, url: str) -> str:
        if is_local(url):
            if not is_local(self.path):
                raise ValueError(
                    f"the shard {shown(url)!r} is a file of this machine, and a manifest at "
                    f"{shown(self.path)!r} is for all: give the shards' URLs there"
                )
            path = os.path.abspath(local_path(url))  # noqa: PTH100 - the text, without links
            base = f"{os.path.dirname(os.path.abspath(self.path)).rstrip('/')}/"  # noqa: PTH100, PTH120
        else:
            path = without_query(url)
            if path != url:
                self._num_queries += 1
                if not path.endswith(".tar"):
                    raise ValueError(
                        f"the query of {shown(url)!r} may name the shard, or be a signature, and "
                        "is not kept: give shards whose paths name them"
                    )
            base = without_query(self.path)
            base = base[: base.rfind("/") + 1]
        name = path.removeprefix(base) if path.startswith(base) else path
        if name != path and not _is_placed(name, base, path):
            # Such as a name that starts with "~", or that looks like a URL.
            name = path
        if not is_local(url) and shown(name) != name:
            raise ValueError(
                f"{shown(url)!r} has a user or a password in it, which a manifest does not keep: "
                "write the manifest beside its shards, or give them as the store's credentials"
            )
        return name


def _is_placed(name: str, base: str, path: str) -> bool:
    """Whether a relative name is read back as the path that it stands for."""
    try:
        return place_of(name, base) == path
    except DataError:
        return False


def merge_indexes(path: str, urls: Iterable[str], *, store: IndexStore) -> Manifest:
    """Write a manifest file of shards whose indexes are there and fit them, as a new version."""
    builder = ManifestBuilder(path, options=store.options)
    for url in urls:
        stat = store.stat(url)
        index = store.valid(url, stat)
        if index is None:
            raise DataError(
                "the shard has no index that fits: make it with "
                f"`{store.command} {in_command(url)}`",
                url=url,
            )
        builder.add(url, index, stat)
    return builder.write(keep=True)


def manifest_path(pattern: str) -> str:
    """The manifest's path for a pattern of shards: its text up to the number, else a plain name.

    >>> manifest_path("out/train-{shard:06d}.tar"), manifest_path("out/{shard}.tar")
    ('out/train.swm', 'out/manifest.swm')
    """
    parts = [text for text, _, _, _ in string.Formatter().parse(pattern)]
    directory, slash, name = parts[0].removesuffix(".tar").rpartition("/")
    return f"{directory}{slash}{name.rstrip('-_.') or 'manifest'}.swm"


def require_manifest_name(path: str) -> None:
    """Raise ValueError for a name that `sw.tar` would not take for a manifest's."""
    if not is_manifest_file(path):
        raise ValueError(f"a manifest's name must end in '.swm', and {shown(path)!r} does not")
