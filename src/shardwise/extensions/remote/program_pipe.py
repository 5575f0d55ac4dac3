"""A program's output or input as a stream that raises when the program failed.

Keeps I6: the end of the output is believed only after the program's exit status. A reader that
stops early ends the program instead of waiting for it.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, Self

# Time for a program to end by itself once its output is closed.
_GRACE_S = 1.0


class Pipe:
    """The standard output (mode "r") or input (mode "w") of a program that runs beside this one.

    Where the program ends with a status that is not in `ignore_status`, `read` at the end of its
    output, `write`, or `close` raise an OSError with the command and the status. `close` of an
    output that was not read to its end closes it, ends the program if it runs on for a second, and
    raises nothing: the reader has its bytes.

    Its standard error is this process's, unless `stderr=subprocess.PIPE` makes it a part of
    the message; then it must be short.

    Args:
        *args: for `subprocess.Popen`.
        mode: "r..." or "w...".
        timeout: seconds to wait for the program's end after all was read or written.
        ignore_errors: accept every status.
        ignore_status: statuses that do not count as failures, besides 0.
        **kw: for `subprocess.Popen`.

    Attributes:
        label: the program's name in messages.
    """

    def __init__(
        self,
        *args: Any,
        mode: str,
        timeout: float = 7200.0,
        ignore_errors: bool = False,
        ignore_status: Sequence[int] = (),
        **kw: Any,
    ) -> None:
        if mode[:1] not in ("r", "w"):
            raise ValueError(f"mode={mode!r}: begin it with 'r' or 'w'")
        self.ignore_errors = ignore_errors
        self.ignore_status = [0, *ignore_status]
        self.timeout = timeout
        self.args = (args, kw)
        self.label = repr(args[0])
        self.status: int | None = None
        self._reads = mode[0] == "r"
        self._ended = False
        end = "stdout" if self._reads else "stdin"
        kw = {**kw, end: subprocess.PIPE}
        self.proc: subprocess.Popen[bytes] = subprocess.Popen(*args, **kw)  # noqa: S603
        self.stream: Any = self.proc.stdout if self._reads else self.proc.stdin

    def __str__(self) -> str:
        return f"<Pipe {self.args}>"

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return bool(self.stream.closed)

    def readable(self) -> bool:
        """Whether this is a program's output."""
        return self._reads

    def writable(self) -> bool:
        """Whether this is a program's input."""
        return not self._reads

    def check_status(self) -> None:
        """Raise `OSError` with the command and the status if the program has ended, and badly."""
        if self.proc.poll() is not None:
            self.wait_for_child()

    def wait_for_child(self) -> None:
        """Wait for the program's end; raise `OSError` if it failed or is late."""
        try:
            self.status = self.proc.wait(self.timeout)
        except subprocess.TimeoutExpired:
            self._end_program()
            raise OSError(
                f"{self.label} did not end within {self.timeout:g} s of its last byte"
            ) from None
        if self.status not in self.ignore_status and not self.ignore_errors:
            stderr = self.proc.stderr
            text = "" if stderr is None else stderr.read().decode(errors="replace").strip()
            because = f": {text}" if text else ""
            raise OSError(f"{self.label} failed with exit status {self.status}{because}")

    def read(self, size: int | None = -1) -> bytes:
        """Read from the program's output; at its end, raise `OSError` if the program failed."""
        data: bytes = self.stream.read(size)
        if size == 0:
            return data
        # Only a buffered stream waits for the full requested length.
        is_buffered = isinstance(self.stream, io.BufferedReader)
        if not data or size is None or size < 0 or (is_buffered and len(data) < size):
            self._end()
        return data

    def readline(self, *args: Any, **kw: Any) -> bytes:
        """Read a line of the program's output."""
        data: bytes = self.stream.readline(*args, **kw)
        if not data:
            self._end()
        return data

    readLine = readline  # noqa: N815 - WebDataset's name

    def _end(self) -> None:
        """Handle the end of the output. Only the status shows whether the output is complete."""
        self._ended = True
        self.wait_for_child()

    def write(self, data: Any) -> int:
        """Write to the program's input; raise `OSError` if the program failed."""
        with self._failing():
            num_bytes: int = self.stream.write(data)
        self.check_status()
        return num_bytes

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Prefer the status of a program that left early to the broken pipe."""
        try:
            yield
        except BrokenPipeError:
            self._end()
            raise

    def flush(self) -> None:
        """Flush the buffer."""
        self.stream.flush()

    def close(self) -> None:
        """Close the stream; raise `OSError` if the program failed, see above."""
        if self.stream.closed:
            return
        with self.proc.stderr or contextlib.nullcontext():
            if self._reads and not self._ended:
                self.stream.close()
                self._end_program()
                return
            with self._failing():
                self.stream.close()
            self.wait_for_child()

    def _end_program(self) -> None:
        """End the program, gently at first."""
        for end in (None, self.proc.terminate, self.proc.kill):
            if end is not None:
                end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.status = self.proc.wait(_GRACE_S)
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A stream that was not closed: the program is ended, without an error.
        if "stream" in self.__dict__:
            with contextlib.suppress(OSError):
                self.close()
