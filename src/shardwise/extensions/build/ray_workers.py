"""Workers of a build on a Ray cluster: each shard is a task of one core.

Ray places tasks and starts processes; which shard is made again after a death is decided by
`hand_out`, as for local processes. Ray is imported here only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise.base.errors import WorkerError, imports_of
from shardwise.dataset.code_digest import code_digest
from shardwise.dataset.recipe_digest import recipe_digest
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.extensions.build.inputs import DatasetInput
from shardwise.extensions.build.shard import Job, make_shard
from shardwise.extensions.build.workers import AHEAD, WorkerDiedError, Workers

# A head node that does not take a connection within this time is away; Ray itself would try for
# a quarter of an hour.
_CONNECT_S = 10.0
_CANCEL_S = 5.0


@contextmanager
def ray_workers(job: Job, *, address: str | None, num_workers: int | None) -> Iterator[Workers]:
    """Workers until the block ends; tasks that are running then are interrupted.

    A connection to Ray that the program has is used, and left as it is. One that is made here, and
    a cluster that Ray starts for it, end with the block.

    Args:
        job: the build.
        address: "auto" or "host:port" of a cluster that runs; None for one that runs, or else a new
            one on this machine.
        num_workers: shards at a time; None for the cores of the cluster, as they come and go.
    """
    ray = _ray()
    is_ours = _connect(ray, address)
    try:
        tasks = _Tasks(ray, job, num_workers)
        try:
            yield tasks
        finally:
            tasks.close()
    finally:
        if is_ours:
            ray.shutdown()


class _Tasks:
    """Shards as tasks of Ray. A death costs its own shard only."""

    advice = (
        "maybe for lack of memory: give each shard fewer samples, or make fewer shards at a time "
        "by num_workers=; Ray's logs on that machine have the reason"
    )

    def __init__(self, ray: Any, job: Job, num_workers: int | None) -> None:
        self._ray = ray
        self._num_workers = num_workers
        # Once per node; a task gets the reference only.
        self._job = [ray.put(pickle_by_value(job))]
        self._names = job
        self._code = _code_of(job)
        self._make = ray.remote(max_retries=0)(_make)
        self._directory = str(Path.cwd())
        self._running: dict[Any, int] = {}

    @property
    def limit(self) -> int:
        """The cores of the cluster now; two more tell an autoscaler that there is more to do."""
        if self._num_workers is not None:
            return self._num_workers
        return max(1, int(self._ray.cluster_resources().get("CPU", 0))) + AHEAD

    def submit(self, number: int) -> None:
        make = self._make.options(name=f"build {self._names.name(number)}")
        ref = make.remote(self._job, self._names.token, self._code, self._directory, number)
        self._running[ref] = number

    def wait(self) -> dict[int, BaseException | None]:
        # Not by futures: in its own task, `ray.wait` gives the core away that it has.
        self._ray.wait(list(self._running), num_returns=1)
        running = list(self._running)
        done, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        return {self._running.pop(ref): self._error_of(ref) for ref in done}

    def _error_of(self, ref: Any) -> BaseException | None:
        exceptions = self._ray.exceptions
        try:
            self._ray.get(ref)
        except (
            exceptions.WorkerCrashedError,
            exceptions.OutOfMemoryError,
            exceptions.NodeDiedError,
        ) as error:
            return WorkerDiedError(f"Ray says {type(error).__name__}")
        except exceptions.RayTaskError as error:
            raised: object = error.cause
            if not isinstance(raised, BaseException):
                raise
            # As it was raised there; Ray's own has the lines.
            raised.__cause__ = error
            return raised
        return None

    def close(self) -> None:
        """Take back what has not started, interrupt the rest, and wait until nothing runs."""
        running = list(self._running)
        while running:
            for ref in running:
                self._ray.cancel(ref)
            # Python drops an interrupt that is raised in a destructor: interrupt again.
            _, running = self._ray.wait(running, num_returns=len(running), timeout=_CANCEL_S)


def _make(pickled: list[Any], token: str, code: str, directory: str, number: int) -> None:
    """The task: a shard, made in the builder's directory where this machine has that."""
    is_here = Path(directory).is_dir()
    with contextlib.chdir(directory) if is_here else contextlib.nullcontext():
        job = _load_job(pickled[0], token, code)
        with job.place.join(token):
            make_shard(job, number)


@lru_cache(maxsize=1)
def _load_job(pickled: Any, token: str, code: str) -> Job:  # noqa: ARG001 - a token is of one build
    job: Job = pickle.loads(_ray().get(pickled))  # noqa: S301 - bytes of the builder itself
    here = _code_of(job)
    if here != code:
        raise WorkerError(
            f"the machine {os.uname().nodename!r} has other code of the functions of this build "
            f"({here} there, {code} at the program): install the same version on all machines"
        )
    return job


def _code_of(job: Job) -> str:
    """A digest of the functions as this machine has them: a pickle only names those of modules."""
    recipe = job.recipe
    samples = recipe.source.samples if isinstance(recipe.source, DatasetInput) else None
    reading = None if samples is None else recipe_digest(samples)
    return code_digest((recipe.map, recipe.filter, reading))


def _ray() -> Any:
    with imports_of("ray", "Ray is not installed"):
        import ray
    return ray


def _connect(ray: Any, address: str | None) -> bool:
    """Connect this program to Ray; whether it was not yet."""
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", there):
            raise ValueError(
                f"ray={address!r}: this program is connected to the Ray cluster at {there}: give "
                "ray=True to build there, or call ray.shutdown() first"
            )
        return False
    if address not in (None, "auto"):
        _reach(address)
    try:
        ray.init(address, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise WorkerError(
            f"ray={address!r}: no Ray cluster answers ({error}): start one by `ray start --head`, "
            "or give ray=True, which starts one on this machine"
        ) from error
    return True


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise WorkerError(
            f"ray={address!r}: no cluster answers ({error.strerror or error}): give the host and "
            "port of the cluster's head node, as `ray start --head` shows them"
        ) from error
