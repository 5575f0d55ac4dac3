"""The transports that addresses and a server's options name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shardwise.extensions.service import tcp, tls
from shardwise.extensions.service.addresses import scheme_of
from shardwise.extensions.service.tcp import TcpListener
from shardwise.extensions.service.tls import TlsFiles, TlsListener
from shardwise.extensions.service.transport import Connect, Connection, Listener


def connect_to(addresses: Sequence[str], *, files: TlsFiles | None = None) -> Connect:
    """A connect function for the addresses' schemes, `tcp`, `tls` or `ucx`; it pickles."""
    if files is not None:
        files.context(is_server=False)
    if any(scheme_of(address) == "ucx" for address in addresses):
        from shardwise.extensions.service.ucx_worker import load_ucxx

        load_ucxx()
    return partial(_connect, files or TlsFiles())


def _connect(files: TlsFiles, address: str, *, timeout_s: float) -> Connection:
    scheme = scheme_of(address)
    if scheme == "tls":
        return tls.connect(address, files, timeout_s=timeout_s)
    if scheme == "ucx":
        from shardwise.extensions.service import ucx

        return ucx.connect(address, timeout_s=timeout_s)
    return tcp.connect(address, timeout_s=timeout_s)


def listen(transport: str, host: str, port: int, *, files: TlsFiles | None = None) -> Listener:
    """A listener of the transport "tcp", by TLS with its files, or "ucx"; errors as theirs."""
    if files is not None:
        return TlsListener(host, port, files)
    if transport == "ucx":
        from shardwise.extensions.service.ucx import UcxListener

        return UcxListener(host, port)
    return TcpListener(host, port)
