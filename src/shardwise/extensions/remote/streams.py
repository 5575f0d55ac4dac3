"""A remote file as a stream: read from its start, in large ranges, or written whole.

Keeps I6 and I8: the length is known from the start, so a stream never ends early without an error,
and a written file appears when all of it is there. In a forked process whose parent has read from
stores, a separate process reads for it, because the stores' client does not survive a fork:
programs that look at a sample before they make a DataLoader do this all the time.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Self

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.base.shown import shown
from shardwise.extensions.remote.program_pipe import Pipe
from shardwise.extensions.remote.requests.event_loop import is_cut_off
from shardwise.storage.file_pool import Scan
from shardwise.storage.open import is_local, open_file
from shardwise.storage.write import upload

# Much longer than a request takes to be made, and short beside a shard.
_READ_BYTES = 1 << 20
# Seconds without a byte of a plain reply: as long as curl is given.
_STALLED_S = 60

# The status of a process that finds no such file.
_MISSING = 3

# The program of the process that reads for a forked one; it finds the same modules as this one.
_READ = """
import os, sys
sys.path[:] = {path!r}
from shardwise.base.errors import MissingShardError, ShardwiseError
from shardwise.storage.open import open_file
try:
    file = open_file(sys.stdin.read())
    num_bytes = file.stat().num_bytes
    for start in range(0, num_bytes, {step}):
        sys.stdout.buffer.write(file.read(start, min({step}, num_bytes - start)))
    sys.stdout.buffer.flush()
except BrokenPipeError:
    pass
except ShardwiseError as error:
    os.write(2, str(error).encode())
    os._exit({missing} if isinstance(error, MissingShardError) else 1)
# Nothing is left to do, and native threads may still be at work: no orderly end.
os._exit(0)
"""


def open_stream(url: str, *, buffer_bytes: int = 0) -> io.BufferedReader[Any] | Pipe:
    """Open a file of any storage for reading from its start, and read the first bytes."""
    if is_cut_off() and not is_local(url):
        return _open_elsewhere(url)
    file = open_file(url)
    stream = io.BufferedReader(_Ranges(file), max(buffer_bytes, _READ_BYTES))
    # Find a server's refusal now, and not in the middle of an epoch.
    stream.peek(1)
    return stream


def _open_elsewhere(url: str) -> Pipe:
    """The output of a process that reads the file."""
    program = _READ.format(path=sys.path, step=_READ_BYTES, missing=_MISSING)
    command = [sys.executable, "-c", program]
    pipe = Pipe(
        command, mode="r", bufsize=_READ_BYTES, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    pipe.label = f"the process that reads {shown(url)!r}"
    # Not an argument, which all users of the machine could see: it may hold a signature.
    assert pipe.proc.stdin is not None
    with contextlib.suppress(BrokenPipeError), pipe.proc.stdin as stdin:
        stdin.write(url.encode())
    if not pipe.stream.peek(1):
        try:
            pipe.wait_for_child()
        except OSError as error:
            pipe.close()
            if pipe.status == _MISSING:
                raise MissingShardError(str(error), url=url) from None
            raise StorageError(str(error)) from None
    return pipe


class _Ranges(io.RawIOBase):
    """A file that is read by ranges, one after the other."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self.name = shown(file.url)
        self._file = file
        self._num_bytes: int = file.stat().num_bytes
        self._scan = Scan(file, self._num_bytes)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}
        if whence not in bases or bases[whence] + offset < 0:
            raise ValueError(f"can't seek to {offset} with whence={whence}")
        self._position = bases[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._num_bytes - self._position))
        if length:
            self._scan.read_into(self._position, view[:length])
            self._position += length
        return length

    def close(self) -> None:
        if not self.closed:
            self._scan.close()
            self._file.close()
        super().close()


def open_body(url: str, *, buffer_bytes: int = 0) -> io.BufferedReader[Any]:
    """Open a file of a web server by one GET of all of it, for servers that send no ranges."""
    reply = urllib.request.urlopen(url, timeout=_STALLED_S)  # noqa: S310 - the caller checks it
    return io.BufferedReader(_Body(reply, url), max(buffer_bytes, 1 << 16))


class _Body(io.RawIOBase):
    """A reply that must have the length that the server announced."""

    def __init__(self, reply: Any, url: str) -> None:
        super().__init__()
        self.name = shown(url)
        self._reply = reply

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count: int = self._reply.readinto(buffer)
            cause = f"{self._reply.length} bytes are missing" if self._reply.length else ""
        except (OSError, http.client.HTTPException) as error:
            count, cause = 0, type(error).__name__
        if not count and cause and len(buffer):
            raise StorageError(f"the reply of the web server broke off ({cause}): {self.name}")
        return count

    def close(self) -> None:
        self._reply.close()
        super().close()


class Upload:
    """A stream whose bytes become an object of a store when it is closed.

    Until then they lie in a temporary file. An exception in the `with` block, `discard`, or the end
    of a stream that was not closed leave nothing in the store.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._file = tempfile.NamedTemporaryFile(prefix="shardwise-")  # noqa: SIM115

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return bool(self._file.closed)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        return self._file.write(data)

    def flush(self) -> None:
        """Flush the buffer; the store gets nothing yet."""
        self._file.flush()

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self._file.tell()

    def close(self) -> None:
        if self.closed:
            return
        with self._file:
            self._file.flush()
            upload(self.url, Path(self._file.name))

    def discard(self) -> None:
        """Throw the bytes away."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if "_file" in self.__dict__:
            self.discard()
