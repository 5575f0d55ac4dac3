"""`MultiLoader`, which needs ZMQ in WebDataset: here torch's workers do its work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwise.compat.webdataset.loader import StatefulLoader
from shardwise.compat.webdataset.utils import identity


class MultiLoader(StatefulLoader):
    """A loader of a dataset's items from several worker processes, one of each worker in turn."""

    def __init__(
        self,
        dataset: Iterable[Any],
        workers: int = 4,
        verbose: bool = False,  # noqa: ARG002 - nothing is printed
        nokill: bool = False,  # noqa: ARG002 - workers end with their epoch
        prefix: str = "",  # noqa: ARG002 - there is no socket
    ) -> None:
        super().__init__(dataset, batch_size=None, num_workers=workers, collate_fn=identity)

    kill = StatefulLoader.close
