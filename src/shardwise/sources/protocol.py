"""What a source is: the one protocol between formats and the dataset."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Columns
from shardwise.sources.manifest import Manifest

__all__ = ["Source"]


@runtime_checkable
class Source(Protocol):
    """Samples in storage, by id.

    Columns hold stored bytes, as a `BytesColumn`, unless the source says otherwise by members that
    are read where they are there:

    - `value_fields`, names: these fields are values, which decoders get as they are. Their columns
      are arrays `[rows, ...]`, or sequences with None where a sample lacks the field.
    - `layouts`, name -> (shape, dtype): value fields whose columns are such arrays wherever no
      sample lacks the field. They are copied into a batch as they are, with no work a row.
    - `parts`, names: fields beside `fields` that are read only where they are named, such as
      "image.bytes" of a field "image": `select` and `decode` take them.
    - `undecoded(names)`: a source of the same samples that holds these fields as they are stored,
      for decoders of bytes, where its own values are decoded already.
    - `holds_objects`, True: all fields are values, and nothing is gained by reading several samples
      together.
    - `asks_a_store`, True: a sample out of order is a request to a store.
    - `counts_waits`, True: it reads by `shardwise.storage`, which counts reads that had to wait;
      besides, reading costs Python's time only.
    - `window_shape`, a `WindowShape`: how a window shuffle goes through the shards, for a source
      that reads them in large pieces; it depends on the manifest alone.

    A source opens files lazily, once a process, and pickles without them; `read` may be called by
    several threads at once and after a fork. The conformance kit
    `shardwise.testing.check_source` holds a new one to this.
    """

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """What `shuffle=True` means for this source: "full" or "window"."""
        ...

    @property
    def manifest(self) -> Manifest:
        """The ordered shards with exact counts; found at the first use."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields that any sample has, in storage order."""
        ...

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read samples.

        Args:
            ids: int64 `[rows]`, in any order, repeats allowed, each in [0, N).
            fields: the fields to read, each one of `self.fields`; None for all.

        Returns:
            The columns in the order of `ids`; a field that a sample lacks is None in its row.

        Raises:
            DataError: a shard is damaged, missing or not the one indexed.
            StorageError: bytes could not be read.
        """
        ...
