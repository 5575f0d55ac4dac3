"""A server as a child process: on a free port of the loopback, ready when it answers, sure to end.

A binary that is not installed skips the test with the reason, see `skip_or_fail`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_LAST_PORT = max(11_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
# Each process begins elsewhere.
_PORTS = (
    10_000 + (os.getpid() * 997 + number) % (_LAST_PORT - 10_000) for number in itertools.count()
)


def require_binary(name: str, *, package: str) -> str:
    """The path of a program beside this Python, in npm's folder under it, or in PATH.

    `package` is what to install, as the message says it.
    """
    beside = [str(Path(sys.prefix, "bin")), str(Path(sys.prefix, "node/node_modules/.bin"))]
    places = [*beside, *os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        skip_or_fail(f"needs the program {name!r}, which is not installed: {package}")
    return found


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test; with the variable `CI` set fail it, where the suite must be whole."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """A port of the loopback that nobody listens on, and that the kernel gives to nobody else.

    It lies below the ports that a bind to 0 and outgoing connections get, and comes once a process.
    """
    for port in _PORTS:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@contextmanager
def run_server(
    command: Callable[[int], Sequence[str | Path]],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a server until the block ends; yields the port that it listens on.

    Args:
        command: makes the command line for a port. It is asked again with another port where the
            server ends at once, because somebody else was faster.
        log: where its output goes; the message of a server that does not start holds its end.
        env: variables that are set for it.
    """
    for attempt in range(5):
        port = free_port()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(part) for part in command(port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - two system calls
            )
        try:
            if _listens(process, port):
                yield port
                return
        finally:
            stop(process)
        if attempt == 4 or process.returncode is None:
            break
    tail = log.read_text(errors="replace")[-2000:]
    raise AssertionError(f"the server did not start: {process.args}\n{tail}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, insist after ten seconds, and collect it."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # What it started itself is in its session.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_with_parent() -> None:
    """For a child before exec: the kernel ends it when this process dies, however it dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until it listens, 60 s at most; False if it ends instead."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            return False
        # Someone else may listen there: then our own process ends, and soon.
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(process.pid).net_connections("tcp"):
                if (each.status, each.laddr[1]) == (psutil.CONN_LISTEN, port):
                    return True
        time.sleep(0.01)
    return False
