"""A shard that is being written: nothing has its name before it is whole.

Keeps I8. Imports the standard library, `shardwise.errors`, storage and the indexing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.errors import MissingShardError, ShardwiseError, StorageError
from shardwise.shown import shown
from shardwise.sources.tar.index.build import build_index
from shardwise.sources.tar.index.shard_index import ShardIndex
from shardwise.storage import StorageOptions, atomic_write, is_local, open_file
from shardwise.storage.stores.upload import upload

__all__ = ["END", "LocalShard", "RemoteShard", "refuse_existing"]

# A tar ends with two blocks of zeros; padding to 10 KiB is a habit of tapes.
END = bytes(1024)


class LocalShard:
    """A shard that is being written, under a temporary name."""

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self.path = path
        self.num_samples = 0
        self.num_bytes = 0
        self._stack = contextlib.ExitStack()
        with _naming(path):
            self._file = self._open(overwrite=overwrite)

    @property
    def _written(self) -> str:
        """Where the bytes can be read before the shard has its name."""
        return str(self._file.name)

    def _open(self, *, overwrite: bool) -> Any:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        # Without a buffer: a process forked meanwhile has no bytes of ours to write again.
        return self._stack.enter_context(atomic_write(self.path, buffering=0, overwrite=overwrite))

    def add(self, sample: bytes) -> None:
        """Write the members of a sample."""
        self._write(sample)
        self.num_samples += 1
        self.num_bytes += len(sample)

    def finish(self, *, digests: bool) -> ShardIndex:
        """Give the shard its name.

        Returns:
            Its index: what can't be read gets no name.
        """
        try:
            self._write(END)
            with _naming(self.path):
                # Or a network file system may change its time later.
                os.fsync(self._file.fileno())
            index = build_index(self._written, digests=digests)
            self._publish()
        except BaseException as error:
            self.remove(error)
            raise
        return index.renamed(Path(self.path).name)

    def remove(self, error: BaseException) -> None:
        """Remove what was written, because of an error."""
        self._stack.__exit__(type(error), error, error.__traceback__)

    def _publish(self) -> None:
        with _naming(self.path):
            self._stack.close()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        with _naming(self.path):
            while left:
                left = left[self._file.write(left) :]


class RemoteShard(LocalShard):
    """A shard for a store: a file of this machine without a name until it is whole."""

    def __init__(self, url: str, *, overwrite: bool, options: StorageOptions) -> None:
        self._overwrite = overwrite
        self._options = options
        if not overwrite:
            refuse_existing(url, options)
        super().__init__(url, overwrite=False)

    @property
    def _written(self) -> str:
        return f"/proc/self/fd/{self._file.fileno()}"

    def _open(self, *, overwrite: bool) -> Any:  # noqa: ARG002 - the store is asked
        # Nothing of it is left when this process is killed.
        return self._stack.enter_context(tempfile.TemporaryFile(buffering=0))

    def _publish(self) -> None:
        """Put the shard into the store."""
        with self._stack:
            if not self._overwrite:
                refuse_existing(self.path, self._options)
            upload(self.path, Path(self._written), options=self._options)


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
