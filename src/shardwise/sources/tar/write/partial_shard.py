"""A shard that is being written: no file has its name before it is whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import MissingShardError, ShardwiseError, StorageError
from shardwise.shown import shown
from shardwise.sources.tar.index.build import with_digests
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.sources.tar.scan.headers import BLOCK
from shardwise.sources.tar.write.written_index import Member, WrittenIndex
from shardwise.storage import FileStat, StorageOptions, atomic_write, is_local, open_file
from shardwise.storage.stores.upload import upload

__all__ = ["END", "LocalShard", "RemoteShard", "refuse_existing"]

# A tar ends with two blocks of zeros. Padding to 10 KiB is for tapes, and is left out.
END = bytes(2 * BLOCK)
# The disk begins to write after this many bytes, so that the flush at the end waits for the last
# ones only.
_WRITEBACK_BYTES = 8 << 20
# Aligned writes of 64 KiB: with 1 MiB a call, ext4 on Linux 6.18 took 0.5 to 1.8 CPU seconds for
# 1,000 MB, and with 64 KiB always 0.5.
_WRITE_BYTES = 64 << 10


class LocalShard:
    """A shard that is being written, under a temporary name."""

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self.path = path
        self.num_samples = 0
        self.num_bytes = 0
        self._num_sent = 0
        self._at = 0
        self._index = WrittenIndex(path)
        self._stack = contextlib.ExitStack()
        with _naming(path):
            self._file = self._open(overwrite=overwrite)

    @property
    def _partial_path(self) -> str:
        """Where the bytes can be read before the shard has its name."""
        return str(self._file.name)

    def _open(self, *, overwrite: bool) -> Any:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a process forked meanwhile would flush buffered bytes a second time.
        writing = atomic_write(self.path, buffering=0, overwrite=overwrite, fsync=False)
        return self._stack.enter_context(writing)

    def add(self, data: bytes | memoryview, members: Sequence[Member], *, num_samples: int) -> None:
        """Write the members of samples, whose offsets count from the first byte of `data`."""
        self._write(data)
        self._index.add(members, self.num_bytes)
        self.num_samples += num_samples
        self.num_bytes += len(data)
        if self.num_bytes - self._num_sent >= _WRITEBACK_BYTES:
            self._begin_writeback()

    def finish(self, *, digests: bool) -> ShardIndex:
        """Give the shard its name, if it can be indexed.

        Returns:
            Its index.
        """
        try:
            self._write(END)
            with _naming(self.path):
                # Before the index takes the time: a network file system sets it with the data.
                os.fsync(self._file.fileno())
                status = os.fstat(self._file.fileno())
            index = self._index.finish(FileStat(status.st_size, status.st_mtime_ns))
            if digests:
                index = with_digests(index, open_file(self._partial_path))
            self._publish()
        except BaseException as error:
            self.remove(error)
            raise
        return index.renamed(Path(self.path).name)

    def remove(self, error: BaseException) -> None:
        """Remove the partial shard, because of an error."""
        self._stack.__exit__(type(error), error, error.__traceback__)

    def _publish(self) -> None:
        with _naming(self.path):
            self._stack.close()

    def _begin_writeback(self) -> None:
        """Let the disk write what was added, while more is made."""
        # Of pages that are dirty, Linux begins to write them; they stay cached meanwhile.
        length = self.num_bytes - self._num_sent
        os.posix_fadvise(self._file.fileno(), self._num_sent, length, os.POSIX_FADV_DONTNEED)
        self._num_sent = self.num_bytes

    def _write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        with _naming(self.path):
            while rest:
                done = self._file.write(rest[: _WRITE_BYTES - self._at % _WRITE_BYTES])
                rest, self._at = rest[done:], self._at + done


class RemoteShard(LocalShard):
    """A shard for a store: a nameless file of this machine until it is uploaded whole."""

    def __init__(self, url: str, *, overwrite: bool, options: StorageOptions) -> None:
        self._overwrite = overwrite
        self._options = options
        if not overwrite:
            refuse_existing(url, options)
        super().__init__(url, overwrite=False)

    @property
    def _partial_path(self) -> str:
        return f"/proc/self/fd/{self._file.fileno()}"

    def _open(self, *, overwrite: bool) -> Any:  # noqa: ARG002 - the store is asked
        # The system removes a nameless file when this process is killed.
        return self._stack.enter_context(tempfile.TemporaryFile(buffering=0))

    def _publish(self) -> None:
        """Put the shard into the store."""
        with self._stack:
            if not self._overwrite:
                refuse_existing(self.path, self._options)
            upload(self.path, Path(self._partial_path), options=self._options)


def refuse_existing(url: str, options: StorageOptions) -> None:
    """Raise FileExistsError if there is a file under a path or URL."""
    if is_local(url):
        exists = Path(url).exists()
    else:
        try:
            open_file(url, options=replace(options, cache=None)).stat()
            exists = True
        except MissingShardError:
            exists = False
    if exists:
        raise FileExistsError(f"{shown(url)!r} exists already: remove it, or pass overwrite=True")


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turn an error of the operating system into one that names the shard."""
    try:
        yield
    except (FileExistsError, ShardwiseError):
        raise
    except OSError as error:
        raise StorageError(
            f"can't write the shard {path!r}: {error.strerror or error}; it was removed, the "
            "shards before it are whole"
        ) from error
