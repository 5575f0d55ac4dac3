"""Writing tar shards: whole or not at all, the same bytes for the same samples.

A shard has a hidden temporary name until it is finished, so a killed process leaves no shard that a
later run would trust. A remote one is a temporary file of this machine until then. Headers are made
by the standard library's tarfile.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shardwise.base.arguments import check_number, path_text, suggest_names
from shardwise.base.errors import StorageError
from shardwise.base.plugins import find
from shardwise.base.shown import shown
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import ManifestBuilder, manifest_path
from shardwise.sources.tar.scan.headers import BLOCK, round_up
from shardwise.sources.tar.scan.names import MAX_FIELDS
from shardwise.sources.tar.sidecar import Sidecar
from shardwise.sources.tar.write.encode import encode_sample
from shardwise.sources.tar.write.partial_shard import (
    END,
    Member,
    PartialShard,
    header,
    refuse_existing,
)
from shardwise.storage import StorageOptions, is_local, local_path
from shardwise.storage.write import sweep


@suggest_names
class TarWriter:
    """Writes samples into tar shards, with an index beside each.

    A sample is a dict: "__key__" and one entry per field, named by its extension without the dot.
    Bytes are written as they are. A str becomes UTF-8, an int or a float its digits; a dict or a
    list becomes JSON in a field that ends in `json`, an array or a tensor npy in one that ends in
    `npy`; a Pillow image or an array of pixels becomes a picture in one that ends in `jpg` or
    `webp` (quality 95) or `png`. Nothing else is encoded.

    Members stand sorted by field, with neither times nor owners: the same samples in the same
    order give the same bytes, whatever the order of the dicts. Names that do not fit into a ustar
    header get a PAX one.

    A shard takes its name when it is full or the writer is closed. An exception inside the `with`
    block removes the shard that is being written; finished ones stay. The writer remembers all
    keys, to refuse a second sample of the same key: about 100 bytes per sample. It belongs to one
    thread.

    Args:
        pattern: the shards' paths, such as "out-{shard:06d}.tar", or URLs, such as
            "s3://bucket/out-{shard:06d}.tar"; WebDataset's "out-%06d.tar" means the same. Without
            a number, one shard. Directories that are missing are made; in the first shard's, what
            killed writers of this machine left behind is removed.
        max_samples: samples per shard; None for no limit.
        max_bytes: bytes per shard, headers and padding included; None for no limit. A larger sample
            gets its own shard.
        index: whether to write an index file beside each shard.
        digests: whether the index holds a CRC-32 of each field.
        media: whether a sidecar beside each shard lists where the frames of its videos and sounds
            lie, so that clips are read by ranges. Media that can't be used are refused.
        overwrite: whether shards that exist are replaced. Shards of an earlier run with higher
            numbers stay.
        storage: how remote shards are reached, as `shardwise.tar` takes it.
        manifest: whether to write a manifest file of all shards when the writer is closed, which
            `shardwise.tar` opens without a look at each shard: its path, or True for the pattern's
            name without the number ("out/train-{shard:06d}.tar" gives "out/train.swm"). An
            exception leaves none; it lists this writer's shards only.

    A remote shard is collected in a temporary file without a name, in `tempfile`'s directory, and
    uploaded when it is finished, in parts above 512 MiB; its index follows. Two programs that
    upload the same name at once are not kept apart.

    Attributes:
        shards: the paths or URLs of the finished shards.
        num_samples: samples written so far.
        manifest: the path or URL of the manifest file; None without one.

    Examples:
        >>> import shardwise as sw
        >>> with sw.TarWriter("train-{shard:06d}.tar", max_samples=1000) as writer:
        ...     writer.write({"__key__": "0001", "txt": "a cat", "cls": 3})
        >>> writer.shards
        ['train-000000.tar']

    Raises:
        FileExistsError: a shard or the manifest exists already.
        ValueError: limits, the pattern or the manifest's name make no sense.
        StorageError: the disk or the store does not take the bytes.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        max_samples: int | None = None,
        max_bytes: int | None = None,
        index: bool = True,
        digests: bool = False,
        media: bool = False,
        overwrite: bool = False,
        storage: StorageOptions | Mapping[str, Any] | None = None,
        manifest: bool | str | os.PathLike[str] = False,
    ) -> None:
        for name, limit in (("max_samples", max_samples), ("max_bytes", max_bytes)):
            if limit is not None:
                check_number(name, limit, least=1)
        self.shards: list[str] = []
        self.num_samples = 0
        text = path_text("pattern", pattern)
        self._pattern = _with_braces(local_path(text) if is_local(text) else text)
        self._options = StorageOptions.of(storage)
        self._store = IndexStore(options=self._options)
        self._max_samples = max_samples
        self._max_bytes = max_bytes
        self._index = index
        self._digests = digests
        if media and not index:
            raise ValueError("media=True needs index=True: the sidecar belongs to the index")
        self._sidecar: Sidecar | None = find("sidecars", "media") if media else None
        # The sidecar's blocks for the samples of the shard under way.
        self._blocks: list[dict[str, bytes]] = []
        self._overwrite = overwrite
        self._keys: set[str] = set()
        # The fields of the shard under way.
        self._fields: Set[str] = frozenset()
        self._shard: PartialShard | None = None
        self._closed = False
        _check_pattern(self._pattern)
        self._builder: ManifestBuilder | None = None
        if manifest is not False:
            file = manifest_path(self._pattern) if manifest is True else manifest
            self._builder = ManifestBuilder(path_text("manifest", file), options=self._options)
        self.manifest = None if self._builder is None else self._builder.path
        if not overwrite:
            for target in filter(None, (self._path(0), self.manifest)):
                refuse_existing(target, self._options)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample.

        A sample that is refused leaves the writer as it was. After any other error the writer is
        closed and the shard under way is removed.

        Raises:
            ValueError: the key was written before, the key or a field can't be read back as it is,
                a shard would have more fields than are read, or a second shard is needed and the
                pattern has no `{shard}`.
            DataError: the shard can't be read back, for another reason; it was removed. Or, with
                `media`, a media file can't be used.
            TypeError: a value is of a type that is not written.
            FileExistsError: the next shard exists already.
            StorageError: the disk does not take the bytes.
        """
        if self._closed:
            raise ValueError("the writer is closed")
        key, members = encode_sample(sample)
        self._write_members(key, members, self._blocks_of(key, members))

    def _blocks_of(self, key: str, members: Sequence[tuple[str, bytes]]) -> dict[str, bytes] | None:
        """The sidecar's blocks for an encoded sample; None without a sidecar."""
        return None if self._sidecar is None else self._sidecar.encode_sample(key, members)

    def _write_members(
        self, key: str, members: Sequence[tuple[str, bytes]], blocks: dict[str, bytes] | None
    ) -> None:
        if key in self._keys:
            raise ValueError(f"the key {key!r} was written before: keys must differ in all shards")
        parts: list[bytes] = []
        placed: list[Member] = []
        at = 0
        for name, data in members:
            head, size = header(name, len(data)), len(data)
            parts += (head, data, bytes(-size % BLOCK))
            at += len(head)
            placed.append((name.encode(), at, size))
            at += round_up(size)
        fields = {name[len(key) + 1 :] for name, _ in members}
        self._append(b"".join(parts), placed, [key], fields, blocks)

    def _append(
        self,
        data: bytes | memoryview,
        members: Sequence[Member],
        keys: Sequence[str],
        fields: Set[str],
        blocks: Any = None,
    ) -> None:
        goes_on = self._shard is not None and self._fits(self._shard, len(data))
        fields = self._fields | fields if goes_on else fields
        if len(fields) > MAX_FIELDS:
            raise ValueError(
                f"the sample {keys[0]!r} is the first with which the shard has {len(fields)} "
                f"different fields, and at most {MAX_FIELDS} are read: give like values like names"
            )
        try:
            if self._shard is not None and not goes_on:
                self._finish_shard(self._shard)
            if self._shard is None:
                self._shard = self._open_shard()
            self._shard.add(data, members, num_samples=len(keys))
            if blocks is not None:
                self._blocks.append(blocks)
            self._fields = fields
            self._keys.update(keys)
            self.num_samples += len(keys)
            if self._shard.num_samples == self._max_samples:
                self._finish_shard(self._shard)
        except BaseException as error:
            # Half a sample may be in the shard, also after a KeyboardInterrupt.
            self._abort(error)
            raise

    def close(self) -> None:
        """Finish the last shard, then the manifest. Without samples there is neither."""
        was_closed, self._closed = self._closed, True
        if self._shard is not None:
            self._finish_shard(self._shard)
        if self._builder is not None and self.shards and not was_closed:
            self._builder.write()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._abort(error)

    def _fits(self, shard: PartialShard, num_bytes: int) -> bool:
        if self._max_bytes is None:
            return True
        return shard.num_bytes + num_bytes + len(END) <= self._max_bytes

    def _path(self, number: int) -> str:
        return self._pattern.format(shard=number)

    def _open_shard(self) -> PartialShard:
        path = self._path(len(self.shards))
        if path in self.shards:
            raise ValueError(
                f"a second shard is needed, and the pattern {shown(self._pattern)!r} names one "
                "only: put {shard:06d} into it, or leave out max_samples and max_bytes"
            )
        if is_local(path) and not self.shards:
            sweep(Path(path).parent)
        return PartialShard(path, overwrite=self._overwrite, options=self._options)

    def _finish_shard(self, shard: PartialShard) -> None:
        self._shard = None
        index = shard.finish(digests=self._digests)
        self.shards.append(shard.path)
        if not is_local(shard.path) and (self._index or self._builder is not None):
            # The store gives the object its own version.
            stat = self._store.stat(shard.path)
            index = index.of_version(stat.mtime_ns, stat.etag)
        if self._builder is not None:
            self._builder.add(shard.path, index, index.header.stat)
        if not self._index:
            return
        try:
            _, note = self._store.publish(shard.path, index)
        except OSError as error:
            raise StorageError(
                f"the shard {shard.path!r} is whole, but its index can't be written: "
                f"{error.strerror or error}"
            ) from error
        if note:
            raise StorageError(f"the shard {shard.path!r} is whole, but {note}")
        if self._sidecar is not None:
            samples, self._blocks = self._blocks, []
            self._sidecar.publish(shard.path, index, samples, store=self._store)

    def _abort(self, error: BaseException) -> None:
        self._closed = True
        if self._shard is not None:
            self._shard.remove(error)
            self._shard = None


def _with_braces(pattern: str) -> str:
    """Replace "%06d" of printf by a brace; "%20d" stands for a space and a "d" in a URL."""
    if "{" in pattern:
        return pattern
    return re.sub(r"%(0[1-9][0-9]?|[1-9]?)d(?![A-Za-z])", r"{shard:\1d}", pattern)


def _check_pattern(pattern: str) -> None:
    """Refuse a pattern that names no tar file, or has other braces than {shard}."""
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
        first = pattern.format(shard=0) if names <= {"shard"} else None
    except (ValueError, LookupError):
        first = None
    if first is None:
        raise ValueError(
            f"the pattern {shown(pattern)!r} has other braces than {{shard}} or {{shard:06d}}; "
            "write {{ and }} for braces that are part of the name"
        )
    if not first.endswith(".tar"):
        raise ValueError(
            f"the pattern {shown(pattern)!r} must end in '.tar': that is what is written"
        )
