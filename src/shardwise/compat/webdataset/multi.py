"""`MultiLoader`, which needs ZMQ in WebDataset: here torch's workers do its work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shardwise.compat.webdataset.loader import StatefulLoader
from shardwise.compat.webdataset.utils import identity


class MultiLoader:
    """What a dataset yields in several worker processes, one item of each worker in turn."""

    def __init__(
        self,
        dataset: Iterable[Any],
        workers: int = 4,
        verbose: bool = False,  # noqa: ARG002
        nokill: bool = False,  # noqa: ARG002
        prefix: str = "",  # noqa: ARG002
    ) -> None:
        self.dataset = dataset
        self.workers = workers
        self._loader = StatefulLoader(
            dataset, batch_size=None, num_workers=workers, collate_fn=identity
        )

    def kill(self) -> None:
        """End the workers."""
        self._loader.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)
