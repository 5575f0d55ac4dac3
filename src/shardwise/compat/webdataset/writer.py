"""Writing samples into a row of tar shards: `ShardWriter`, and the names of WebDataset's module."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, Self

from shardwise.compat.webdataset.encoders import (
    add_handlers,
    bytestr,
    cbor_dumps,
    default_handlers,
    encode_based_on_extension,
    encode_based_on_extension1,
    imageencoder,
    make_encoder,
    make_handlers,
    mp_dumps,
    numpy_dumps,
    numpy_npz_dumps,
    tenbin_dumps,
    torch_dumps,
)
from shardwise.compat.webdataset.tar_writer import TarWriter


class ShardWriter:
    """Writes samples into a row of tars, each up to a number of samples or bytes.

    Args:
        pattern: the names, with a place for the number, such as "out-%06d.tar".
        maxcount: samples a shard.
        maxsize: bytes of fields a shard.
        post: called with each shard's name when it is whole.
        start_shard: the first number.
        verbose: say on the standard error which shard is begun.
        opener: of a name, a stream to write to, which is closed at the end of the shard.
        **kw: for `TarWriter`.

    Attributes:
        fname: the name of the shard under way.
        shard: the next number.
        count: samples in the shard under way.
        size: bytes in it.
        total: samples in all shards.
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
        self.verbose = verbose
        self.kw = kw
        self.maxcount = maxcount
        self.maxsize = maxsize
        self.post = post
        self.tarstream: TarWriter | None = None
        self.shard = start_shard
        self.pattern = os.fspath(pattern)
        self.total = 0
        self.count = 0
        self.size = 0
        self.fname: str | None = None
        self.opener = opener
        self._opened: Any = None
        self.next_stream()

    def next_stream(self) -> None:
        """End the shard under way and begin the next."""
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
            target = self._opened = self.opener(self.fname)
        self.tarstream = TarWriter(target, **self.kw)
        self.count = 0
        self.size = 0

    def write(self, obj: dict[str, Any]) -> None:
        """Write a sample."""
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
        tarstream, self.tarstream = self.tarstream, None
        tarstream.close()
        self._close_opened()
        if callable(self.post):
            assert self.fname is not None
            self.post(self.fname)

    def _close_opened(self) -> None:
        """Close what the opener opened: until then a store may not have it."""
        opened, self._opened = self._opened, None
        # What is in memory only is still there for whoever made it.
        if opened is not None and not isinstance(opened, io.BytesIO):
            opened.close()

    def close(self) -> None:
        """End the last shard."""
        self.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        elif self.tarstream is not None:
            tarstream, self.tarstream = self.tarstream, None
            tarstream.abort(error)
            self._close_opened()
