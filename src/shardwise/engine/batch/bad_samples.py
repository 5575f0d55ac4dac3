"""The fate of a bad sample: its error is raised, its row is skipped, or it is replaced.

Decided sample by sample, so that every executor decides alike however a batch is cut into chunks
(I5), and nothing is lost without a count (I6). Only a `DataError` is a bad sample, except for a
`StaleIndexError`: data that was replaced is not damaged, and all that is left of an epoch may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice
from shardwise.base.errors import DataError, StaleIndexError
from shardwise.base.stages import Stages
from shardwise.engine.batch.chunks import RowChunk
from shardwise.plan.permute import mix
from shardwise.sources.samples import DecodeWatch, LoadRequest, Samples

OnError = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)
# Substitutes that are tried for one bad sample before its error is raised all the same.
_MAX_SUBSTITUTES = 32

_Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Watching:
    """The watch over decoders while samples are loaded.

    Attributes:
        watch: learns of each decoder that starts.
        one_by_one: load rows one by one, where a decoder was stopped: the watch then sees which
            row it has.
    """

    watch: DecodeWatch | None = None
    one_by_one: bool = False


_UNWATCHED = Watching()


@dataclass(frozen=True)
class SampleLoader:
    """Loads rows of a batch, even if some are bad.

    Attributes:
        seed: keys the randomness of transforms, and which samples replace bad ones.
        on_error: "raise"; "skip" leaves a bad sample's row out; "replace" puts another sample
            there, the same one in every run.
    """

    dataset: Samples
    seed: int
    on_error: OnError

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)

    def load(
        self,
        ids: NDArray[np.int64],
        epoch: int,
        out: Mapping[str, NDArray[Any]],
        watching: Watching = _UNWATCHED,
    ) -> RowChunk:
        """Load samples, fields of a fixed shape into the rows of `out`.

        Raises:
            DataError: a sample is bad, and on_error is "raise", or its substitutes are bad, too.
            StaleIndexError: a file is not the one that was opened, whatever on_error is.
        """
        stages = Stages()
        request = LoadRequest(ids, epoch, self.seed, out, stages, watching.watch)
        if watching.one_by_one:
            return self._load_singly(request, stages)
        try:
            columns = self._load(request)
            return RowChunk(ids, [columns], np.ones(len(ids), dtype=np.bool_), 0, stages)
        except DataError as error:
            chunk_error = error
        # Not in the `except` clause: the error of one row is not a consequence of the chunk's.
        if self.on_error != "raise":
            return self._load_singly(request, stages)
        if "read" not in stages.seconds:
            # Raise the error of the first bad row: the same one however the batch was cut. Once
            # all rows were read, the first error was raised, and functions of the user's have run.
            uncounted = replace(request, stats=None)
            for row in range(len(ids)):
                self._load(uncounted.row(row))
        raise chunk_error

    def _load(self, request: LoadRequest) -> _Columns:
        options: dict[str, Any] = {
            "epoch": request.epoch, "seed": request.seed, "out": request.out, "stats": request.stats
        }  # fmt: skip
        if request.watch is None:
            return self.dataset.load(request.ids, **options)
        try:
            return self.dataset.load(request.ids, **options, watch=request.watch)
        finally:
            request.watch.end()

    def _load_singly(self, request: LoadRequest, stages: Stages) -> RowChunk:
        """Load rows one by one, to keep the good ones of a chunk in which one is bad."""
        ids = request.ids.copy()
        kept = np.ones(len(ids), dtype=np.bool_)
        columns = []
        num_replaced = 0
        for row in range(len(ids)):
            single = request.row(row)
            try:
                columns.append(self._load(single))
            except StaleIndexError:
                raise
            except DataError as error:
                if self.on_error == "raise":
                    raise
                if self.on_error == "skip":
                    kept[row] = False
                    continue
                ids[row], substitute = self._substitute(single, error)
                columns.append(substitute)
                num_replaced += 1
        return RowChunk(ids, columns, kept, num_replaced, stages)

    def _substitute(self, request: LoadRequest, error: DataError) -> tuple[int, _Columns]:
        """Load another sample for a bad one: the same one in every run of this epoch."""
        index = int(request.ids[0])
        for attempt in range(_MAX_SUBSTITUTES):
            other = mix(self.seed, request.epoch, index, attempt) % len(self.dataset)
            try:
                return other, self._load(replace(request, ids=np.array([other], dtype=np.int64)))
            except StaleIndexError:
                raise
            except DataError as again:
                last = again
        raise DataError(
            f"sample {index} is damaged, and so are {_MAX_SUBSTITUTES} substitutes for it",
            url=last.url,
            key=last.key,
            field=last.field,
            offset=last.offset,
            index=index,
        ) from error
