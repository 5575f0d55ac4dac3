"""A server as a child process: on a free port of the loopback, ready when it answers, sure to end.

A binary that is not installed skips the test with the reason; with the variable `CI` set it fails
it, so that no part of the suite goes missing there without a word.
"""

from __future__ import annotations

import ctypes
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

import pytest

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def require_binary(name: str, *, package: str) -> str:
    """The path of a server's program.

    Args:
        name: the program, looked for beside this Python, in npm's folder under it, and in PATH.
        package: what to install, as the message says it.
    """
    beside = [str(Path(sys.prefix, "bin")), str(Path(sys.prefix, "node/node_modules/.bin"))]
    places = [*beside, *os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is not None:
        return found
    reason = f"needs the program {name!r}, which is not installed: {package}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """A port of the loopback that nobody listens on now; another may take it: see `run_server`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def run_server(
    command: Callable[[int], Sequence[str | Path]],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> Iterator[int]:
    """Run a server until the block ends; yields the port that it listens on.

    Args:
        command: makes the command line for a port. It is asked again with another port where the
            server ends at once, because somebody else was faster.
        log: where its output goes; the message of a server that does not start holds its end.
        env: variables that are set for it.
        timeout_s: how long it may take to listen.
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
            if _listens(process, port, timeout_s):
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


def _listens(process: subprocess.Popen[bytes], port: int, timeout_s: float) -> bool:
    """Wait until it listens; False if it ends instead."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if process.poll() is not None:
            return False
        # Someone else may listen there: then our own process ends, and soon.
        if _owns(process.pid, port):
            return True
        time.sleep(0.01)
    return False


def _owns(pid: int, port: int) -> bool:
    """Whether the process itself listens on the port."""
    inode = _listening_inode(port)
    if inode is None:
        return False
    wanted = f"socket:[{inode}]"
    for name in _names(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}") == wanted:
                return True
        except FileNotFoundError:
            continue
    return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _listening_inode(port: int) -> str | None:
    """The socket that listens on a port, from the kernel's tables."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return fields[9]
    return None
