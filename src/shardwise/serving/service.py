"""`shardwise.service`: an executor of batch servers, for the loader's `executor=`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import Executor
from shardwise.serving.addresses import parse_addresses
from shardwise.serving.executor import ServiceExecutor

__all__ = ["Service", "service"]


@dataclass(frozen=True, slots=True)
class Service:
    """Batch servers that a loader uses; made by `shardwise.service`.

    Attributes:
        addresses: of the servers.
        fallback: whether batches are made here while no server answers.
        token_file: the file with the job's token, or None.
    """

    addresses: tuple[str, ...]
    fallback: bool = False
    token_file: str | None = None

    def make_executor(self, builder: BatchBuilder, *, timeout: float | None) -> Executor:
        """The executor of a loader's batches."""
        return ServiceExecutor(
            builder,
            self.addresses,
            fallback=self.fallback,
            token_file=self.token_file,
            timeout=timeout,
        )


def service(
    addresses: str | Sequence[str],
    *,
    fallback: bool = False,
    token_file: str | os.PathLike[str] | None = None,
) -> Service:
    """Batches made by servers, which `shardwise serve` starts: for a loader's `executor=`.

    The servers must have the same data, decoders, transforms and release; others are refused. A
    server that dies, comes back or is late changes no batch and no order. Nothing is asked of a
    server before the first batch is.

    Args:
        addresses: "tcp://host:port" of one server or several, as a list or with commas between;
            "ucx://host:port" of those that were started with `--transport ucx`.
        fallback: make batches in this process while no server answers, in place of waiting.
        token_file: the file with the token of the job, where the servers have one. Its owner alone
            should be able to read it.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an address is not of this form.

    Examples:
        >>> import shardwise as sw
        >>> servers = sw.service("tcp://a:7000,tcp://b:7000", fallback=True)
        >>> loader = sw.DataLoader(sw.wrap(range(10)), batch_size=4, executor=servers)
        >>> loader.stats()["executor"]
        'service'
    """
    if not isinstance(fallback, bool):
        raise TypeError(f"fallback={fallback!r:.80}: use True or False")
    if token_file is not None and not isinstance(token_file, str | os.PathLike):
        raise TypeError(f"token_file={token_file!r:.80}: give the path of a file, or None")
    path = None if token_file is None else os.fspath(token_file)
    if path is not None and (not isinstance(path, str) or not path or "\0" in path):
        raise ValueError(f"token_file={path!r:.80}: give the path of a file")
    return Service(parse_addresses(addresses), fallback, path)
