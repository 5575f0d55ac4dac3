"""The servers that Ray runs, found by the named actor, which is made if it does not exist.

Each process asks the named actor and is answered when something changes. The first one to ask makes
it, and so owns the servers; where that process ends before the others, one of them makes it again,
with the number of servers that was last requested.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from shardwise.base.errors import MissingExtraError, ServiceError
from shardwise.base.process_group import shared_name
from shardwise.base.shown import escaped
from shardwise.extensions.service.ray_servers import (
    DEFAULT_OPTIONS,
    BatchServerActor,
    ServerList,
    ServerRegistry,
)

_NAMESPACE = "shardwise"
# The named actor answers when something changes, and else after this time.
_POLL_S = 10.0
# Without an answer for this long, its node may be gone. Starting it takes seconds, more if busy.
_ANSWER_S = 120.0
_RETRY_S = 1.0
# Processes that may wait for an answer at once.
_MAX_CLIENTS = 100_000


def require_ray() -> None:
    """Raise `MissingExtraError` where Ray is not installed; imports nothing."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("servers on Ray need the package ray", extra="ray")


class RayDirectory:
    """Finds, starts and counts the servers of one service on Ray.

    Whoever gives the same `name` shares it; None is one of this job's own.
    """

    def __init__(self, count: int, *, name: str | None, options: Mapping[str, Any]) -> None:
        self.num_wanted = count
        self._name = name
        self._options = {**DEFAULT_OPTIONS, **options}
        self._token = secrets.token_hex(32).encode()
        self._registry: Any = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Join the Ray cluster, and find the named actor or make it; waits for no server."""
        import ray

        if os.getpid() != self._pid and ray.is_initialized():
            raise ServiceError(
                "a forked process can't use Ray, whose connection is its parent's: start it with "
                "'spawn' or 'forkserver'"
            )
        if not ray.is_initialized():
            try:
                ray.init(address="auto", namespace=_NAMESPACE)
            except ConnectionError as error:
                raise ServiceError(
                    f"sw.service(ray={self.num_wanted}) finds no Ray cluster to join: start one by "
                    f"'ray start --head', or call ray.init() before ({error})"
                ) from None
        ray.remote(BatchServerActor).options(**self._options)
        with self._lock:
            self._join()

    def scale(self, count: int) -> None:
        import ray

        self.open()
        try:
            ray.get(self._registry.scale.remote(count), timeout=_ANSWER_S)
        except ray.exceptions.RayError as error:
            raise ServiceError(f"the servers on Ray can't be scaled: {_line(error)}") from None
        self.num_wanted = count

    def follow(
        self, changed: Callable[[ServerList], None], failed: Callable[[str], None]
    ) -> Callable[[], None]:
        """Call `changed` with the servers at each change, or `failed` with why, in a thread."""
        answers: SimpleQueue[Future[Any] | None] = SimpleQueue()
        threading.Thread(
            target=self._follow,
            args=(changed, failed, answers),
            name="shardwise_servers",
            daemon=True,
        ).start()
        return lambda: answers.put(None)

    def _follow(
        self,
        changed: Callable[[ServerList], None],
        failed: Callable[[str], None],
        answers: SimpleQueue[Future[Any] | None],
    ) -> None:
        import ray

        stamp = ""
        while True:
            trouble = ""
            try:
                with self._lock:
                    self._join()
                    asked = self._registry.servers.remote(stamp, _POLL_S).future()
                # No thread waits inside Ray, which may be shut down at any time.
                asked.add_done_callback(answers.put)
                answer = answers.get(timeout=_ANSWER_S)
                if answer is None:
                    return
                before, (stamp, servers) = stamp, answer.result()
                if stamp != before:
                    self.num_wanted, self._token = servers.num_wanted, servers.token
                    changed(servers)
                continue
            except (ray.exceptions.RayError, RuntimeError) as error:  # or a link gets no thread
                stamp, trouble = "", _line(error)
            except Empty:
                trouble = f"no answer for {_ANSWER_S:g} s"
            if not ray.is_initialized():
                failed("Ray was shut down in this process")
                return
            failed(f"Ray's actor that knows the servers: {trouble}")
            with self._lock:
                self._registry = None
            try:
                if answers.get(timeout=_RETRY_S) is None:
                    return
            except Empty:
                continue

    def _join(self) -> None:
        """Find the named actor, or make it, on this node: it should live as long as its owner."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self._registry is not None:
            return
        context = ray.get_runtime_context()
        if self._name is None:
            # The ranks of a process group agree on a name; those of one Ray job have its number.
            shared = shared_name("shardwise/service", uuid.uuid4().hex)
            self._name = shared or f"job {context.get_job_id()}"
        kind = ray.remote(ServerRegistry).options(
            name=f"shardwise service {self._name}",
            namespace=_NAMESPACE,
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=_MAX_CLIENTS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True),
        )
        self._registry = kind.remote(self.num_wanted, self._token, self._options)

    def __getstate__(self) -> dict[str, Any]:
        """Handles do not travel: a copy joins by itself."""
        state = dict(self.__dict__)
        del state["_lock"], state["_pid"]
        return {**state, "_registry": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_pid": os.getpid(), "_lock": threading.Lock()}


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return escaped(lines[0]) if lines else type(error).__name__
