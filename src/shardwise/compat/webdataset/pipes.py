"""A program's output or input as a stream that tells when the program failed.

Keeps I6: the end of the output is believed only after the program's exit status. A reader that
stops early ends the program instead of waiting for it.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

# How long a program that nobody listens to any more may take to end by itself.
_GRACE_S = 1.0


class Pipe:
    """The standard output (mode "r") or input (mode "w") of a program that runs beside this one.

    Where the program ends with a status that is not in `ignore_status`, `read` at the end of its
    output, `write`, or `close` raise an OSError with the command and the status. `close` of an
    output that was not read to its end closes it, ends the program if it goes on for a second, and
    raises nothing: the reader has what it wanted.

    Its standard error is this process's, unless `stderr=subprocess.PIPE` asks for it to be a part
    of the message; then it must be short.

    Args:
        *args: for `subprocess.Popen`.
        mode: "r..." or "w...".
        timeout: seconds to wait for the program's end after all was read or written.
        ignore_errors: accept every status.
        ignore_status: statuses that are no failure, besides 0.
        **kw: for `subprocess.Popen`.

    Attributes:
        label: what the program is called in messages.
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
        """Raise if the program has ended, and badly."""
        if self.proc.poll() is not None:
            self.wait_for_child()

    def wait_for_child(self) -> None:
        """Wait for the program's end."""
        try:
            self.status = self.proc.wait(self.timeout)
        except subprocess.TimeoutExpired:
            self._end_program()
            raise OSError(
                f"{self.label} did not end within {self.timeout:g} s of its last byte"
            ) from None
        if self.status not in self.ignore_status and not self.ignore_errors:
            told = (
                "" if self.proc.stderr is None else self.proc.stderr.read().decode(errors="replace")
            )
            because = f": {told.strip()}" if told else ""
            raise OSError(f"{self.label} failed with exit status {self.status}{because}")

    def read(self, *args: Any, **kw: Any) -> bytes:
        """Read from the program's output."""
        data: bytes = self.stream.read(*args, **kw)
        wanted = args[0] if args else -1
        if wanted == 0:
            return data
        # Only a buffered stream waits for as much as was asked for.
        buffered = isinstance(self.stream, io.BufferedReader)
        if not data or wanted is None or wanted < 0 or (buffered and len(data) < wanted):
            # The end. Whether it is the right one, only the status tells.
            self._ended = True
            self.wait_for_child()
        return data

    def readline(self, *args: Any, **kw: Any) -> bytes:
        """Read a line of the program's output."""
        data: bytes = self.stream.readline(*args, **kw)
        if not data:
            self._ended = True
            self.wait_for_child()
        return data

    readLine = readline  # noqa: N815 - WebDataset's name

    def write(self, *args: Any, **kw: Any) -> int:
        """Write to the program's input."""
        try:
            num_bytes: int = self.stream.write(*args, **kw)
        except BrokenPipeError:
            self._ended = True
            self.wait_for_child()
            raise
        self.check_status()
        return num_bytes

    def flush(self) -> None:
        """Hand on what is buffered."""
        self.stream.flush()

    def close(self) -> None:
        """Close the stream and see how the program ended."""
        if self.stream.closed:
            return
        with self.proc.stderr or contextlib.nullcontext():
            self._close()

    def _close(self) -> None:
        if self._reads and not self._ended:
            self.stream.close()
            self._end_program()
            return
        try:
            self.stream.close()
        except BrokenPipeError:
            # The program left before it had read all: its status says more than this error.
            self.wait_for_child()
            raise
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A stream that nobody closed: the program is ended, and there is nobody to tell.
        if "stream" in self.__dict__:
            with contextlib.suppress(OSError):
                self.close()


def set_options(
    obj: Any,
    timeout: float | None = None,
    ignore_errors: bool | None = None,
    ignore_status: Sequence[int] | None = None,
    handler: Any = None,
) -> bool:
    """Change the options of a `Pipe`; other streams stay as they are."""
    if not isinstance(obj, Pipe):
        return False
    given = {
        "timeout": timeout,
        "ignore_errors": ignore_errors,
        "ignore_status": ignore_status,
        "handler": handler,
    }
    for name, value in given.items():
        if value is not None:
            setattr(obj, name, value)
    return True
