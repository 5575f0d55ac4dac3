"""The dataset as the loader and the engine see it: one protocol, and the cost of loading."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import Layout
from shardwise.base.counters import Stages
from shardwise.plan import Sampler, WindowShape
from shardwise.storage import PoolRanges


@dataclass(frozen=True, slots=True)
class LoadCost:
    """The cost of loading a sample. It sets threads and rows per task, and never changes a value.

    Attributes:
        row_bytes: mean stored bytes of a sample where reading is all that it costs; None where it
            costs more, or the bytes are unknown.
        decodes_rows: decoders of this library fill the rows of a batch one by one, and a process
            reads no more for its rows than a thread.
        runs_python: functions of the user's run for each sample, which hold the GIL.
        one_thread_suffices: one thread loads as quickly as several, unless reads have to wait.
        random_reads_are_requests: reading one sample out of order costs a remote request.
        batch_is_one_request: the samples of a batch are one remote request if read together.
    """

    row_bytes: float | None = None
    decodes_rows: bool = False
    runs_python: bool = False
    one_thread_suffices: bool = False
    random_reads_are_requests: bool = False
    batch_is_one_request: bool = False


class DecodeWatch(Protocol):
    """Learns what a thread that loads samples does, so that a stuck decoder is found."""

    def begin(self, sample: int, key: str, part: int, detail: str = "") -> None:
        """Record the start of a decoder of a sample (-1: of a column), or of a function.

        `part` is the index of the field among the fields, or for a `map()` -1 minus its index;
        `detail` names the decoded part of the sample, such as the frames of a clip.

        Raises:
            DecodeTimeoutError: this part of this sample was stopped before.
        """

    def end(self) -> None:
        """Record that no decoder or function runs."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The arguments of one `Samples.load`, which has their meaning."""

    ids: NDArray[np.int64]
    epoch: int = 0
    seed: int = 0
    out: Mapping[str, NDArray[Any]] | None = None
    stats: Stages | None = None
    watch: DecodeWatch | None = None

    def row(self, row: int) -> LoadRequest:
        """The request for one row alone, with its row of each array."""
        out = {name: rows[row : row + 1] for name, rows in (self.out or {}).items()}
        return replace(self, ids=self.ids[row : row + 1], out=out)


class OrderedSamples(Protocol):
    """Samples that may bring their own order, as those of a mixture do."""

    @property
    def sampler(self) -> Sampler | None:
        """The order that a loader takes unless it gets another; None without one."""


class MixedSamples(Protocol):
    """Samples of several datasets."""

    @property
    def parts(self) -> Mapping[str, Any]:
        """The datasets by name."""


class SourcedSamples(Protocol):
    """Samples of a source."""

    @property
    def source(self) -> Any:
        """The source that holds them: a `shardwise.sources.protocol.Source`."""


class TransformedSamples(Protocol):
    """Samples that are decoded and transformed."""

    @property
    def transforms(self) -> Any:
        """The transforms applied to them: a `shardwise.dataset.transforms.Transforms`."""


class FingerprintedSamples(Protocol):
    """Samples that a state can be compared with."""

    @property
    def fingerprint(self) -> str:
        """The identity of the samples and of their order: part of every state."""


class HasRemoved(Protocol):
    """Samples some of which a redaction has removed."""

    @property
    def removed(self) -> NDArray[np.int64]:
        """Their ids, ascending."""


def removed_of(samples: object) -> NDArray[np.int64]:
    """The ids of removed samples of a dataset or source, ascending; such samples keep their ids."""
    own = having(samples, HasRemoved)
    removed = None if own is None else own.removed
    return removed if isinstance(removed, np.ndarray) else np.empty(0, np.int64)


def joined_removed(parts: Sequence[object], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The removed samples of several datasets or sources, whose ids follow one another."""
    starts = [0, *ends.tolist()]
    return np.concatenate([removed_of(p) + at for p, at in zip(parts, starts, strict=False)])


class ShuffledSamples(Protocol):
    """Samples that one way of shuffling suits."""

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The meaning of `shuffle=True`."""


class ShardedSamples(Protocol):
    """Samples that are stored in shards."""

    @property
    def shard_sizes(self) -> NDArray[np.int64]:
        """Samples per shard, int64 `[shards]`, in the order of the ids."""


class ShapedSamples(Protocol):
    """Samples that know how a window shuffle goes through them."""

    @property
    def window_shape(self) -> WindowShape | None:
        """Lanes and window of a window shuffle; None for the default."""


class TellsRanges(Protocol):
    """Samples whose reads are known before they are made."""

    def ranges(
        self, ids: NDArray[np.int64], *, epoch: int = 0, seed: int = 0
    ) -> Iterable[PoolRanges] | None:
        """Return what `load` reads of remote files; None where it never reads any by ranges.

        Raises:
            DataError, StorageError: as `load`.
        """


class Samples(FingerprintedSamples, ShuffledSamples, ShardedSamples, ShapedSamples, Protocol):
    """Samples by index, as columns of a batch; `shardwise.Dataset` is one."""

    def __len__(self) -> int:
        """The number of samples."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a batch; of samples from a `map()` those before it."""

    @property
    def mask_fields(self) -> tuple[str, ...]:
        """The fields of masks that decoders make beside their own, such as "mp4.mask"."""

    @property
    def padding(self) -> Mapping[str, Any]:
        """Field -> what its arrays are padded with where they differ, whatever `ragged=` is."""

    @property
    def whole_fields(self) -> Collection[str]:
        """Fields whose dicts and tuples are values, and are not collated within."""

    @property
    def is_mapped(self) -> bool:
        """Whether the fields of a batch are known from loaded samples only."""

    @property
    def cost(self) -> LoadCost:
        """The cost of loading a sample."""

    def url_of(self, index: int) -> str:
        """The url of the shard that holds a sample."""

    def describe(self, index: int) -> str:
        """Describe where a sample lies, for messages."""

    def layout(self) -> Mapping[str, Layout]:
        """Shape and dtype of the fields that can be decoded straight into a batch's rows."""

    def load(
        self,
        ids: NDArray[np.int64],
        *,
        epoch: int = 0,
        seed: int = 0,
        out: Mapping[str, NDArray[Any]] | None = None,
        stats: Stages | None = None,
        watch: DecodeWatch | None = None,
    ) -> Mapping[str, Sequence[Any]]:
        """Read, decode and transform samples: a column per field, "__key__" among them.

        Args:
            ids: int64 `[rows]`, each in [0, len(self)), in any order.
            epoch: with `seed` and the sample, keys the randomness of decoders and transforms.
            seed: see `epoch`.
            out: arrays `[rows, *shape]` of fields in `layout()`: filled, and returned as columns.
            stats: counts the seconds of the stages, and the bytes read; "read" before a decoder or
                transform runs.
            watch: gets the start of each decoder and transform; the caller reports the end of the
                last one. None without decode timeouts.
        """
