"""UCX by `ucxx`, in the few calls that a connection needs: receive, send, and an end to both.

A worker belongs to the process that made it. Its progress thread is a thread of C++ that never asks
for the GIL; requests are passed on to it, so that one thread alone calls UCX.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

# UCX knows no default that ends a call: after this time without an end a message is given up, as
# TCP gives up unacknowledged bytes.
_MESSAGE_S = 25.0
# Interval at which a thread looks whether a message is there, doubled from the first to the last.
_FIRST_LOOK_S, _LAST_LOOK_S = 50e-6, 1e-3
# The lower half of an address' first byte is its version. Source: ucp/wireup/address.c of UCX.
_VERSION_MASK = 0x0F
# Timeout of one step of closing an endpoint; nanoseconds.
_CLOSE_NS = 1_000_000_000


def load_ucxx() -> Any:
    """The module of ucxx that has UCX's own objects."""
    # UCX would say on the standard output that it does not know a variable that ucxx sets.
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
    try:
        import ucxx._lib.libucxx as api
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: addresses of ucx:// need UCX: pip install 'shardwise[ucx]', which is there "
            "for Linux on x86-64 and ARM",
            name=error.name,
        ) from None
    return api


class UcxWorker:
    """A UCX worker and its progress thread."""

    def __init__(self, transports: str | None = None) -> None:
        self._api = load_ucxx()
        from ucxx._lib.arr import Array

        self._array = Array
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._buffers: dict[Any, Any] = {}
        # UCX 1.21 frees an endpoint that it still uses, and ends the process, where its connect()
        # waits and the other end goes between that and the first bytes.
        config = {"TCP_CONN_NB": "y"}
        if transports is not None:
            config["TLS"] = transports
        features = (self._api.Feature.TAG, self._api.Feature.WAKEUP)
        try:
            context = self._api.UCXContext(config, features)
            self._worker = self._api.UCXWorker(context, enable_delayed_submission=True)
            self._worker.start_progress_thread(polling_mode=False)
        except self._api.UCXError as error:
            raise OSError(f"UCX does not start: {error}") from None
        self._endpoints: set[Any] = set()
        # C++ must not run on while its own end takes its memory away.
        atexit.register(self.close)

    @property
    def address(self) -> bytes:
        with self._lock:
            return bytes(memoryview(self._alive().address))

    def receive(self, buffer: memoryview, tag: int) -> Any:
        """Start to receive a message of this size into a buffer, which is UCX's until then."""
        with self._lock:
            worker = self._alive()
            request = worker.tag_recv(self._array(buffer), self._api.UCXXTag(tag))
            self._buffers[request] = buffer
            return request

    def endpoint(self, address: bytes, *, handles_errors: bool) -> Any:
        """A way to the worker with this address.

        UCX ends the process on an address that no worker wrote: it may only be given what a peer
        with the job's token vouched for. What it would not stand from such a peer either, an
        address of another version, is an error here.
        """
        with self._lock:
            worker = self._alive()
            if (address[0] ^ memoryview(worker.address)[0]) & _VERSION_MASK:
                raise OSError("UCX has no way to the other end: its address has another version")
            try:
                remote = self._api.UCXAddress.create_from_buffer(bytearray(address))
                endpoint = worker.create_endpoint_from_worker_address(remote, handles_errors)
            except self._api.UCXError as error:
                raise OSError(f"UCX has no way to the other end: {error}") from None
            self._endpoints.add(endpoint)
            return endpoint

    def send(self, endpoint: Any, view: memoryview, tag: int) -> Any:
        with self._lock:
            self._alive()
            if endpoint not in self._endpoints:
                raise ConnectionAbortedError("the connection is closed")
            return endpoint.tag_send(self._array(view), self._api.UCXXTag(tag))

    def wait(
        self, request: Any, is_broken: Callable[[float], bool], timeout_s: float | None
    ) -> None:
        """Wait for a request; OSError if it failed, is late, or the other end has gone."""
        limit_s = _MESSAGE_S if timeout_s is None else min(timeout_s, _MESSAGE_S)
        deadline = time.monotonic() + limit_s
        look_s = _FIRST_LOOK_S
        while not request.completed:
            if is_broken(look_s):
                raise ConnectionResetError("the other end closed the connection")
            if time.monotonic() > deadline:
                raise TimeoutError(f"a message by UCX did not arrive within {limit_s:g} s")
            look_s = min(_LAST_LOOK_S, 2 * look_s)
        self._buffers.pop(request, None)
        try:
            request.check_error()
        except self._api.UCXError as error:
            raise OSError(f"a message by UCX failed: {error}") from None

    def close_endpoint(self, endpoint: Any) -> None:
        """End a way; a message under way on it fails."""
        if self._pid != os.getpid():
            return
        with self._lock:
            is_open = endpoint in self._endpoints
            self._endpoints.discard(endpoint)
        if is_open:
            endpoint.close_blocking(_CLOSE_NS, 3)

    def close(self) -> None:
        """End the thread and what is under way: after it UCX touches no buffer."""
        if self._pid != os.getpid():
            # A fork has the objects but not their thread, which their end would wait for.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            return
        atexit.unregister(self.close)
        with self._lock:
            worker, self._worker = self._worker, None
            endpoints, self._endpoints = self._endpoints, set()
        if worker is not None:
            for endpoint in endpoints:
                endpoint.close_blocking(_CLOSE_NS, 3)
            worker.stop_progress_thread()
            self._buffers.clear()

    def _alive(self) -> Any:
        if self._worker is None or self._pid != os.getpid():
            raise ConnectionAbortedError("the connection is closed")
        return self._worker
