"""`Dataset.segments`: from a source of sounds to the source of their segments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardwise.dataset.transforms import Transforms
from shardwise.extensions.media.clips.files import files_of
from shardwise.extensions.media.decoders.audio import Audio
from shardwise.extensions.media.segments.source import SegmentDecoder, SegmentSource
from shardwise.extensions.media.segments.table import segment_table
from shardwise.sources.protocol import Source


def make_segments(
    source: Source,
    transforms: Transforms,
    fields: tuple[str, ...],
    field: str,
    *,
    cuts: str | None,
    rate: int | None,
    channels: int | None,
) -> tuple[SegmentSource, Transforms]:
    """The source of segments, and what is done to its samples, which have `fields`."""
    Audio(rate=rate, channels=channels)  # checks both
    for name, value in (("field", field), ("cuts", cuts)):
        if not isinstance(value, str) and (value is not None or name == "field"):
            raise TypeError(f"segments({name}={value!r:.60}): the name of a field")
    # A row without an offset starts with its sound.
    rows = ["offset", "duration"] if "offset" in fields else ["duration"]
    cut_field = None if cuts is None else cuts.split(".")[0]
    rows = rows if cut_field is None else [cut_field]
    if cut_field is None and "duration" not in fields:
        raise ValueError(
            f"segments({field!r}): no field 'duration' has the seconds of each: give cuts=, as "
            f"'json.segments'; decode({field}=sw.audio(seconds=5)) takes one part of each sound"
        )
    transforms.check("segments", [field, *rows], fields)
    if field in transforms.decoders:
        raise ValueError(
            f"segments({field!r}) decodes this field itself, and decode() has given it "
            f"{transforms.decoders[field]!r}: leave it out there"
        )
    indices = transforms.indices
    ids = np.arange(source.manifest.num_samples) if indices is None else indices
    made = SegmentSource(
        source, indices=indices, fields=fields, field=field, cuts=cuts, cut_field=cut_field,
        files=files_of(source, field, ids, at_use=True),
        table=segment_table(source, ids, rows, cuts),
        resampled=rate is not None,
    )  # fmt: skip
    decoders: dict[str, Any] = {**transforms.decoders, field: SegmentDecoder(rate, channels)}
    required = transforms.required.union([field])
    return made, replace(
        transforms, selected=None, indices=None, decoders=decoders, required=required
    )
