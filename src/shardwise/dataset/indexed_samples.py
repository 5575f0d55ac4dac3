"""Samples of a source by index and in storage order: `ds[i]`, `ds[[i, j]]`, `for sample in ds`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import Columns
from shardwise.base.plugins import find
from shardwise.dataset.decoding import decode_row, decode_rows
from shardwise.dataset.display import Sample
from shardwise.dataset.field import put
from shardwise.dataset.keyed_random import SampleKeys
from shardwise.dataset.raw_rows import RawRows
from shardwise.dataset.samples import LoadedSamples
from shardwise.sources.manifest import checked_ids
from shardwise.sources.protocol import ReadsRuns, ReadsSample
from shardwise.sources.samples import removed_of
from shardwise.storage import Upcoming

# Iteration reads 16 rows at first, so that the first comes at once; then twice as many each time,
# up to 1,024 rows or 16 MiB.
_FIRST_ROWS, _MAX_ROWS = 16, 1024
_READ_BYTES = 16 << 20


class IndexedSamples(LoadedSamples):
    """The samples one by one, as epoch 0 of seed 0 has them."""

    @cached_property
    def removed(self) -> NDArray[np.int64]:
        """The ids of samples that `shardwise redact` removed, int64, ascending."""
        gone, indices = removed_of(self._source), self._transforms.indices
        return gone if indices is None else np.flatnonzero(np.isin(indices, gone))

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> dict[str, Any]: ...

    @overload
    def __getitem__(
        self, index: slice | Sequence[int] | NDArray[np.integer[Any]]
    ) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int:
            if isinstance(index, slice):
                return self.__getitems__(range(*index.indices(len(self))))
            if isinstance(index, str):
                raise TypeError(
                    f"ds[{index!r:.60}]: samples are looked up by number; one field of all samples "
                    f"is ds.column({index!r:.60}), one of a sample ds[0][{index!r:.60}]"
                )
            if hasattr(index, "__len__") and getattr(index, "ndim", None) != 0:
                return self.__getitems__(index)
            if isinstance(index, bool):
                raise TypeError(f"ds[{index}]: a sample's index is an int")
            index = operator.index(index)
        num_samples = len(self)
        if not -num_samples <= index < num_samples:
            raise IndexError(f"sample {index} of {num_samples}")
        return self._one(index % num_samples)

    def _one(self, index: int) -> dict[str, Any]:
        if self._reads_sample is not None:
            sample = self._sample(index, self._reads_sample)
            if sample is not None:
                return Sample(sample)
        rows = self._read(np.array([index], dtype=np.int64))
        return Sample(self._map_sample(rows, 0, decode_row(rows, 0, self._fields)))

    def __getitems__(self, indices: ArrayLike) -> list[dict[str, Any]]:
        """Samples by index, read together; torch's DataLoader calls this for a batch."""
        ids = checked_ids(indices, len(self), from_end=True)
        return list(self._samples(self._read(ids))) if len(ids) else []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        runs = self._runs()
        if runs is not None:
            for columns in runs:
                yield from self._samples(RawRows(columns.ids, columns, self._url_in_source))
            return
        num_samples = len(self)
        # Objects gain nothing from being read together, and may be large.
        most = 1 if self._traits.holds_objects else _MAX_ROWS
        start, num_rows, announced = 0, min(most, _FIRST_ROWS), 0
        with closing(Upcoming()) as upcoming:
            while start < num_samples:
                stop = min(start + num_rows, num_samples)
                announced = max(announced, stop)
                # As far ahead as was read.
                while announced < min(2 * stop, num_samples) and upcoming.has_room:
                    following = np.arange(announced, min(announced + num_rows, num_samples))
                    reads = self.ranges(following)
                    if reads is None:
                        break
                    announced += len(following)
                    upcoming.announce(announced, reads)
                rows = self._read(np.setdiff1d(np.arange(start, stop), self.removed))
                yield from self._samples(rows)
                for end in [end for end in upcoming.keys if end <= stop]:
                    upcoming.finish(end)
                row_bytes = max(1, rows.columns.num_bytes // (stop - start))
                start, num_rows = stop, max(1, min(most, 2 * num_rows, _READ_BYTES // row_bytes))

    # Inner parts.

    def _runs(self) -> Iterator[Columns] | None:
        """All samples by the source's quick way in storage order, if it has one."""
        own = having(self._source, ReadsRuns)
        if own is None or self._transforms.indices is not None:
            return None
        return own.read_run(0, len(self), self._transforms.selected)

    @cached_property
    def _reads_sample(self) -> ReadsSample | None:
        """The source, if it has a quick way to one sample, and no function follows."""
        return None if self.is_mapped else having(self._source, ReadsSample)

    def _sample(self, index: int, source: ReadsSample) -> dict[str, Any] | None:
        """One sample by the quick way; None if something is wrong: the other way raises it."""
        transforms = self._transforms
        source_id = index if transforms.indices is None else int(transforms.indices[index])
        stored = source.read_sample(source_id, transforms.selected)
        if stored is None:
            return None
        key, values = stored
        sample: dict[str, Any] = {"__key__": key}
        for field, value in zip(self._fields, values, strict=True):
            if value is None:
                if field.required:
                    return None
            elif field.decoder is None:
                sample[field.name] = value
            else:
                try:
                    put(sample, field, field.decode(value, SampleKeys(), source_id))
                except BaseException as exc:  # noqa: BLE001 - decoders are the user's code
                    columns = Columns(np.array([source_id]), [key], {})
                    rows = RawRows(np.array([index]), columns, self._url_in_source)
                    rows.blame(0, field.decoder, exc, field=field.name)
        return sample

    def _samples(self, rows: RawRows) -> Iterable[dict[str, Any]]:
        samples = decode_rows(rows, self._fields)
        if not self.is_mapped:
            return samples
        return (self._map_sample(rows, row, sample) for row, sample in enumerate(samples))

    def segments(
        self,
        field: str,
        *,
        cuts: str | None = None,
        rate: int | None = None,
        channels: int | None = None,
    ) -> Self:
        """Segments of the samples' sounds as samples, such as the utterances of an hour of speech.

        A segment has the sample's other fields, and "offset", "duration" (float64, seconds) and
        what else its row has, such as "text" and "speaker". docs/audio.md has a program.

        Args:
            field: the field that has the sounds, as stored.
            cuts: a field of JSON ("json.segments") with a row or a list of rows {"offset": s,
                "duration": s, ...} or {"start": s, "end": s, ...}, in seconds. None for samples
                that are rows themselves, as those of lists of NeMo, lhotse and Kaldi are.
            rate: samples a second; None keeps the sound's.
            channels: None keeps the sound's, 1 is the mean of all.

        Returns:
            A dataset whose field `field` is float32 `[channels, samples]`. Up to 0.1 s after the
            sound's end is silence, since lists round; more is a DataError.

        Raises:
            DataError: a row has no offset and duration; a shard has no media index.
            ValueError: the field does not exist, it has a decoder, or a `map()` comes before.
        """
        source, transforms = find("methods", "segments")(
            self._source, self._transforms, self.fields,
            field, cuts=cuts, rate=rate, channels=channels,
        )  # fmt: skip
        return type(self)(source, _transforms=transforms)  # type: ignore[call-arg]
