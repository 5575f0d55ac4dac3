"""Batch servers as Ray actors, and the named actor that starts them and knows their addresses.

Ray places, starts and restarts them. Requests and batches go over the service's own connections,
under the token that the named actor gives to every client: who may use the Ray cluster may run code
on it anyway. The servers belong to the named actor and it to the process that made it, so that Ray
ends them all with that process, however it ends.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shardwise.base.shown import escaped
from shardwise.extensions.service.server import BatchServer
from shardwise.extensions.service.tcp import TcpListener

# Options of each server's actor: Ray restarts it as often as it dies, on whichever node has a CPU.
DEFAULT_OPTIONS: Mapping[str, Any] = {
    "num_cpus": 1,
    "max_restarts": -1,
    "scheduling_strategy": "SPREAD",
}
# Clients leave a server within a round trip of the notice; a stopped or lost one must not keep it.
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerList:
    """The servers of one moment."""

    addresses: tuple[str, ...]
    token: bytes
    num_wanted: int
    trouble: str


class BatchServerActor:
    """A batch server on the address of its node, which takes datasets from its clients."""

    def __init__(self, registry: Any, number: int, token: bytes, num_threads: int) -> None:
        import ray

        self._server = BatchServer(
            TcpListener(ray.util.get_node_ip_address(), 0), token=token, num_threads=num_threads
        )
        self._server.start()
        # Ray ends it together with the named actor: that is not an error worth a traceback.
        with suppress(ray.exceptions.ActorDiedError):
            ray.get(registry.publish.remote(number, self._server.address))

    def ready(self) -> None:
        """Return once it was made; Ray raises what its making raised."""

    def left(self) -> None:
        while not self._server.idle_s:
            time.sleep(0.02)


class ServerRegistry:
    """Starts the servers, and knows their addresses; an actor with one thread, by asyncio."""

    def __init__(self, count: int, token: bytes, options: Mapping[str, Any]) -> None:
        self._token = token
        self._options = dict(options)
        self._actors: dict[int, Any] = {}
        self._addresses: dict[int, str] = {}
        self._troubles: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = count
        # Another registry of this name has other stamps.
        self._name = uuid.uuid4().hex
        self._num_changes = 0
        self._changed = asyncio.Condition()

    async def servers(self, stamp: str, wait_s: float) -> tuple[str, ServerList]:
        """The servers and their stamp, once that differs from `stamp`, or after `wait_s`."""
        if len(self._actors) != self._count:
            await self._start_and_end()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._stamp != stamp)
        # A server that died may have had the port of one that was started since.
        addresses = tuple(dict.fromkeys(self._addresses[key] for key in sorted(self._addresses)))
        troubles = [f"{each} of them: {text}" for each, text in sorted(self._troubles.items())]
        if len(addresses) < self._count:
            text = f"Ray has started {len(addresses)} of {self._count} servers"
            troubles.insert(0, text)
        return self._stamp, ServerList(addresses, self._token, self._count, "; ".join(troubles))

    async def publish(self, number: int, address: str) -> None:
        """Take the address of a server that was started, or started again."""
        if number in self._actors:
            self._addresses[number] = address
            self._troubles.pop(number, None)
            await self._tell()

    async def scale(self, count: int) -> None:
        """Have `count` servers: the newest are ended, or new ones started."""
        self._count = count
        await self._start_and_end()

    @property
    def _stamp(self) -> str:
        return f"{self._name} {self._num_changes}"

    async def _tell(self) -> None:
        async with self._changed:
            self._num_changes += 1
            self._changed.notify_all()

    async def _start_and_end(self) -> None:
        import ray

        kind = ray.remote(BatchServerActor).options(**self._options)
        registry = ray.get_runtime_context().current_actor
        # As many threads as CPUs that Ray sets aside for a server.
        num_threads = max(1, int(self._options["num_cpus"]))
        for number in range(len(self._actors), self._count):
            actor = kind.remote(registry, number, self._token, num_threads)
            self._actors[number] = actor
            self._run(self._watch(number, actor))
        ended = range(self._count, len(self._actors))
        actors = [(self._actors.pop(each), self._addresses.pop(each, None)) for each in ended]
        for number in ended:
            self._troubles.pop(number, None)
        await self._tell()
        for actor, address in actors:
            self._run(self._end(actor, was_used=address is not None))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, actor: Any, *, was_used: bool) -> None:
        """End a server that is not needed any more, after its clients have left it."""
        import ray

        if was_used:
            with suppress(ray.exceptions.RayError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await actor.left.remote()
        ray.kill(actor, no_restart=True)

    async def _watch(self, number: int, actor: Any) -> None:
        """Find out why a server can't be started: Ray reports it only to a caller."""
        import ray

        try:
            await actor.ready.remote()
        except ray.exceptions.RayError as error:
            if self._actors.get(number) is actor and number not in self._addresses:
                lines = str(error).strip().splitlines()
                self._troubles[number] = escaped(lines[-1]) if lines else type(error).__name__
                await self._tell()
