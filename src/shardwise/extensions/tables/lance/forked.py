"""A table for a process that was forked from one in which Lance was used.

Lance's threads are gone there, and locks that they had stay locked for ever. So nothing of Lance is
touched: a fresh interpreter reads, and sends the rows over a socket. That costs a copy, and a
second or two at the start, and works however the fork came about.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from shardwise.base.errors import ShardwiseError, StorageError

_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from shardwise.extensions.tables.lance.forked import main
main(int(sys.argv[2]))
"""


class ForkedTable:
    """The methods of `LanceTable`, run in a separate process; see there."""

    def __init__(self, uri: str, version: int | str | None, settings: Mapping[str, str]) -> None:
        self._uri = uri
        self._arguments = (uri, version, dict(settings))
        self._lock = threading.Lock()
        self._reader: _Reader | None = None
        with self._lock:
            self._start()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._ask, method)

    def _start(self) -> _Reader:
        reader = self._reader = _Reader()
        reader.ask("open", *self._arguments)
        return reader

    def _ask(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            reader = self._reader or self._start()
            try:
                return reader.ask(method, *arguments)
            except (EOFError, OSError) as error:
                if isinstance(error, ShardwiseError):
                    raise
                # The next call starts another one.
                self._reader = None
                raise StorageError(
                    f"{self._uri}: the process that reads it for this forked one has ended, "
                    f"exit code {reader.exit_code()}: was there too little memory? Workers that "
                    "are started by spawn or forkserver need no such process"
                ) from error


class _Reader:
    """A process that has a table open, and the pipe to it; it ends with this object."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own text
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        weakref.finalize(self, _end, os.getpid(), self._process, self._pipe)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method in the process; EOFError or OSError if that has ended."""
        self._pipe.send((method, arguments))
        is_good, answer = self._pipe.recv()
        if not is_good:
            raise answer
        return answer

    def exit_code(self) -> int | None:
        return self._process.wait()


def _end(owner: int, process: subprocess.Popen[bytes], pipe: Connection[Any, Any]) -> None:
    """End the process; it holds nothing that could be lost."""
    pipe.close()
    if os.getpid() == owner:  # a fork of the owner has only a copy of the handle
        process.kill()
        process.wait()


def main(descriptor: int) -> None:
    """Answer `(method, arguments)` by `(True, result)` or `(False, error)` till the owner ends."""
    from shardwise.extensions.tables.lance.table import LanceTable

    # Ctrl-C goes to every process of the terminal; the owner decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(descriptor)
    table: LanceTable | None = None
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            if method == "open":
                table, answer = LanceTable(*arguments), None
            else:
                answer = getattr(table, method)(*arguments)
            reply: tuple[bool, Any] = True, answer
        except ShardwiseError as error:
            reply = False, error
        try:
            pipe.send(reply)
        except (BrokenPipeError, ConnectionResetError):
            return
