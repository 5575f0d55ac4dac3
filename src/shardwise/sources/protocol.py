"""What a source is: the one protocol between formats and the dataset, and a source's traits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns, Layout
from shardwise.plan import WindowShape
from shardwise.sources.manifest import Manifest


@runtime_checkable
class Source(Protocol):
    """Samples in storage, by id.

    Columns hold stored bytes, as a `BytesColumn`, unless the source's `traits`, a `SourceTraits`,
    say otherwise. More members are optional:

    - `undecoded(names)`: a source of the same samples that holds these fields as they are stored,
      for decoders of bytes, where its own values are decoded already.
    - `read_sample(id, fields)`: one sample, in less time than `read` takes for one.
    - `read_epoch(ids, fields, epoch=, seed=)`: `read` for samples that are others in each epoch,
      such as blocks of shuffled documents; `read` gives those of epoch 0 and seed 0.
    - `directory`: where what is computed of the samples may be kept, or None; `version()`: a text
      that changes when a shard is rewritten.
    - `media_files(field)`: the videos or sounds of a field with their indexes, by ranges
      (`shardwise.extensions.media.clips.files.MediaFiles`).
    - `file_of(id)`: key, URL and version (or None) of the file that is the first field of a sample,
      and `storage`, its options: extensions read a part of it.
    - `url_of(id)`: where a sample lies, if that is not its shard of the manifest.
    - `read_run(start, stop, fields)`: an iterator of `Columns`, the samples `[start, stop)` in
      order, in less time and memory than `read` takes; None where it has no such way.

    A source opens files lazily, once a process (`shardwise.sources.PerProcess` does that), and
    pickles without them; `read` may be called by several threads at once and after a fork. The
    conformance kit `shardwise.testing.check_source` holds a new one to this.
    """

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """What `shuffle=True` means for this source: "full" or "window"."""
        ...

    @property
    def manifest(self) -> Manifest:
        """The ordered shards with exact counts; read at the first use."""
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


@dataclass(frozen=True)
class SourceTraits:
    """What a source holds beside stored bytes, and what reading it costs.

    Attributes:
        value_fields: fields that hold values, which decoders get as they are. Their columns are
            arrays `[rows, ...]`, or sequences with None where a sample lacks the field.
        layouts: name -> (shape, dtype) of a row: value fields whose columns are arrays wherever no
            sample lacks the field. They are copied into a batch with no work a row.
        parts: fields beside `fields` that are read only where they are named, such as
            "image.bytes" of a field "image": `select` and `decode` take them.
        padding: what arrays of a field are padded with where they differ in length, whatever a
            loader's `ragged=` is: a number, or "edge" for the last value again.
        holds_objects: all fields are Python objects, which are read one by one.
        random_reads_are_requests: reading one sample out of order costs a remote request.
        read_is_one_request: all samples of one `read` are one remote request. A batch is read by
            one call then, and several batches at a time.
        counts_waits: it reads by `shardwise.storage`, which counts the reads that had to wait. The
            rest of a read holds the GIL, so a second thread gains nothing until reads wait.
        reads_pieces: a row is read with others, such as a row group that is decompressed, which the
            threads of a process share.
        window_shape: lanes and window of a window shuffle, for a source that reads shards in large
            pieces; it depends on the manifest alone. None for the default.
    """

    value_fields: Collection[str] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    padding: Mapping[str, Any] = field(default_factory=dict)
    holds_objects: bool = False
    random_reads_are_requests: bool = False
    read_is_one_request: bool = False
    counts_waits: bool = False
    reads_pieces: bool = False
    window_shape: WindowShape | None = None


def common_entries(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that all of one mapping or more have."""
    first, *others = every
    return {k: v for k, v in first.items() if all(k in o and o[k] == v for o in others)}


class EpochReads:
    """`read` of a source that has `read_epoch`: the samples of epoch 0 and seed 0."""

    read_epoch: Callable[..., Columns]

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read samples of epoch 0 and seed 0; see the protocol."""
        return self.read_epoch(ids, fields, epoch=0, seed=0)


def traits_of(source: Source) -> SourceTraits:
    """The `traits` of a source, or those of one that says nothing."""
    traits: SourceTraits | None = getattr(source, "traits", None)
    return traits or SourceTraits()


def value_fields_of(source: Source) -> Collection[str]:
    """The fields of a source whose columns are values, not stored bytes."""
    traits = traits_of(source)
    return source.fields if traits.holds_objects else traits.value_fields
