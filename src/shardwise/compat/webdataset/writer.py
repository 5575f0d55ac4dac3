"""Writing samples into a row of tar shards: `ShardWriter`, and the names of WebDataset's module."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import sys
import tarfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from shardwise.compat.webdataset import utils
from shardwise.compat.webdataset.encoders import *  # noqa: F403 - its names are this module's
from shardwise.compat.webdataset.encoders import make_encoder
from shardwise.compat.webdataset.gopen import gopen, local_name, rewrite_url
from shardwise.extensions.remote.streams import Upload
from shardwise.storage import atomic_write

_PACKERS: dict[str, Any] = {
    # Without a name and a time in its header.
    "gz": lambda stream: gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0),
    "bz2": partial(bz2.BZ2File, mode="wb"),
    "xz": partial(lzma.LZMAFile, mode="wb"),
}


@dataclass(eq=False, repr=False)
class TarWriter:
    """Writes samples into one tar.

    Members stand sorted by field, with `user`, `group`, `mode` and `mtime` (seconds; None for 0).

    Args:
        fileobj: a path or URL, as `gopen` takes it, or a stream, which stays open.
        compress: True or "gz", "bz2" or "xz"; False for none; None for what the name ends in.
        encoder: True encodes values by the extensions of their fields; False or None takes bytes
            only; a dict of encoders by extension; or a function of a sample.
        format: of `tarfile`; None for USTAR, with PAX headers where a name or a size does not fit.
    """

    fileobj: InitVar[Any]
    user: str = "bigdata"
    group: str = "bigdata"
    mode: int = 0o0444
    compress: bool | str | None = None
    encoder: Any = True
    keep_meta: bool = False
    mtime: float | None = None
    format: InitVar[Any] = None

    def __post_init__(self, fileobj: Any, format: Any) -> None:  # noqa: A002 - WebDataset's name
        self._closing: contextlib.ExitStack | None = None
        self.encoder = make_encoder(self.encoder)
        self._may_use_pax = format is None
        tar_format = getattr(tarfile, format) if isinstance(format, str) else format
        # The key of the last sample, and its fields.
        self._last_key: str | None = None
        self._last_fields: set[str] = set()
        if isinstance(fileobj, os.PathLike):
            fileobj = os.fspath(fileobj)
        pack = _packer(fileobj, self.compress)
        with contextlib.ExitStack() as stack:
            if isinstance(fileobj, str):
                fileobj = stack.enter_context(_open_target(fileobj))
            self.stream = fileobj
            packed = stack.enter_context(pack(fileobj))
            self.tarstream = stack.enter_context(
                tarfile.open(fileobj=packed, mode="w|", format=tar_format or tarfile.USTAR_FORMAT)
            )
            self._closing = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort(error)

    def close(self) -> None:
        self.abort(None)

    def abort(self, error: BaseException | None) -> None:
        """Abort because of an error: a local tar is removed."""
        if self._closing is not None:
            closing, self._closing = self._closing, None
            closing.__exit__(type(error) if error else None, error, None)

    def __del__(self) -> None:
        # It was not closed, so it may not be whole.
        if getattr(self, "_closing", None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self.abort(RuntimeError("the writer was not closed"))

    def write(self, obj: dict[str, Any]) -> int:
        if self._closing is None:
            raise ValueError("the writer is closed")
        obj = self.encoder(obj)
        if "__key__" not in obj:
            raise ValueError(f"object must contain a __key__; this one has {sorted(obj)}")
        key = obj["__key__"]
        if not isinstance(key, str):
            raise ValueError(f"__key__={key!r} must be a str")  # noqa: TRY004
        members = self._members(key, obj)
        self._check_key(key, [field for field, _ in members])
        for field, data in members:
            self._add(f"{key}.{field}", data)
        return sum(len(data) for _, data in members)

    def _members(self, key: str, obj: dict[str, Any]) -> list[tuple[str, bytes]]:
        members = []
        for field in sorted(obj):
            if field == "__key__" or (field.startswith("_") and not self.keep_meta):
                continue
            value = obj[field]
            if isinstance(value, str) and field.startswith("_"):
                value = value.encode("utf-8")
            if not isinstance(value, bytes | bytearray | memoryview):
                raise ValueError(  # noqa: TRY004 - WebDataset raises this
                    f"{field} of the sample {key!r} doesn't map to a bytes after encoding "
                    f"({type(value)})"
                )
            members.append((field, bytes(value)))
        return members

    def _check_key(self, key: str, fields: list[str]) -> None:
        """Refuse what no reader could read, and warn of what it reads otherwise."""
        if key != self._last_key:
            self._last_key, self._last_fields = key, set()
        twice = self._last_fields.intersection(fields)
        if twice:
            raise ValueError(
                f"the sample before this one has the key {key!r} and the field "
                f"{min(twice)!r}, too: give each sample a key of its own"
            )
        self._last_fields.update(fields)
        folder, slash, name = key.rpartition("/")
        if "." in name:
            warnings.warn(
                f"the key {key!r} has a dot: readers take it for the key "
                f"{folder + slash + name.partition('.')[0]!r}, and the rest for a part of the "
                "field",
                stacklevel=3,
            )

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        info.mtime = 0 if self.mtime is None else self.mtime
        info.mode = self.mode
        info.uname = self.user
        info.gname = self.group
        tar = self.tarstream
        if self._may_use_pax:
            tar.format = tarfile.USTAR_FORMAT
            try:
                info.tobuf(tar.format, tar.encoding, tar.errors)
            except ValueError:
                tar.format = tarfile.PAX_FORMAT
        tar.addfile(info, io.BytesIO(data))
        # tarfile remembers every member it has written.
        tar.members = []  # type: ignore[attr-defined]


def _packer(name: Any, compress: bool | str | None) -> Any:
    """The compressor of a tar, chosen by `compress`, or else by the end of its name."""
    asked = "gz" if compress is True else compress
    for ending, pack in _PACKERS.items():
        is_named = isinstance(name, str) and name.endswith(ending)
        if asked == ending or (asked is None and is_named):
            return pack
    return contextlib.nullcontext


def _open_target(url: str) -> contextlib.AbstractContextManager[Any]:
    """Open a tar's target: a local file that appears when it is whole, or what `gopen` opens."""
    is_opened = url == "-" or utils.enforce_security
    path = None if is_opened else local_name(rewrite_url(url))
    # A device or a named pipe can't be replaced by a file.
    if path is None or (Path(path).exists() and not Path(path).is_file()):
        return _close_only(gopen(url, "wb"), stays_open=url == "-")
    return atomic_write(Path(path).resolve())


@contextlib.contextmanager
def _close_only(stream: Any, *, stays_open: bool) -> Iterator[Any]:
    try:
        yield stream
    except BaseException:
        # An upload to a store is discarded; a program that takes it is left with a part.
        if not stays_open:
            (stream.discard if isinstance(stream, Upload) else stream.close)()
        raise
    (stream.flush if stays_open else stream.close)()


class ShardWriter:
    """Writes samples into a row of tars, each of `maxcount` samples or `maxsize` bytes of fields.

    Args:
        post: called with each shard's name when it is whole.
        opener: maps a name to a stream to write to, which is closed at the end of the shard.
        **kw: for `TarWriter`.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], Any] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], Any] | None = None,
        **kw: Any,
    ) -> None:
        self.pattern = os.fspath(pattern)
        self.maxcount, self.maxsize = maxcount, maxsize
        self.post, self.opener = post, opener
        self.verbose, self.kw = verbose, kw
        self.shard = start_shard
        self.total = self.count = self.size = 0
        self.fname: str | None = None
        self.tarstream: TarWriter | None = None
        self._closing = contextlib.ExitStack()
        self.next_stream()

    def next_stream(self) -> None:
        self.finish()
        try:
            self.fname = self.pattern % self.shard
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"pattern={self.pattern!r} needs one place for a number, such as %06d: {error}"
            ) from error
        if self.verbose:
            sys.stderr.write(
                f"# writing {self.fname} {self.count} {self.size / 1e9:.1f} GB {self.total}\n"
            )
        self.shard += 1
        target: Any = self.fname
        if self.opener is not None:
            target = self.opener(self.fname)
            # Until it is closed, a store may not have it; what is in memory only is kept for
            # whoever made it.
            if not isinstance(target, io.BytesIO):
                self._closing.callback(target.close)
        self.tarstream = self._closing.enter_context(TarWriter(target, **self.kw))
        self.count = 0
        self.size = 0

    def write(self, obj: dict[str, Any]) -> None:
        if self.tarstream is None or self.count >= self.maxcount or self.size >= self.maxsize:
            self.next_stream()
        assert self.tarstream is not None
        self.size += self.tarstream.write(obj)
        self.count += 1
        self.total += 1

    def finish(self) -> None:
        """End the shard under way; `close` does it, too."""
        if self.tarstream is None:
            return
        self.tarstream = None
        self._closing.close()
        if callable(self.post):
            assert self.fname is not None
            self.post(self.fname)

    def close(self) -> None:
        self.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.tarstream = None
            self._closing.__exit__(type(error), error, error.__traceback__)
