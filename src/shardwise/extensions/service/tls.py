"""TLS, where others share the network: TCP connections with certificates, by the module `ssl`.

OpenSSL lets one thread at a time into a connection, and here one sends while another one receives.
So the socket does not block, a lock is held for one step of OpenSSL, and waiting is outside it.
TLS 1.3 (RFC 8446) alone.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwise.base.errors import ServiceError
from shardwise.extensions.service.addresses import host_and_port, with_scheme
from shardwise.extensions.service.tcp import TcpConnection, TcpListener

# Bytes of one step, during which the lock is held for 0.1 ms.
_STEP_BYTES = 256 << 10
# OpenSSL's reasons for a client that sends no TLS. OpenSSL sends it nothing, so this module sends a
# fatal alert, "protocol_version" (RFC 8446, 6).
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
_ALERT = bytes([0x15, 3, 1, 0, 2, 2, 70])
# Remedies by OpenSSL's error number for a certificate that a trusted authority signed.
_DATES = "make a new certificate, or set this machine's clock"
_NAMES = "use a name of the certificate's subjectAltName, or make one that has this name"
_REMEDIES = {9: _DATES, 10: _DATES, 62: _NAMES, 64: _NAMES}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one end, in PEM.

    Attributes:
        cert: its certificate and those between it and the authority; a client may have None.
        key: the private key; None where `cert` holds it.
        ca: authorities of the other end's certificate. None for those of the system at a client; a
            server without it asks clients for no certificate.
    """

    cert: str | None = None
    key: str | None = None
    ca: str | None = None

    def context(self, *, is_server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        name = self.cert
        try:
            if self.cert is not None:
                # An encrypted key is an error: a server has no terminal to ask for a password.
                context.load_cert_chain(self.cert, self.key, password="")
            name = self.ca
            if self.ca is not None:
                context.load_verify_locations(self.ca)
                context.verify_mode = ssl.CERT_REQUIRED
            elif not is_server:
                context.load_default_certs()
        except (OSError, ValueError) as error:  # SSLError is an OSError
            key = "" if name == self.ca or self.key is None else f" and {self.key!r}"
            raise ServiceError(f"TLS can't use {name!r}{key}: {error}") from None
        return context


class TlsConnection(TcpConnection):
    """One connected socket, encrypted; the handshake is part of the first call."""

    _sock: ssl.SSLSocket

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)
        sock.setblocking(False)
        self._lock = threading.Lock()
        self._timeout_s: float | None = None
        self._is_greeted = self._has_received = self._is_closed = False
        self._num_waiting = 0

    def send(self, buffers: Sequence[Any]) -> None:
        for each in buffers:
            view = memoryview(each).cast("B")
            done = 0
            while done < view.nbytes:
                done += self._step(partial(self._sock.send, view[done : done + _STEP_BYTES]))

    def _receive(self, buffer: memoryview) -> int:
        received = self._step(partial(self._sock.recv_into, buffer[:_STEP_BYTES]))
        self._has_received |= received > 0
        return received

    def limit(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def shake_hands(self) -> None:
        self._step(lambda: 0)

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)  # wakes who waits
                self._release()

    def _release(self) -> None:
        """Close the socket once no thread waits for its number, which another may get."""
        if self._is_closed and not self._num_waiting:
            self._sock.close()

    def _step(self, call: Callable[[], int]) -> int:
        """One step of OpenSSL that is not blocked."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise ConnectionAbortedError("the connection is closed")
                try:
                    if not self._is_greeted:
                        self._sock.do_handshake()
                        self._is_greeted = True
                    return call()
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
                except OSError as error:
                    raise self._explain_error(error) from None
                self._num_waiting += 1
            try:
                self._wait(events)
            finally:
                with self._lock:
                    self._num_waiting -= 1
                    self._release()

    def _wait(self, events: int) -> None:
        if self._timeout_s == 0:
            raise BlockingIOError("nothing has arrived")
        poll = select.poll()
        poll.register(self._sock, events)
        if not poll.poll(None if self._timeout_s is None else 1000 * self._timeout_s):
            raise TimeoutError("timed out")

    def _explain_error(self, error: OSError) -> Exception:
        if self._sock.server_side and getattr(error, "reason", None) in _NO_TLS:
            with suppress(OSError):
                socket.socket.send(self._sock, _ALERT)
        host = None if self._sock.server_side else self._sock.server_hostname
        if self._has_received:
            return error
        return _in_words(error, host, is_greeted=self._is_greeted)


def _in_words(error: OSError, host: str | None, *, is_greeted: bool) -> Exception:
    """Describe which end distrusts the other; `host` is the server's name, or None at a server.

    In TLS 1.3 a client's handshake ends before the server looks at its certificate, so that the
    server's alert reaches the client in its first read.
    """
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        if host is None or is_greeted:
            return error
        return ConnectionResetError(
            "the server hung up in the TLS handshake: was it started without --tls-cert?"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        whose = "the client" if host is None else f"the server {host!r}"
        option = "--tls-ca" if host is None else "tls_ca="
        remedy = _REMEDIES.get(
            error.verify_code, f"{option} is the file of the authority that signed its certificate"
        )
        return ServiceError(f"TLS does not trust {whose}: {error.verify_message}; {remedy}")
    reason = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
    if host is not None and "alert" in reason:
        return ServiceError(
            f"the server refused TLS: {reason}; tls_cert= is the file of this trainer's "
            "certificate, signed by the authority that the server has as --tls-ca"
        )
    if is_greeted or not isinstance(error, ssl.SSLError):
        return error
    advice = "both ends use tls:// and TLS 1.3"
    if host is not None and "wrong version" in reason:
        advice = "a server that was started without --tls-cert is named as tcp://host:port"
    return ServiceError(f"the TLS handshake failed: {reason}; {advice}")


class TlsListener(TcpListener):
    """A socket that listens for clients of `tls://`."""

    def __init__(self, host: str, port: int, files: TlsFiles) -> None:
        self._context = files.context(is_server=True)
        super().__init__(host, port)
        self.address = with_scheme("tls", self.address)

    def accept(self) -> TlsConnection:
        while True:
            sock, _ = self._sock.accept()
            try:
                return TlsConnection(
                    self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                )
            except OSError:  # its client has reset it already, as a port scan does
                sock.close()


def connect(address: str, files: TlsFiles, *, timeout_s: float) -> TlsConnection:
    """Connect to a server of `tls://`; OSError without an answer, ServiceError without trust."""
    context = files.context(is_server=False)
    host, port = host_and_port(address)
    sock = socket.create_connection((host, port), timeout=timeout_s)
    connection = TlsConnection(
        context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    )
    connection.limit(timeout_s)
    try:
        connection.shake_hands()
    except BaseException:
        connection.close()
        raise
    return connection
