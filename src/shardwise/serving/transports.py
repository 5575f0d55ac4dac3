"""Which transport an address and a server's option name."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.serving.addresses import scheme_of
from shardwise.serving.tcp import TcpListener, TcpTransport
from shardwise.serving.transport import Connection, Listener

__all__ = ["AddressedTransport", "listen"]


class AddressedTransport:
    """Opens connections as each address says: `tcp://` or `ucx://`.

    Args:
        addresses: all that it will be asked for.

    Raises:
        ModuleNotFoundError: one of them needs an extra that is not installed.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        if any(scheme_of(address) == "ucx" for address in addresses):
            from shardwise.serving.ucx_worker import load_ucxx

            load_ucxx()

    def connect(self, address: str, *, timeout_s: float) -> Connection:
        """Open a connection to a server.

        Raises:
            OSError: nobody listens there, or not within the time.
        """
        if scheme_of(address) == "ucx":
            from shardwise.serving.ucx import UcxTransport

            return UcxTransport().connect(address, timeout_s=timeout_s)
        return TcpTransport().connect(address, timeout_s=timeout_s)


def listen(transport: str, host: str, port: int) -> Listener:
    """A listener of the transport "tcp" or "ucx"; errors as `TcpListener` and `UcxListener`."""
    if transport == "ucx":
        from shardwise.serving.ucx import UcxListener

        return UcxListener(host, port)
    return TcpListener(host, port)
