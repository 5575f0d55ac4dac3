"""`MultiLoader`, which needs ZMQ in WebDataset: here torch's workers do its work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.compat.webdataset.loader import StatefulLoader
from shardwise.compat.webdataset.utils import identity


@dataclass(eq=False, repr=False)
class MultiLoader:
    """What a dataset yields in several worker processes, one item of each worker in turn."""

    dataset: Iterable[Any]
    workers: int = 4
    verbose: bool = False
    nokill: bool = False
    prefix: str = ""

    def __post_init__(self) -> None:
        self._loader = StatefulLoader(
            self.dataset, batch_size=None, num_workers=self.workers, collate_fn=identity
        )

    def kill(self) -> None:
        """End the workers."""
        self._loader.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)
