"""The clips of a dataset's videos: found from the indexes alone, once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.clips.files import MediaFiles
from shardwise.extensions.media.clips.options import ClipOptions
from shardwise.extensions.media.clips.windows import ClipTable
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.timeline import Span, Timeline, span_between, stop_of_all

# Maps a video's position to the value of its field of cuts.
CutReader = Callable[[int], Any]
_MAX_SECONDS = 1e9
_MAX_LOGGED = 10
_logger = logging.getLogger("shardwise")


def clip_table(
    files: Sequence[MediaFiles],
    ids: NDArray[np.int64],
    options: ClipOptions,
    cuts: CutReader | None,
) -> ClipTable:
    """The clips of some samples' videos.

    `files` are those of each field, and `ids` the samples in the source, int64 `[videos]`. `cuts`
    gives the value of the field of cuts by the position in `ids`; None for whole videos.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    num_short = num_bad = 0
    for video, sample in enumerate(ids.tolist()):
        try:
            spans = list(_spans([each.index(sample) for each in files], options, cuts, video))
        except DataError as error:
            if options.on_bad == "drop":
                num_bad += 1
                if num_bad <= _MAX_LOGGED:
                    key = error.key or files[0].place(sample)[1]
                    _logger.warning("clips(on_bad='drop') leaves out %r: %s", key, error.reason)
                continue
            if error.key is not None:
                raise
            url, key = files[0].place(sample)
            field = error.field or options.field
            raise DataError(error.reason, url=url, key=key, field=field) from error
        for span, cut in spans:
            num_clips = options.num_samples(span)
            if num_clips:
                rows.append((video, span.first, span.stop, cut, num_clips))
            elif options.short == "error":
                url, key = files[0].place(sample)
                raise DataError(_too_short(span, options, cut), url=url, key=key,
                                field=options.field)  # fmt: skip
            else:
                num_short += 1
    if num_bad:
        _logger.warning("clips(on_bad='drop') leaves out %d of %d videos", num_bad, len(ids))
    return ClipTable.of_rows(rows, num_short=num_short, num_bad=num_bad)


def _spans(
    indexes: Sequence[MediaIndex], options: ClipOptions, cuts: CutReader | None, video: int
) -> Iterator[tuple[Span, int]]:
    track, *others = (index.first("video") for index in indexes)
    stop = stop_of_all(track, others)
    if cuts is None:
        yield Span(track, 0, stop), -1
        return
    for number, cut in enumerate(cut_rows(cuts(video), options)):
        start, end = _times(cut, number, options)
        span = span_between(track, start, end)
        yield Span(track, min(span.first, stop), min(span.stop, stop)), number


def cut_rows(value: Any, options: ClipOptions) -> list[Any]:
    """The rows of cuts in the JSON of a sample; DataError if they are not a list."""
    assert options.cuts is not None
    rows = value_at(value, options.cuts)
    if not isinstance(rows, list):
        raise DataError(
            f"cuts={options.cuts!r} is to be a list of cuts, and is {type(rows).__name__}",
            field=options.cuts.split(".")[0],
        )
    return rows


def value_at(value: Any, cuts: str) -> Any:
    """The value that `cuts`, a field and names with dots between, selects in the field's JSON."""
    field, *names = cuts.split(".")
    if isinstance(value, bytes | bytearray | memoryview | str):
        try:
            value = json.loads(value if isinstance(value, str) else bytes(value))
        except (ValueError, RecursionError) as error:
            raise DataError(f"cuts={cuts!r}: no JSON: {error}", field=field) from error
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _times(cut: Any, number: int, options: ClipOptions) -> tuple[float, float]:
    """Start and end of a cut in seconds: of {"start": s, "end": s, ...} or [s, s, ...]."""
    try:
        pair = (cut["start"], cut["end"]) if isinstance(cut, Mapping) else (cut[0], cut[1])
        start, end = map(float, pair)
    except (KeyError, IndexError, TypeError, ValueError):
        start, end = 0.0, 0.0
    if not 0 <= start < end < _MAX_SECONDS:
        assert options.cuts is not None
        raise DataError(
            f"cuts={options.cuts!r}: row {number} is {cut!r:.60}: give start and end in seconds, "
            'start before end, as {"start": 1.5, "end": 4.0} or [1.5, 4.0]',
            field=options.cuts.split(".")[0],
        )
    return start, end


def _too_short(span: Timeline, options: ClipOptions, cut: int) -> str:
    what = "the video" if cut < 0 else f"cut {cut}"
    return (
        f"{what} has {span.num_frames} frames, too few for a clip {options.rule.described}: take "
        "short='drop', 'mask' or 'repeat'"
    )
