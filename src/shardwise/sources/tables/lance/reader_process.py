"""The process that reads a table for a forked one: a fresh interpreter, in which Lance is whole.

It answers one question at a time on a socket that only its owner has, and ends when the owner
does (I8).
"""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.sources.tables.lance.table import LanceTable

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Answer `(method, arguments)` with `(True, result)` or `(False, error)`, to the end."""
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
