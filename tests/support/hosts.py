"""Hosts of a test: network namespaces on a bridge of this machine, each with an address."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_CLONE_NEWNET = 0x40000000
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Hosts:
    """Hosts that are up.

    Attributes:
        names: of their namespaces.
        addresses: of them.
        outside: the address at which they reach this process.
        ports: of the bridge, to which they are linked.
    """

    names: Sequence[str]
    addresses: Sequence[str]
    outside: str
    ports: Sequence[str]

    def part(self, *, on: bool) -> None:
        """Drop all that hosts send to one another, in silence, or stop that."""
        isolated = "on" if on else "off"
        assert _configure([f"link set {port} type bridge_slave isolated {isolated}"
                           for port in self.ports])  # fmt: skip


@contextmanager
def hosts(count: int) -> Iterator[Hosts | None]:
    """Run hosts until the block ends; None where this user may make none."""
    pid, number = os.getpid(), next(_NUMBERS)
    net = f"10.{64 + (pid // 250 + number) % 64}.{pid % 250}"
    bridge, names = f"sw{pid}b{number}", [f"sw{pid}h{number}n{n}" for n in range(count)]
    addresses = [f"{net}.{11 + n}" for n in range(count)]
    made = Hosts(names, addresses, f"{net}.1", [f"{bridge}n{n}" for n in range(count)])
    lines = [f"link add {bridge} type bridge", f"addr add {net}.1/24 dev {bridge}"]
    lines.append(f"link set {bridge} up")
    for n, name in enumerate(names):
        lines += [
            f"netns add {name}",
            f"link add {bridge}n{n} type veth peer name eth0 netns {name}",
            f"link set {bridge}n{n} master {bridge} up",
        ]
    if shutil.which("ip") is None or not _configure(lines):
        _remove(bridge, names)
        yield None
        return
    try:
        for name, address in zip(names, made.addresses, strict=True):
            own = [f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"]
            assert _configure(own, "-n", name)
        yield made
    finally:
        _remove(bridge, names)


def enter_host(name: str) -> None:
    """Move this thread, and those that it starts, to a host."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(f"{name} can't be entered")


def _configure(lines: Sequence[str], *options: str) -> bool:
    text = "\n".join(lines)
    done = subprocess.run(
        ["ip", *options, "-batch", "-"], input=text, text=True, capture_output=True, check=False
    )
    return done.returncode == 0


def _remove(bridge: str, names: Sequence[str]) -> None:
    if shutil.which("ip") is not None:
        for each in (*(f"netns del {name}" for name in names), f"link del {bridge}"):
            _configure([each])
