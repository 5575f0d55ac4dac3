"""Real batch servers: as processes that can be killed, started again on their port, or here."""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import shardwise as sw
from shardwise.extensions.service.server import BatchServer
from shardwise.extensions.service.tls import TlsFiles
from shardwise.extensions.service.token import read_token
from shardwise.extensions.service.transports import listen
from shardwise.testing import assert_batches_equal
from tests.support.server_process import end_with_parent, free_port, stop

_DATASET = """
import numpy as np
import shardwise as sw


def augmented(sample, rng):
    if sample["value"] == BAD:
        raise ValueError("no such number")
    return {**sample, "noise": rng.random((SIDE, SIDE)), "text": str(sample["value"])}


def dataset():
    return sw.wrap(list(range(SIZE))).map(augmented)
"""


def write_dataset(folder: Path, *, size: int = 240, bad: int = -1, side: int = 8) -> Path:
    """A file whose `dataset` both sides open; the sample `bad` raises in its transform.

    A sample has `side` x `side` numbers of 8 bytes.
    """
    path = folder / "served.py"
    values = {"SIZE": size, "BAD": bad, "SIDE": side}
    text = _DATASET
    for name, value in values.items():
        text = text.replace(name, str(value))
    path.write_text(text)
    return path


def module_of(path: Path) -> ModuleType:
    """The module in a file, as the client's program has it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BatchServers:
    """Some servers of the `dataset` in a file, or of what clients send (None); a context manager.

    `options` are those of `shardwise serve`.
    """

    def __init__(
        self,
        path: Path | None,
        count: int = 2,
        *options: object,
        token_file: Path | None = None,
    ) -> None:
        self._target = [] if path is None else [f"{path}:dataset"]
        self._options = [str(each) for each in options]
        if token_file is not None:
            self._options += ["--token-file", str(token_file)]
        self.token_file = token_file
        self._processes: list[subprocess.Popen[bytes]] = []
        self.addresses: list[str] = []
        self._count = count

    def __enter__(self) -> Self:
        started = [self._start(free_port()) for _ in range(self._count)]
        self._processes = started
        self.addresses = [_address(process) for process in started]
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        for process in self._processes:
            stop(process)
            assert process.stdout is not None
            process.stdout.close()

    def process(self, number: int) -> subprocess.Popen[bytes]:
        return self._processes[number]

    def kill(self, number: int) -> None:
        process = self._processes[number]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def freeze(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT)

    def start(self, number: int, *, wait: bool = False) -> None:
        """Start a killed server again, on its port."""
        process = self._processes[number]
        assert process.stdout is not None
        process.stdout.close()
        port = int(self.addresses[number].rpartition(":")[2])
        self._processes[number] = self._start(port)
        if wait:
            assert _address(self._processes[number]) == self.addresses[number]

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        command = ["-m", "shardwise", "serve", *self._target, "--port", str(port), *self._options]
        environment: dict[str, Any] = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - two system calls
        )


def _address(process: subprocess.Popen[bytes]) -> str:
    """The address that a server says it is ready at."""
    assert process.stdout is not None
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 0.1)[0]:
            line = process.stdout.readline().decode().strip()
            assert line.startswith("ready: "), f"the server ended: {process.wait()}"
            return line.removeprefix("ready: ")
    raise AssertionError("the server did not say that it is ready")


@contextmanager
def serving(
    *datasets: Any,
    port: int = 0,
    scheme: str = "tcp",
    files: TlsFiles | None = None,
    token_file: Path | None = None,
    **options: Any,
) -> Iterator[list[BatchServer]]:
    """A server of each dataset, in this process."""
    if token_file is not None:
        options["token"] = read_token(token_file)
    with ExitStack() as stack:
        servers = []
        for data in datasets:
            listener = listen(scheme, "127.0.0.1", port, files=files)
            server = BatchServer(listener, dataset=data, **options)
            server.start()
            stack.callback(server.close)
            servers.append(server)
        yield servers


def addresses(servers: list[BatchServer]) -> list[str]:
    return [server.address for server in servers]


def loader(data: sw.Dataset, executor: Any, **options: Any) -> sw.DataLoader:
    """A loader of the only rank, of arrays of numpy."""
    base: dict[str, Any] = {"batch_size": 8, "rank": 0, "world_size": 1, "output": "numpy"}
    return sw.DataLoader(data, executor=executor, **(base | options))


def check_epoch(data: sw.Dataset, service: Any, **options: Any) -> dict[str, Any]:
    """An epoch is the inline executor's; returns the service's counts."""
    options = {"shuffle": True, **options}
    with loader(data, service, **options) as found:
        for one, other in zip(found, loader(data, "inline", **options), strict=True):
            assert_batches_equal(other, one)
        counts: dict[str, Any] = found.stats()["service"]
    return counts


def elastic_loader(data: sw.Dataset, executor: Any, rank: int, world_size: int) -> sw.DataLoader:
    """A loader of one rank of 1, 2 or 3, whose batches are 12 samples together."""
    return loader(
        data, executor, batch_size=12 // world_size, shuffle=True, seed=5, remainder="uneven",
        rank=rank, world_size=world_size, timeout=240,
    )  # fmt: skip


def check_elastic_epoch(
    data: sw.Dataset,
    service: Any,
    world_sizes: Sequence[int],
    *,
    after_batch: Callable[[list[sw.DataLoader], bool], None],
) -> dict[str, int]:
    """An epoch on several numbers of ranks in turn is the inline executor's.

    `after_batch(ranks, is_last)` is called after each batch, and told of a number of ranks' last.
    Returns the counts "resent" and "made_here" of all ranks.
    """
    seen: list[int] = []
    counts = {"resent": 0, "made_here": 0}
    state = None
    for leg, world_size in enumerate(world_sizes):
        ranks, truths = (
            [elastic_loader(data, executor, rank, world_size) for rank in range(world_size)]
            for executor in (service, "inline")
        )
        for each in (*ranks, *truths):
            if state is not None:
                each.load_state_dict(state)
        pairs = [(iter(rank), iter(truth)) for rank, truth in zip(ranks, truths, strict=True)]
        num_batches = ranks[0].num_steps_left // (len(world_sizes) - leg) * world_size
        for number in range(num_batches):
            found, wanted = map(next, pairs[number % world_size])
            assert_batches_equal(wanted, found)
            seen += found["__index__"].tolist()
            after_batch(ranks, number == num_batches - 1)
        state = ranks[0].state_dict()
        for rank in ranks:
            for name in counts:
                counts[name] += rank.stats()["service"][name]
        for each in (*ranks, *truths):
            each.close()
    assert sorted(seen) == list(range(len(data))), "lost or doubled"
    return counts
