"""The members of a tar that is read as a stream, and the samples that they make.

Keeps I6: the library's scan follows the chain of headers and holds every checksum; damage, a cut,
and data after the end are errors that name url, key and offset. Compressed tars are unpacked. A
sample is yielded when the next one starts, so half a sample is never yielded.
"""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.base.errors import DataError
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.sources.tar.scan.byte_source import StreamBytes
from shardwise.sources.tar.scan.members import scan_members, warn_of_lost
from shardwise.sources.tar.scan.walk import HeaderScan, Scan
from shardwise.storage import LocalFile

Member = tuple[str, bytes]
_logger = logging.getLogger("shardwise")

# Decompressors of a stream, by its first bytes.
_COMPRESSIONS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_MAGIC_BYTES = 6
_UNPACK_ERRORS = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class DamagedShardError(DataError, tarfile.ReadError):
    """A shard that is damaged or cut short; `tarfile.ReadError` is what WebDataset raised."""

    __str__ = DataError.__str__


@dataclass(eq=False, repr=False)
class TarStream:
    """The names and payloads of a tar's regular members, many at a time; iterated once.

    After the iteration, `has_end` is whether the shard ended in a block of zeros. A damaged or
    cut shard raises a `DamagedShardError`, after all members before the damage.
    """

    stream: Any
    url: str
    has_end: bool = field(default=True, init=False)

    def __iter__(self) -> Iterator[list[Member]]:
        unpacked = Unpacked(self.stream)
        source = StreamBytes(unpacked, unpacked.earlier)
        scan = HeaderScan(source, url=self.url)
        ignored: Counter[str] = Counter()
        try:
            for members in scan_members(scan, ignored):
                if scan.removed:
                    members = members.take(~np.isin(members.offsets, scan.removed))
                # numpy's strings end at the first zero, as names do.
                raw = members.names.view(f"S{members.names.shape[1]}")[:, 0].tolist()
                payloads = source.read_many(members.offsets.tolist(), members.sizes.tolist())
                names = [name.decode("utf-8", "surrogateescape") for name in raw]
                yield list(zip(names, payloads, strict=True))
                source.release(scan.position)
        except DataError as error:
            if unpacked.problem is None:
                place = {name: getattr(error, name) for name in ("url", "key", "field", "offset")}
                raise DamagedShardError(error.reason, **place) from error
        if unpacked.problem is not None:
            raise DamagedShardError(
                f"the compressed shard is damaged or cut short: {unpacked.problem!r}",
                url=self.url,
                offset=unpacked.num_bytes,
            ) from unpacked.problem
        self.has_end = scan.has_end
        warn_of_lost(ignored, self.url)


class Unpacked:
    """A stream, unpacked; it ends with a `problem`. `earlier` rereads an uncompressed file."""

    def __init__(self, stream: Any) -> None:
        self.problem: Exception | None = None
        self.num_bytes = 0
        self.earlier = _Earlier(stream, stream.tell()) if _is_seekable(stream) else None
        start = stream.read(_MAGIC_BYTES)
        while 0 < len(start) < _MAGIC_BYTES and (more := stream.read(_MAGIC_BYTES - len(start))):
            start += more
        self._stream: Any = _Rest(start, stream)
        for magic, unpack in _COMPRESSIONS.items():
            if start.startswith(magic):
                self._stream = unpack(self._stream)
                self.earlier = None

    def read(self, size: int, /) -> bytes:
        # `read` of a cut compressed stream would lose what was unpacked before the cut.
        read = getattr(self._stream, "read1", None) or self._stream.read
        try:
            data: bytes = read(size)
        except _UNPACK_ERRORS as error:
            self.problem = error
            return b""
        self.num_bytes += len(data)
        return data


def _is_seekable(stream: Any) -> bool:
    seekable = getattr(stream, "seekable", None)
    return seekable is not None and bool(seekable())


class _Earlier:
    """The bytes of a stream by their offset from a start; the stream continues where it was."""

    def __init__(self, stream: Any, start: int) -> None:
        self._stream, self._start = stream, start

    def read(self, offset: int, length: int, /) -> bytes:
        position = self._stream.tell()
        self._stream.seek(self._start + offset)
        parts = []
        while length and (part := self._stream.read(length)):
            parts.append(part)
            length -= len(part)
        self._stream.seek(position)
        return b"".join(parts)


class _Rest:
    def __init__(self, start: bytes, stream: Any) -> None:
        self._start = start
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        if not self._start:
            return bytes(self._stream.read(size))
        start, self._start = self._start[:size], self._start[size:]
        return start


def check_tar_format(fname: str) -> bool:
    """Whether a file is a whole tar: every header is sound, every member and the end are there."""
    return why_no_tar(fname) is None


def why_no_tar(fname: str) -> str | None:
    with open(fname, "rb") as file:
        tar: TarStream | Scan
        if file.read(_MAGIC_BYTES).startswith(tuple(_COMPRESSIONS)):
            file.seek(0)
            tar = TarStream(file, fname)
            parts: Iterator[Any] = iter(tar)
        else:
            # The headers alone take 0.04 s of CPU a GB; with the payloads it is 2 s.
            tar = Scan(LocalFile(fname), Path(fname).stat().st_size, url=fname)
            parts = tar.runs()
        try:
            for _ in parts:
                pass
        except (DataError, OSError) as error:
            # OSError: raised by bz2 for damaged data.
            return str(error)
    return None if tar.has_end else "it ends without the blocks of zeros of a tar: cut short"


# WebDataset's `skip_meta`: names that are for programs, and not for samples.
SKIPPED = r"__[^/]*__($|/)"


def base_plus_ext(path: str) -> tuple[str | None, str | None]:
    """Split a name into key and field at the first dot of its last part.

    The result is (None, None) without a dot, or if the name starts with it.

    >>> base_plus_ext("train/0001.seg.png")
    ('train/0001', 'seg.png')
    """
    start = path.rfind("/") + 1
    dot = path.find(".", start)
    if dot <= start:
        return None, None
    return path[:dot], path[dot + 1 :]


def is_metadata(name: str, pattern: str | None = SKIPPED) -> bool:
    """Whether a name is kept for programs: `__x__`, or in a directory of that form."""
    is_marked = name.startswith("__") and name.endswith("__") and "/" not in name
    return is_marked or (pattern is not None and re.match(pattern, name) is not None)


def chosen(
    members: Iterable[Member],
    select_files: Callable[[str], Any] | None,
    rename_files: Callable[[str], str] | None,
    handler: Callable[[Exception], Any] = reraise_exception,
    skip_meta: str | None = SKIPPED,
) -> Iterator[Member]:
    """The members that are not for programs, renamed, and then selected by their new names."""
    for name, payload in members:
        if is_metadata(name, skip_meta):
            continue
        try:
            renamed = name if rename_files is None else rename_files(name)
            is_wanted = select_files is None or select_files(renamed)
        # The user's functions may raise anything; the handler decides what happens.
        except Exception as error:  # noqa: BLE001
            if handler(error):
                continue
            return
        if is_wanted:
            yield renamed, payload


@dataclass(eq=False, repr=False)
class ShardSamples:
    """The samples of one shard, made of its members as they come; `about` goes into each."""

    about: dict[str, Any]
    handler: Callable[[Exception], Any] = reraise_exception
    sample: dict[str, Any] | None = field(default=None, init=False)
    is_stopped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        # The fields of the samples that came out, by key; and the fields that all of them had.
        self._seen: dict[str, tuple[str, ...]] = {}
        self._common: set[str] | None = None

    @property
    def has_any(self) -> bool:
        return bool(self._seen)

    def add(self, members: Iterable[Member]) -> Iterator[dict[str, Any]]:
        """Add members; yield the samples that are complete."""
        sample = self.sample
        key = None if sample is None else sample["__key__"]
        for name, payload in members:
            base, _, field = name.partition(".")
            if not field or "/" in field or not base or base[-1] == "/" or base[:2] == "__":
                split = base_plus_ext(name)
                if is_metadata(name) or not split[0] or not split[1]:
                    continue
                base, field = split[0], split[1]
            field = field.lower()
            if sample is not None and base == key and field not in sample:
                sample[field] = payload
                continue
            if (done := self.put(base, field, payload)) is not None:
                yield done
            if self.is_stopped:
                return
            key, sample = base, self.sample

    def put(
        self, key: str, field: str, payload: bytes, *, is_wanted: bool = True
    ) -> dict[str, Any] | None:
        """Add one member; return the sample that it completes, if any."""
        sample = self.sample
        if sample is not None and key == sample["__key__"]:
            if field in sample:
                self._ask("the sample has two members for one field", key, field)
                return sample if self.is_stopped else None
            done = None
        else:
            done = sample if sample is not None and self._is_sound(sample) else None
            sample = self.sample = {"__key__": key, **self.about}
        if is_wanted:
            sample[field] = payload
        return done

    def finish(self, *, has_end: bool = True) -> Iterator[dict[str, Any]]:
        """The last sample; of a shard without an end, if it has what all others have."""
        if self.sample is None:
            return
        sample = self.sample
        if not has_end:
            missing = (self._common or set()) - sample.keys()
            if missing:
                raise DamagedShardError(
                    f"the shard has no end, and its last sample lacks {sorted(missing)}, which all "
                    "others have: it was cut short",
                    url=sample["__url__"],
                    key=sample["__key__"],
                )
            _logger.warning(
                "%s has no end (two blocks of zeros): it may have been cut between two samples",
                sample["__url__"],
            )
        self.sample = None
        if self._is_sound(sample):
            yield sample

    def may_have(self, key: str | None) -> bool:
        """Whether a member of this key, or of an unknown one, is of the sample under way."""
        return self.sample is None or key in (None, self.sample["__key__"])

    def _ask(self, reason: str, key: str, field: str | None = None) -> None:
        error = DamagedShardError(reason, url=self.about["__url__"], key=key, field=field)
        self.is_stopped = not self.handler(error)

    def _is_sound(self, sample: dict[str, Any]) -> bool:
        """Whether a sample is whole, as far as those before it tell."""
        key = sample["__key__"]
        fields = tuple(sample)[1 + len(self.about) :]
        before = self._seen.setdefault(key, fields)
        if before is not fields and fields and not set(before) & set(fields):
            # Two whole samples may share a key; what has no field in common is two parts of one.
            self._ask(
                f"members of one key stand apart in the shard ({list(before)}, then "
                f"{list(fields)}): each part would be half a sample; pack the shard again with "
                "its members sorted by name (`tar --sort=name`)",
                key,
            )
            return False
        if self._common is None:
            self._common = set(fields)
        elif len(self._common) != len(fields) or not self._common.issuperset(fields):
            self._common &= set(fields)
        return True
