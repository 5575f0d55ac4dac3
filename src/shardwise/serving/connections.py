"""The links of one process to its servers: opened for those that come, closed for those that go."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from shardwise.serving.dispatcher import Dispatcher
from shardwise.serving.greeting import ClientSide
from shardwise.serving.link import Link
from shardwise.serving.receive_memory import ReceiveMemory
from shardwise.serving.transport import Transport
from shardwise.serving.work import Server

__all__ = ["Connections"]


class Connections:
    """Keeps the links; any thread may call it.

    Args:
        dispatcher: gives the servers work.
        transport: opens connections.
        side: what this client brings.
        memory: where batches are received.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        transport: Transport,
        side: ClientSide,
        memory: ReceiveMemory,
    ) -> None:
        self._dispatcher = dispatcher
        self._side = side
        self._link = partial(Link, dispatcher=dispatcher, transport=transport, memory=memory)
        self._lock = threading.Lock()
        self._links: dict[str, tuple[Server, Link]] = {}
        self._is_closed = False

    def set_servers(self, addresses: Sequence[str], token: bytes | None) -> None:
        """Open and close links, so that there is one for each address."""
        with self._lock:
            if self._is_closed:
                return
            if token != self._side.token:
                self._side = replace(self._side, token=token)
            for address in [each for each in self._links if each not in addresses]:
                server, link = self._links.pop(address)
                self._dispatcher.remove(server)
                link.close()
            for address in addresses:
                if address not in self._links:
                    server = self._dispatcher.add(address)
                    link = self._link(server, side=self._side)
                    self._links[address] = (server, link)
                    link.start()

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            self._is_closed = True
            links = [link for _, link in self._links.values()]
        for link in links:
            link.close()
        for link in links:
            link.join(1.0)
