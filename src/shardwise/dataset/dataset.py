"""Dataset: a source, and what is done to its samples.

Map-style and immutable: every method returns a new dataset, and sample i is the same sample for
every reader. A dataset owns no position, no file and no process: it defines what sample i is, and
the loader decides who gets it when.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import suggest_names
from shardwise.base.collate import collate
from shardwise.base.errors import ShardwiseError
from shardwise.base.hints import DECODE_HINT, call_for, hint_for
from shardwise.base.markup import table
from shardwise.base.plugins import find
from shardwise.dataset.column import Progress, check_column, column_reader, computed_column
from shardwise.dataset.display import Sample
from shardwise.dataset.field import is_plain_function
from shardwise.dataset.indexed_samples import IndexedSamples
from shardwise.dataset.subset import filter_mask, refuse_part, rows_of, subset_indices
from shardwise.dataset.transforms import Transforms
from shardwise.sources.protocol import Source, Undecodes, value_fields_of

_NUM_SHOWN = 8  # samples whose pictures a notebook shows


@suggest_names
class Dataset(IndexedSamples):
    """Samples by index, decoded and transformed.

    A sample is a dict: "__key__" (str) and one entry a field, bytes until decoded. `ds[i]` is one
    sample (i may be negative), `ds[[i, j]]` and `ds[2:5]` are lists of samples, iteration goes in
    storage order. Made by `sw.tar`, `sw.wrap` and the like; pickles without open files.

    A field that a sample lacks is not in its dict. If `select` or `decode` names that field, the
    sample is a `DataError` instead.

    Args:
        source: where the samples lie; satisfies `shardwise.sources.protocol.Source`.

    Examples:
        >>> import shardwise as sw
        >>> ds = sw.wrap([("a", 1), ("b", 2)]).decode(**{"0": str.upper})
        >>> len(ds), ds[-1]
        (2, {'__key__': '1', '0': 'B', '1': 2})
    """

    def __init__(self, source: Source, *, _transforms: Transforms | None = None) -> None:
        if not callable(getattr(source, "read", None)) or isinstance(source, os.PathLike):
            call = call_for(source) or "sw.wrap(...)"
            raise TypeError(f"Dataset({type(source).__name__}): use {call}, which makes a Dataset")
        super().__init__(source, _transforms)

    if not TYPE_CHECKING:  # to a type checker, these would make every name an attribute

        def __getattr__(self, name):
            # A property that raised AttributeError ends here, too: raise its own error.
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            hint = hint_for(name) or f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(hint, name=name, obj=self)

        def __add__(self, other):
            raise TypeError("datasets are not added: write\n    ds = sw.concat([a, b])")

    def __repr__(self) -> str:
        return f"Dataset({'.'.join([repr(self._source), *self._transforms.steps()])})"

    def _repr_html_(self) -> str:
        shown, rows = "", list[tuple[str, object]]([("dataset", self)])
        try:
            rows += [("samples", f"{len(self):,}"), ("shards", f"{len(self.shard_sizes):,}")]
            rows.append(("fields", ", ".join(self.fields)))
            for each in map(Sample, islice(self, _NUM_SHOWN)):
                shown += f"<div style='display:inline-block'>{each._repr_html_()}</div>"
        except ShardwiseError as error:
            rows.append((type(error).__name__, error))
        return table("Dataset", rows) + shown

    def select(self, *fields: str, order: str | None = None) -> Dataset:
        """Keep these fields, in this order; others are not read. With no names, only keys are left.

        A pattern such as "*.jpg" is one field of that name, the list of all members that match, in
        the order of their names, or of a list of names in a field of JSON: `order="json.images"`.

        Raises:
            ValueError: a field is not there, or a `map()` comes before.
        """
        data = self._list_members("select", fields, order)
        known = (*data.fields, *data._parts)
        return Dataset(data._source, _transforms=data._transforms.select(fields, known))

    def _list_members(self, method: str, names: Iterable[Any], order: str | None = None) -> Dataset:
        """The dataset with lists in place of the members of patterns among the names."""
        new = [n for n in names if isinstance(n, str) and "*" in n and n not in self.fields]
        if not new and order is None:
            return self
        self._transforms.check(method, (), ())
        made = find("methods", "members")(self._source, self._transforms, self.fields, new, order)
        return Dataset(made[0], _transforms=made[1])

    def decode(self, specs: Mapping[str, Any] | None = None, /, **decoders: Any) -> Dataset:
        """Decode fields: `field=decoder`, where a decoder is a codec or any callable of bytes.

        `int`, `float` and `str` read text. A later decoder of a field replaces an earlier one.
        Other names are given in a dict, as `{"seg.png": ...}`, patterns as `{"*.jpg": ...}`, whose
        decoder gets each member. Without arguments every field without a decoder gets the default
        one of its extension (never pickle), if it has one.

        Raises:
            ValueError: a field is not there or not selected, or a `map()` comes before.
            TypeError: a decoder can't be called, or stands without a field.
        """
        if specs is not None and not isinstance(specs, Mapping):
            raise TypeError(DECODE_HINT)
        decoders = {**(specs or {}), **decoders}
        data = self._list_members("decode", decoders)
        if data is not self:
            return data.decode(decoders)
        values = value_fields_of(self._source)
        source, transforms, fields = self._source, self._transforms, self.fields
        if not decoders:
            return Dataset(source, _transforms=transforms.decode_by_default(fields, values=values))
        parts = [name for name in decoders if name in self._parts]
        if parts:
            transforms = transforms.with_parts(parts, fields)
            fields = transforms.selected or ()
        transforms = transforms.decode(decoders, fields, values=values)
        own = having(source, Undecodes)
        if own is not None:
            resolved = transforms.decoders
            source = own.undecoded([n for n in decoders if not is_plain_function(resolved[n])])
        return Dataset(source, _transforms=transforms)

    def map(self, fn: Callable[..., dict[str, Any]]) -> Dataset:
        """Transform samples: fn(sample) -> sample, or fn(sample, rng) if it has a parameter `rng`.

        `rng` is a numpy Generator keyed by (seed, epoch, sample, place of this map): the same on
        every cluster. `ds[i]` and iteration use seed 0, epoch 0. All samples must come back with
        the same fields; "__key__" is put back if it is dropped.
        """
        return Dataset(self._source, _transforms=self._transforms.map(fn))

    def subset(self, indices: ArrayLike) -> Dataset:
        """Take samples by index (an int array) or by a boolean mask.

        The given order becomes the storage order, with repeats. Costs 8 bytes per sample, or none
        of a read-only map of a file. Ascending indices read fastest.

        Raises:
            IndexError: an index is negative or past the end.
            ValueError: a mask of another length, or more dimensions than one.
            TypeError: neither integers nor booleans; or this is a mixture.
        """
        refuse_part(self.sampler)
        ids = subset_indices(indices, len(self), self._transforms.indices)
        return Dataset(self._source, _transforms=replace(self._transforms, indices=ids))

    def column(
        self,
        name: str,
        fn: Callable[[dict[str, Any]], Any] | None = None,
        *,
        progress: Progress = None,
        num_workers: int = 0,
    ) -> NDArray[Any]:
        """One value of every sample, as a read-only array `[samples]`, in storage order.

        Made in parallel once, and kept beside the indexes of tar shards (in `.shardwise/`), else in
        the user's cache directory. It is made again if the samples (names, sizes and versions of
        the shards, the subset), the decoders, the maps or the function differ: its code and the
        values that it holds, not its globals. Columns of wrapped datasets are not kept.

        Args:
            name: a field; "__key__"; a member of JSON (`"json.n_frames"`); with a function, any.
            fn: sample -> value. It gets all fields that the dataset selects.
            progress: None for a bar where standard error is a terminal; False for none; a function
                of (samples done, all samples).
            num_workers: processes that get the dataset and the function pickled; 0 for threads.

        Returns:
            The source's dtype of numbers; else bool, int64, float64 or str.

        Raises:
            ValueError: the field does not exist, and no function is given.
            DataError: a sample has no such value, or it is not a single number or text, or the
                function raised; url and key locate it.
            WorkerError: a process died.
        """
        check_column(name, fn, num_workers)
        return computed_column(column_reader(self, name, fn), progress, num_workers)

    def filter(
        self,
        where: ArrayLike | Callable[[dict[str, Any]], ArrayLike],
        *,
        columns: Sequence[str] | Mapping[str, ArrayLike] | None = None,
    ) -> Dataset:
        """Keep the samples for which something holds: a subset, with equal steps on all ranks.

        Args:
            where: one boolean per sample; or a function of the columns of 512 samples, collated as
                in a batch, which returns one boolean for each, the same in every process.
            columns: the fields that the function gets, or a mapping of names to arrays `[samples]`.

        Raises:
            ValueError: a field is not there, a `map()` comes before a function, or a mask of
                another length.
            TypeError: no booleans, or a function without columns.

        Examples:
            >>> import shardwise as sw
            >>> ds = sw.wrap([{"n": n} for n in range(100)])
            >>> len(ds.filter(lambda c: c["n"] > 16, columns=["n"]))
            83
        """
        refuse_part(self.sampler)
        if callable(where):
            if columns is None or isinstance(columns, str):
                raise TypeError(
                    f"filter(function, columns={columns!r}): name the fields that it gets, such "
                    "as columns=['cls']"
                )
            read: Callable[[NDArray[np.int64]], dict[str, Any]]
            if isinstance(columns, Mapping):
                read = rows_of(columns, len(self))
            else:
                # Batches have the key, whatever is selected.
                names = [name for name in columns if name != "__key__"]
                self._transforms.check("filter", names, self.fields)
                selected = self.select(*names)
                read = lambda ids: collate(selected.load(ids))  # noqa: E731
            mask = filter_mask(where, read, len(self), self.removed)
        else:
            mask = np.asarray(where)
            if mask.dtype != np.bool_:
                raise TypeError(
                    f"filter() takes booleans or a function, not {where!r:.80}: use filter(lambda "
                    "columns: columns['cls'] < 3, columns=['cls']), or of indices subset(indices)"
                )
        return self.subset(mask)

    def clips(
        self,
        field: str | Sequence[str],
        *,
        frames: int = 16,
        stride: int = 1,
        step: int | None = None,
        count: int | None = None,
        seconds: float | None = None,
        per_sample: int | None = None,
        jitter: int = 0,
        fps: float | Fraction | None = None,
        cuts: str | None = None,
        short: Literal["drop", "mask", "repeat", "error"] = "drop",
        size: int | tuple[int, int] | None = None,
        fit: Literal["stretch", "crop"] = "stretch",
        layout: Literal["TCHW", "THWC", "CTHW"] = "TCHW",
        audio: Literal["same"] | None = None,
        on_bad: Literal["error", "drop"] = "error",
        backend: str = "auto",
        mode: Literal["rgb", "gray"] = "rgb",
        dtype: Literal["uint8", "uint16", "float32"] = "uint8",
    ) -> Dataset:
        """Clips of the samples' videos as samples: `len` is exact, an epoch has each clip once.

        Which frames a clip has follows from the media index (`shardwise index --media`, or
        `TarWriter(media=True)`); up to 10,000 samples of other sources are indexed here. A clip has
        the sample's other fields, too. docs/video.md has the fields of a clip.

        Args:
            field: the field of the videos, as stored; "frame_%05d.jpg" for numbered pictures of tar
                shards; several fields (cameras) for clips of one moment, by the first one's times.
            frames: frames of a clip.
            stride: 4 takes each fourth frame of the video.
            step: frames from the start of a clip to that of the next; by default its length.
            count: clips of each video (or cut), evenly spread, in place of `step`.
            seconds: seconds from one clip to the next, in place of `step`.
            per_sample: clips of each sample, an axis of "mp4"; by default one sample per video.
            jitter: a clip starts 0 to `jitter` - 1 frames later, keyed by (seed, epoch, clip).
            fps: frames a second, in place of `stride`: those on the screen i / fps seconds later.
            cuts: a field of JSON ("json.scenes") with rows {"start": s, "end": s, ...}: clips lie
                inside of these, by default one in the middle; "__media__" has the row as "cut".
            short: of a video or cut that is too short: "drop" (`ds.source.counts` has how many),
                "mask" frames of zeros at its end ("mp4.mask"), "repeat" its last frame, "error".
            size: (height, width) of the pictures; None keeps the video's.
            fit: "stretch" to the size, or "crop" the centre.
            layout: of frames T, channels C, height H, width W.
            audio: "same" for "mp4.audio", float32 `[channels, samples]`, and "mp4.audio.mask".
            on_bad: "drop" leaves out the videos that the index marks as unusable.
            backend: as of `sw.video`.
            mode: as of `sw.video`.
            dtype: as of `sw.video`.

        Raises:
            DataError: a shard has no media index; or a video can't be used or is too short, and
                the options are "error".
            ValueError: the field does not exist, it has a decoder, options do not go together, or
                a `map()` comes before.
        """
        source, transforms = find("methods", "clips")(
            self._source, self._transforms, self.fields,
            field, frames=frames, stride=stride, step=step, count=count, seconds=seconds,
            per_sample=per_sample, jitter=jitter, fps=fps, cuts=cuts, short=short, size=size,
            fit=fit, layout=layout, audio=audio, on_bad=on_bad, backend=backend,
            mode=mode, dtype=dtype,
        )  # fmt: skip
        return Dataset(source, _transforms=transforms)

    @property
    def _parts(self) -> tuple[str, ...]:
        """Fields that are not read yet, and may be named."""
        return () if self._transforms.selected is not None else self._traits.parts
