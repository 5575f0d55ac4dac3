"""The choice of the executor that makes the batches, and of its processes and threads.

By default threads make the first batches of decoders, and processes the others. Threads make the
first batch sooner than an interpreter starts, and are all that a small job needs. But each image
gives the lock of Python up several times, and a program that trains beside 14 such threads gets it
back too late. So worker processes start once decoding has cost `START_CPU_S`, and take over when
all of them wait for tasks: no batch waits for their start. Batches are the same bit by bit (I5).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from inspect import signature
from itertools import chain
from numbers import Real
from threading import TIMEOUT_MAX
from typing import Any, Literal, get_args

from shardwise.base.arguments import check_choice
from shardwise.base.errors import WorkerError, message_of
from shardwise.base.parallel import usable_cores
from shardwise.engine.batch.builder import BatchBuilder, InlineExecutor
from shardwise.engine.batch.prefetch import DEFAULT_PREFETCH_BYTES
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.engine.request import Batch, BatchRequest, Concurrency, Executor
from shardwise.engine.threads import ThreadExecutor
from shardwise.plan.arguments import whole

_logger = logging.getLogger("shardwise")

# Starting a worker costs 0.4 s of CPU time: a job that is done within a second gains nothing.
START_CPU_S = 1.0


@dataclass(eq=False)
class ThreadsFirstExecutor:
    """Builds batches with threads, and with processes once there is work for them.

    A dataset that can't be sent to processes, or that they can't read, is logged, and left to the
    threads.
    """

    threads: ThreadExecutor
    processes: ProcessExecutor

    def __post_init__(self) -> None:
        self._cpu_s = 0.0
        self._is_refused = False
        self._has_moved = False

    @property
    def concurrency(self) -> Concurrency:
        """That of the threads, until the processes take over."""
        if self._has_moved:
            return self.processes.concurrency
        later = "" if self._is_refused else "processes"
        return replace(self.threads.concurrency, next_executor=later)

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        self._has_moved = False
        with closing(self.threads.run(self._early(requests))) as batches:
            for batch in batches:
                self._cpu_s += batch.stages.cpu_s
                yield batch
        for request in requests:
            self.threads.close()
            self._has_moved = True
            yield from self.processes.run(chain([request], requests))

    def close(self) -> None:
        self.threads.close()
        self.processes.close()

    def _early(self, requests: Iterator[BatchRequest]) -> Iterator[BatchRequest]:
        """The requests for threads: those before the processes are ready."""
        while not self._are_processes_ready():
            request = next(requests, None)
            if request is None:
                return
            yield request

    def _are_processes_ready(self) -> bool:
        if self._is_refused or self._cpu_s < START_CPU_S:
            return False
        try:
            self.processes.start()
            is_ready = self.processes.is_ready
        except (TypeError, WorkerError) as error:
            self._is_refused = True
            self.processes.close()
            cause = "" if error.__cause__ is None else f" ({message_of(error.__cause__)})"
            _logger.warning(
                "%s%s. Threads go on decoding, and take turns with the program's own Python code; "
                "num_workers=0 asks for them", message_of(error), cause,
            )  # fmt: skip
            return False
        return is_ready


_logger = logging.getLogger("shardwise")

ExecutorName = Literal["inline", "threads", "processes"]
EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)
# More threads in one pool gain nothing: reading and decoding keep the cores busy.
_MAX_THREADS = 16
# Beyond 4 worker processes per core, they only compete for cores.
_MAX_WORKERS_A_CORE = 4
# Threads where the samples of a batch are one request to a store: requests of 64 ranges at 40 ms of
# round trip bring 3,000 ranges a second.
_STORE_THREADS = 8


# Makes an executor from a `BatchBuilder`, and from the options below that were set, by name.
ExecutorFactory = Callable[..., Executor]


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """The options for making batches on any number of ranks; see `shardwise.DataLoader`.

    Raises:
        TypeError: an option that must be a number is something else.
        ValueError: an option is not usable; the message has its value and what to use instead.
    """

    executor: ExecutorName | ExecutorFactory | None = None
    num_workers: int | None = None
    num_threads: int | None = None
    prefetch_factor: int = 2
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    timeout: float | None = None
    decode_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("prefetch_factor", "prefetch_bytes"):
            whole(name, getattr(self, name), least=1)
        for name, never in (
            ("timeout", "wait for ever"),
            ("decode_timeout", "let decoders take any time"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real | None):
                raise TypeError(f"{name}={value!r:.80}: use seconds above 0, or None to {never}")
            if value is None:
                continue
            seconds = math.inf
            with suppress(OverflowError):
                seconds = float(value)
            if not 0 < seconds <= TIMEOUT_MAX:
                raise ValueError(f"{name}={value!s:.80}: use seconds above 0, or None to {never}")
            # A sum with a numpy float of 32 bits is one, too, which nothing can wait for.
            object.__setattr__(self, name, seconds)
        for name in ("num_workers", "num_threads"):
            value = getattr(self, name)
            if value is not None and whole(name, value) < 0:
                raise ValueError(f"{name}={value}: use 0 or more, or None to have it chosen")
        if callable(self.executor):
            self._check_factory(self.executor)
        else:
            more = ", or what makes an executor from a shardwise.executors.BatchBuilder"
            check_choice("executor", self.executor, (None, *EXECUTORS), more=more)

    @property
    def set_by_user(self) -> dict[str, Any]:
        """The options that were set, for an executor of the user's."""
        names = ("num_workers", "num_threads", "timeout", "decode_timeout")
        return {name: value for name in names if (value := getattr(self, name))}

    def _check_factory(self, factory: ExecutorFactory) -> None:
        try:
            parameters = signature(factory)
        except ValueError:  # a function in C may have no signature
            return
        try:
            parameters.bind(None, **self.set_by_user)
        except TypeError as error:
            given = ", ".join(f"{name}={value}" for name, value in self.set_by_user.items())
            raise ValueError(
                f"executor={factory!r:.80} can't be called with a BatchBuilder"
                + (f" and {given} ({error}): leave these out" * bool(given) or f": {error}")
            ) from None


def make_executor(builder: BatchBuilder, options: ExecutorOptions, *, num_ranks: int) -> Executor:
    """Make the executor that the options ask for, in one of `num_ranks` ranks of a machine.

    By default threads, one for each core that this rank may use, for what only reads; one of them
    is active while no read blocks. Processes, one for each such core, where there is more than one
    core and functions of the user's run for each sample, which hold the GIL. Decoders of this
    library start in threads, and such processes take over after a second of work: they release
    the GIL, and many threads that get it back starve the program's. `num_workers` above 0 means
    processes, 0 none; each has one thread by default. `decode_timeout` means processes, too: a
    thread can't be stopped. Neither processes nor threads (`num_workers` 0 or None,
    `num_threads=0`) is the inline executor.
    """
    executor, num_workers, num_threads = options.executor, options.num_workers, options.num_threads
    decode_timeout = options.decode_timeout
    if callable(executor):
        return _require_executor(executor(builder, **options.set_by_user), made_by=executor)
    cores = usable_cores(num_ranks=num_ranks)
    cost = builder.dataset.cost
    moves = False
    if executor is None:
        executor = "inline" if num_threads == 0 else "threads"
        if decode_timeout is not None and num_workers != 0 and num_threads != 0:
            executor = "processes"
        is_open = num_workers is None and num_threads is None and cores > 1
        if num_workers or (is_open and cost.runs_python and _can_be_pickled(builder)):
            executor = "processes"
        moves = executor == "threads" and is_open and cost.decodes_rows
    if executor != "processes" and decode_timeout is not None:
        raise ValueError(
            f"decode_timeout={decode_timeout:g} with executor={executor!r}: a decoder that does "
            "not return can be stopped in a worker process only, so use executor='processes' or "
            "num_workers of 1 or more, or leave decode_timeout= out"
        )
    if executor != "processes" and num_workers:
        raise ValueError(
            f"executor={executor!r} has no processes: leave out num_workers={num_workers}, or use "
            "executor='processes'"
        )
    if executor == "processes":
        if num_workers == 0 or num_threads == 0:
            raise ValueError(
                f"executor='processes' needs at least one of each, not num_workers={num_workers} "
                f"and num_threads={num_threads}; None has them chosen"
            )
        num_workers, num_threads = num_workers or cores, num_threads or 1
        if num_workers >= _MAX_WORKERS_A_CORE * cores:
            _logger.warning(
                "num_workers=%d worker processes for the %d %s of this rank: each starts an "
                "interpreter before the first batch, and they take the cores from each other; "
                "num_workers=%d is as quick where decoding is the work",
                num_workers, cores, "core" if cores == 1 else "cores", cores,
            )  # fmt: skip
        return _processes(builder, options, num_workers, num_threads)
    if executor == "inline":
        if num_threads:
            raise ValueError(
                f"executor='inline' has no threads: leave out num_threads={num_threads}"
            )
        return InlineExecutor(builder)
    if num_threads == 0:
        raise ValueError("executor='threads' needs num_threads of 1 or more, or None")
    is_fixed = num_threads is not None or not cost.one_thread_suffices
    # Threads that wait for replies need no core.
    default = _STORE_THREADS if cost.batch_is_one_request else min(_MAX_THREADS, cores)
    num_threads = num_threads or default
    threads = ThreadExecutor(
        builder,
        num_threads=num_threads,
        num_prefetch=max(2, options.prefetch_factor * num_threads),
        prefetch_bytes=options.prefetch_bytes,
        is_fixed=is_fixed,
        timeout=options.timeout,
    )
    return (
        ThreadsFirstExecutor(threads, _processes(builder, options, cores, 1)) if moves else threads
    )


def _require_executor(made: Any, *, made_by: ExecutorFactory) -> Executor:
    if not isinstance(made, Executor):
        raise TypeError(
            f"executor={made_by!r:.80} made a {type(made).__qualname__}: a "
            "shardwise.executors.Executor has run(), close() and concurrency"
        )
    return made


def explain_choice(executor: Executor, builder: BatchBuilder, options: ExecutorOptions) -> str:
    """Why `make_executor` made this one, in a few words."""
    cost, name = builder.dataset.cost, executor.concurrency.executor
    if any(o is not None for o in (options.executor, options.num_workers, options.num_threads)):
        return "asked for"
    if isinstance(executor, ThreadsFirstExecutor):
        if name == "threads" and not executor.concurrency.next_executor:
            return "decoders that worker processes could not take over"
        return "decoders of rows: threads at first, processes after a second of work"
    if name == "processes":
        return "functions of yours hold the GIL" if cost.runs_python else "decode_timeout="
    reasons = {
        "samples are only read, by one thread until reads have to wait": cost.one_thread_suffices,
        "one core, or functions that can't be pickled": cost.runs_python,
        "one core": cost.decodes_rows,
        "no decoder fills rows of a fixed shape": not builder.layout,
        "reads that threads share": True,
    }
    return next(reason for reason, holds in reasons.items() if holds)


def _processes(
    builder: BatchBuilder, options: ExecutorOptions, num_workers: int, num_threads: int
) -> ProcessExecutor:
    return ProcessExecutor(
        builder,
        num_workers=num_workers,
        num_threads=num_threads,
        num_prefetch=max(2, options.prefetch_factor * num_workers),
        prefetch_bytes=options.prefetch_bytes,
        timeout=options.timeout,
        decode_timeout=options.decode_timeout,
    )


def _can_be_pickled(builder: BatchBuilder) -> bool:
    """Whether the dataset can be sent to worker processes; if not, log why."""
    try:
        pickle_by_value(builder, [])
    except TypeError as error:
        _logger.warning(
            "%s. Threads run it here, one at a time; num_workers=0 asks for them", error
        )
        return False
    return True
