"""The inputs of a build: samples of a dataset, or the items of a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.dataset.code_digest import held_digest
from shardwise.dataset.recipe_digest import recipe_digest
from shardwise.sources.tar.source import TarSource
from shardwise.sources.tar.write.stored import StoredRun

# Samples that are read at a time: enough for long reads, and little memory beside the shard.
_READ_BYTES, _MAX_ROWS = 16 << 20, 1024


class Input(Protocol):
    """Numbered inputs of a build; pickles for worker processes."""

    # Keys come from the format, and not from the user.
    has_own_keys: ClassVar[bool] = False

    def __len__(self) -> int:
        """The number of inputs."""
        ...

    def fingerprint(self) -> str: ...

    def mean_bytes(self) -> float:
        """Stored bytes of an input; 0 where they are unknown."""
        return 0.0

    def sizes(self) -> NDArray[np.int64]:
        """Inputs per shard, int64 `[shards]`, for an order by windows."""
        return np.array([len(self)], np.int64)

    def url_of(self, number: int) -> str | None:  # noqa: ARG002 - by default inputs have no shard
        """The shard of an input; None where it has none."""
        return None

    def read(self, ids: NDArray[np.int64]) -> Iterator[tuple[int, Any]]: ...

    def stored(self, ids: NDArray[np.int64]) -> Iterator[StoredRun] | None:  # noqa: ARG002
        """Inputs as they stand in tar shards; None where they must be read."""
        return None


@dataclass(frozen=True)
class DatasetInput(Input):
    """The samples of a dataset, with its decoders and maps."""

    has_own_keys = True

    samples: Dataset

    def __len__(self) -> int:
        return len(self.samples)

    def fingerprint(self) -> str:
        recipe = recipe_digest(self.samples, digest=held_digest)
        return held_digest((self.samples.fingerprint, recipe))

    def mean_bytes(self) -> float:
        manifest = self.samples.manifest
        return manifest.num_bytes / max(1, manifest.num_samples)

    def sizes(self) -> NDArray[np.int64]:
        return self.samples.shard_sizes

    def url_of(self, number: int) -> str | None:
        return self.samples.url_of(number)

    def read(self, ids: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        rows = int(min(_MAX_ROWS, max(1, _READ_BYTES // max(1.0, self.mean_bytes()))))
        for start in range(0, len(ids), rows):
            block = ids[start : start + rows]
            try:
                samples = self.samples.__getitems__(block)
            except DataError:
                # Find the damaged sample, and yield the others.
                yield from self._one_by_one(block)
            else:
                yield from zip(block.tolist(), samples, strict=True)

    def stored(self, ids: NDArray[np.int64]) -> Iterator[StoredRun] | None:
        """See `Input.stored`: for neighbours in tar shards without decoders, maps, selection."""
        source, transforms = self.samples.source, self.samples.transforms
        is_touched = transforms.decoders or transforms.maps or transforms.selected is not None
        if is_touched or transforms.indices is not None or not isinstance(source, TarSource):
            return None
        if not len(ids) or (np.diff(ids) != 1).any():
            return None
        return source.stored_runs(int(ids[0]), int(ids[-1]) + 1)

    def _one_by_one(self, ids: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        for number in ids.tolist():
            try:
                sample: Any = self.samples[number]
            except DataError as error:
                sample = error
            yield number, sample


@dataclass(frozen=True)
class ItemsInput(Input):
    """The items of a sequence, such as paths or URLs, which a function makes samples of."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def fingerprint(self) -> str:
        return held_digest(list(self.items))

    def read(self, ids: NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        for number in ids.tolist():
            yield number, self.items[number]


def input_of(source: Any) -> Input:
    """The inputs that a build reads from a source."""
    if isinstance(source, Dataset):
        if source.sampler is None and len(source.removed):
            source = source.subset(np.setdiff1d(np.arange(len(source)), source.removed))
        return DatasetInput(source)
    if isinstance(source, Sequence) and not isinstance(source, str | bytes | bytearray):
        return ItemsInput(source)
    raise TypeError(
        f"build({source!r:.80}): give a dataset, such as sw.tar(...), or a list of items with "
        "map=function; a generator has no order that a second run could repeat, so make a list"
    )
