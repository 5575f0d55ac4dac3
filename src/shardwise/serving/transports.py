"""Which transport an address and a server's option name."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.serving.addresses import scheme_of
from shardwise.serving.tcp import TcpListener, TcpTransport
from shardwise.serving.tls import TlsFiles, TlsListener, TlsTransport
from shardwise.serving.transport import Connection, Listener

__all__ = ["AddressedTransport", "listen"]


class AddressedTransport:
    """Opens connections as each address says: `tcp://`, `tls://` or `ucx://`.

    Args:
        addresses: all that it will be asked for.
        tls: the files for those of `tls://`.

    Raises:
        ModuleNotFoundError: one of them needs an extra that is not installed.
        ServiceError: the files of `tls://` can't be used.
    """

    def __init__(self, addresses: Sequence[str], *, tls: TlsFiles | None = None) -> None:
        self._tls = TlsTransport(tls or TlsFiles())
        if tls is not None:
            tls.context(is_server=False)
        if any(scheme_of(address) == "ucx" for address in addresses):
            from shardwise.serving.ucx_worker import load_ucxx

            load_ucxx()

    def connect(self, address: str, *, timeout_s: float) -> Connection:
        """Open a connection to a server.

        Raises:
            OSError: no server listens there, or it does not answer within the time.
            ServiceError: the ends do not trust each other.
        """
        scheme = scheme_of(address)
        if scheme == "tls":
            return self._tls.connect(address, timeout_s=timeout_s)
        if scheme == "ucx":
            from shardwise.serving.ucx import UcxTransport

            return UcxTransport().connect(address, timeout_s=timeout_s)
        return TcpTransport().connect(address, timeout_s=timeout_s)


def listen(transport: str, host: str, port: int, *, tls: TlsFiles | None = None) -> Listener:
    """A listener of the transport "tcp", by TLS with its files, or "ucx"; errors as theirs."""
    if tls is not None:
        return TlsListener(host, port, tls)
    if transport == "ucx":
        from shardwise.serving.ucx import UcxListener

        return UcxListener(host, port)
    return TcpListener(host, port)
