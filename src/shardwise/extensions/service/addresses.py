"""Addresses of servers: `tcp://host:port`, `tls://host:port` and `ucx://host:port`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ADDRESS = re.compile(
    r"(?:(?P<scheme>tcp|tls|ucx)://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|"
    r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?):(?P<port>\d{1,5})"
)
_MAX_PORT = 65_535


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of a list, or of one text with commas between them, each as `tcp://host:port`.

    `tls://host:port` and `ucx://host:port` stay as they are.

    Examples:
        >>> parse_addresses("tcp://a:7000,b:7000")
        ('tcp://a:7000', 'tcp://b:7000')
    """
    parts = addresses.split(",") if isinstance(addresses, str) else addresses
    if not isinstance(parts, list | tuple):
        raise TypeError(f"addresses={addresses!r:.80}: give a text such as 'tcp://a:7000,b:7000'")
    parsed = [_parse_address(part) for part in parts]
    if not parsed:
        raise ValueError("addresses=[]: give the address of one server or more")
    twice = sorted({each for each in parsed if parsed.count(each) > 1})
    if twice:
        raise ValueError(f"addresses: {twice[0]!r} comes twice; name each server once")
    return tuple(parsed)


def _parse_address(part: object) -> str:
    if not isinstance(part, str):
        raise TypeError(f"addresses: {part!r:.80} is no text: use 'tcp://host:port'")
    match = _ADDRESS.fullmatch(part.strip())
    if match is None or not 0 < int(match["port"]) <= _MAX_PORT:
        raise ValueError(
            f"addresses: {part!r:.80} is no address of a server: use 'tcp://host:port', 'tls://' "
            f"or 'ucx://', with a port of 1 to {_MAX_PORT}"
        )
    return f"{match['scheme'] or 'tcp'}://{match['host']}:{int(match['port'])}"


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of a parsed address."""
    host, _, port = address.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def scheme_of(address: str) -> str:
    """The scheme of a parsed address: "tcp", "tls" or "ucx"."""
    return address.partition("://")[0]


def with_scheme(scheme: str, address: str) -> str:
    """A parsed address, of another transport."""
    return f"{scheme}://{address.partition('://')[2]}"


def tcp_address(host: str, port: int) -> str:
    """The address of a host and a port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach it."""
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None
