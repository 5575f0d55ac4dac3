"""The executor of decoders by default: threads make the first batches, processes the others.

Threads make the first batch sooner than an interpreter starts, and are all that a small job needs.
But each image gives Python's lock up several times, and a program that trains beside 14 such
threads gets it back too late. So worker processes start once decoding has cost `START_CPU_S`, and
take over when all of them wait for tasks: no batch waits for their start. Batches are the same bit
by bit (I5), whoever makes them.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain

from shardwise.base.errors import WorkerError, message_of
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.request import Batch, BatchRequest, Concurrency
from shardwise.engine.threads import ThreadExecutor

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
