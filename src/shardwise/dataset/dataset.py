"""Dataset: a source, and what is done to its samples.

Map-style and immutable: every method returns a new dataset, and sample i is the same sample for
every reader. A dataset owns no position, no file and no process: it says what sample i is, and the
loader says who gets it when.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import suggest_names
from shardwise.base.collate import collate
from shardwise.base.errors import ShardwiseError
from shardwise.base.hints import DECODE_HINT, call_for, hint_for
from shardwise.base.markup import table
from shardwise.base.plugins import find
from shardwise.codecs import default_decoder
from shardwise.dataset.column import (
    ColumnReader,
    Progress,
    check_column,
    computed_column,
    split_member,
)
from shardwise.dataset.display import Sample
from shardwise.dataset.field import is_plain_function
from shardwise.dataset.segments import Segmented
from shardwise.dataset.subset import filter_mask, refuse_part, rows_of, subset_indices
from shardwise.dataset.transforms import Transforms
from shardwise.sources.protocol import Source, Undecodes, value_fields_of

# Samples whose pictures a notebook shows.
_NUM_SHOWN = 8


@suggest_names
class Dataset(Segmented):
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
            samples = (Sample(each)._repr_html_() for each in islice(self, _NUM_SHOWN))
            shown = "".join(f"<div style='display:inline-block'>{each}</div>" for each in samples)
        except ShardwiseError as error:
            rows.append((type(error).__name__, error))
        return table("Dataset", rows) + shown

    def select(self, *fields: str) -> Dataset:
        """Keep these fields, in this order; others are not read. With no names, only keys are left.

        Raises:
            ValueError: a field is not there, or a `map()` comes before.
        """
        known = (*self.fields, *self._parts)
        return Dataset(self._source, _transforms=self._transforms.select(fields, known))

    def decode(self, /, *specs: Never, **decoders: Callable[[Any], Any] | Any) -> Dataset:
        """Decode fields: `field=decoder`, where a decoder is a codec or any callable of bytes.

        `int`, `float` and `str` read text. A later decoder of a field takes the place of an
        earlier one; fields whose name is no Python name are given as `**{"seg.png": ...}`.
        Without arguments every field that has a default decoder (by its extension; never pickle)
        and no other one yet is decoded with it.

        Raises:
            ValueError: a field is not there or not selected, or a `map()` comes before.
            TypeError: a decoder can't be called, or stands without a field.
        """
        if specs:
            raise TypeError(DECODE_HINT)
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

        `rng` is a numpy Generator keyed by (seed, epoch, sample, place of this map): the same for
        a sample on every cluster and in every subset. `ds[i]` and iteration use seed 0, epoch 0.
        All samples must come back with the same fields; "__key__" is put back if it is dropped.

        Raises:
            TypeError: fn can't be called so.
        """
        return Dataset(self._source, _transforms=self._transforms.map(fn))

    def subset(self, indices: ArrayLike) -> Dataset:
        """Take samples by index (an int array) or by a boolean mask.

        The given order becomes the storage order, and repeats are samples of their own. Costs 8
        bytes a sample, which travel with the pickled dataset. Ascending indices read fastest.

        Raises:
            IndexError: an index is negative or past the end.
            ValueError: a mask of another length, or more dimensions than one.
            TypeError: neither integers nor booleans; or this is a mixture.
        """
        refuse_part(self.sampler)
        ids = subset_indices(indices, len(self), self._transforms.indices)
        return Dataset(self._source, _transforms=replace(self._transforms, indices=ids))

    @suggest_names
    def column(
        self,
        name: str,
        fn: Callable[[dict[str, Any]], Any] | None = None,
        *,
        progress: Progress = None,
        num_workers: int = 0,
    ) -> NDArray[Any]:
        """One value of every sample, as a read-only array `[samples]`, in storage order.

        Made in parallel once, and kept: beside the indexes of tar shards (in `.shardwise/`), else,
        and where that can't be written, in the user's cache directory. The file belongs to these
        samples (names, sizes and versions of the shards, the subset), this name, the decoders and
        maps, and the function; if one of them changes, the column is made anew. Of a function its
        code and the values that it holds count; globals, files and objects that it looks into do
        not. Of wrapped datasets nothing is kept, since their content is not known from outside.

        Args:
            name: a field, which alone is read; "__key__"; a member of a field of JSON
                (`"json.n_frames"`). A field of a tar shard that has no decoder gets its default
                one. With a function, any name.
            fn: sample -> value. It gets all fields that the dataset selects.
            progress: None for a bar where standard error is a terminal; False for none; a function
                of (samples done, all samples).
            num_workers: processes, which are spawned and get the dataset and the function pickled.
                0 for threads of this one, which suffice where reading or decoding in C is the work.

        Returns:
            The field's own dtype where the source has arrays of numbers; else bool, int64, float64
            or str.

        Raises:
            ValueError: there is no such field, and no function.
            DataError: a sample has no such value, or it is no single number or text, or the
                function raised; url and key say where.
            WorkerError: a process died.

        Examples:
            >>> import shardwise as sw
            >>> ds = sw.wrap([{"text": "a b"}, {"text": "c"}])
            >>> ds.column("words", lambda sample: len(sample["text"].split()))
            array([2, 1])
        """
        check_column(name, fn, num_workers)
        return computed_column(self._column_reader(name, fn), progress, num_workers)

    def column_origin(self, name: str) -> str:
        """All that the values of a column are made of, as text."""
        return self._column_reader(name, None).origin()

    def _column_reader(self, name: str, fn: Callable[[dict[str, Any]], Any] | None) -> ColumnReader:
        if fn is not None:
            return ColumnReader(name, self, None, fn=fn)
        if self.is_mapped:
            return ColumnReader(name, self, name)
        if name == "__key__":
            return ColumnReader(name, self.select(), name)
        field, *path = split_member(name, (*self.fields, *self._parts))
        read = self.select(field)
        decoder = default_decoder(field)
        is_stored = field not in value_fields_of(self._source)
        if is_stored and decoder is not None and field not in self._transforms.decoders:
            read = read.decode(**{field: decoder})
        return ColumnReader(name, read, field, tuple(path))

    @suggest_names
    def filter(
        self,
        where: ArrayLike | Callable[[dict[str, Any]], ArrayLike],
        *,
        columns: Sequence[str] | Mapping[str, ArrayLike] | None = None,
    ) -> Dataset:
        """Keep the samples for which something holds: a subset, with equal steps on all ranks.

        Args:
            where: one boolean a sample; or a function of columns, which gets a dict of some
                samples' values, decoded and stacked as in a batch, with "__key__": numbers are
                arrays, keys and texts lists. It returns one boolean for each, is called for 512
                samples at a time, in each process that makes the dataset, and must return the same
                in all of them.
            columns: the fields that the function gets; others are not read. A mapping of names to
                arrays `[samples]`, such as what `column` gives, is taken as it is.

        Raises:
            ValueError: a field is not there, a `map()` comes before a function, or a mask of
                another length.
            TypeError: no booleans, or a function without columns.
            DataError: a sample is damaged or lacks one of the columns.

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
                raise TypeError(f"filter() takes booleans, not {mask.dtype}: use subset(indices)")
        return self.subset(mask)

    @suggest_names
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
        `TarWriter(media=True)`) in integers, before a byte of a picture is read. Up to 10,000
        samples of other sources are indexed here. A clip has the sample's other fields, too.
        docs/video.md has the fields of a clip.

        Args:
            field: the field of the videos, as stored; "frame_%05d.jpg" for numbered pictures of tar
                shards; several fields (cameras) for clips of one moment, by the first one's times.
            frames: frames of a clip.
            stride: 4 takes each fourth frame of the video.
            step: frames from the begin of a clip to that of the next; by default a clip begins
                where the one before ends.
            count: clips of each video (or cut), evenly spread, in place of `step`.
            seconds: seconds from one clip to the next, in place of `step`.
            per_sample: clips of each sample, an axis of "mp4"; by default one sample per video.
            jitter: a clip begins 0 to `jitter` - 1 frames later, keyed by (seed, epoch, clip).
            fps: frames a second, in place of `stride`: frame i is the one that is on the screen
                i / fps seconds after the first.
            cuts: a field of JSON ("json.scenes") with a list of rows {"start": s, "end": s, ...}:
                clips lie inside of these, by default one in the middle of each, and
                "__media__" has the row as "cut".
            short: of a video or cut that is too short: "drop" (`ds.source.counts` has how many),
                "mask" frames of zeros at its end ("mp4.mask"), "repeat" its last frame, "error".
            size: (height, width) of the pictures; None keeps the video's.
            fit: "stretch" to the size, or "crop" the centre.
            layout: of frames T, channels C, height H, width W.
            audio: "same" for "mp4.audio", float32 `[channels, samples]`, and "mp4.audio.mask".
            on_bad: "drop" leaves out the videos that the index says can't be used.
            backend: as of `sw.video`.
            mode: as of `sw.video`.
            dtype: as of `sw.video`.

        Raises:
            DataError: a shard has no media index; or a video can't be used or is too short, and
                the options say "error".
            ValueError: there is no such field, it has a decoder, options do not go together, or
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
