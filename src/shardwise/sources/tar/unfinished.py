"""A shard that is being written: nothing has its name before it is whole.

Keeps I8. Imports the standard library, `shardwise.errors` and storage.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from shardwise.errors import MissingShardError, ShardwiseError, StorageError
from shardwise.shown import shown
from shardwise.storage import StorageOptions, atomic_write, is_local, open_file
from shardwise.storage.upload import upload

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
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: a process forked meanwhile has no bytes of ours to write again.
            self._file = self._stack.enter_context(
                atomic_write(path, buffering=0, overwrite=overwrite)
            )

    def add(self, sample: bytes) -> None:
        """Write the members of a sample."""
        self._write(sample)
        self.num_samples += 1
        self.num_bytes += len(sample)

    def finish(self) -> None:
        """Give the shard its name."""
        try:
            self._write(END)
        except BaseException as error:
            self.remove(error)
            raise
        with _naming(self.path):
            self._stack.close()

    def remove(self, error: BaseException) -> None:
        """Remove what was written, because of an error."""
        self._stack.__exit__(type(error), error, error.__traceback__)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        with _naming(self.path):
            while left:
                left = left[self._file.write(left) :]


class RemoteShard(LocalShard):
    """A shard for a store: a file of this machine until it is whole."""

    def __init__(self, url: str, *, overwrite: bool, options: StorageOptions) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shardwise-")
        self._overwrite = overwrite
        self._options = options
        if not overwrite:
            refuse_existing(url, options)
        super().__init__(str(Path(self._folder.name) / "shard.tar"), overwrite=False)
        self._local, self.path = Path(self.path), url

    def finish(self) -> None:
        """Put the shard into the store."""
        super().finish()
        with self._folder:
            if not self._overwrite:
                refuse_existing(self.path, self._options)
            upload(self.path, self._local, options=self._options)

    def remove(self, error: BaseException) -> None:
        """Remove what was written, because of an error; the store has nothing of it."""
        with self._folder:
            super().remove(error)


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
