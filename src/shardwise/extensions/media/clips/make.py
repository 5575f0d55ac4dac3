"""`Dataset.clips`: from a source of videos to the source of their clips."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import mask_of, values_of
from shardwise.dataset.kept_arrays import KeptArrays, kept_or_made
from shardwise.dataset.transforms import Transforms
from shardwise.extensions.media.clips.clip import ClipDecoder, SoundDecoder
from shardwise.extensions.media.clips.files import MediaFiles, StoredFiles, files_of
from shardwise.extensions.media.clips.options import ClipOptions, checked_options
from shardwise.extensions.media.clips.source import ClipSource
from shardwise.extensions.media.clips.table import clip_table
from shardwise.extensions.media.clips.windows import ClipTable
from shardwise.sources.protocol import Source


def make_clips(
    source: Source, transforms: Transforms, fields: tuple[str, ...], field: str, **arguments: Any
) -> tuple[ClipSource, Transforms]:
    """The source of clips, and what is done to its samples; `fields` are those that are read.

    The other arguments are those of `Dataset.clips`.

    Raises:
        ValueError: there is no such field, it has a decoder, or a `map()` comes before.
        DataError: a video can't be used or is too short, and the options say "error".
    """
    options = checked_options(field, **arguments)
    needed = [field, *([options.cuts.split(".")[0]] if options.cuts else [])]
    transforms.check("clips", needed, fields)
    if field in transforms.decoders:
        raise ValueError(
            f"clips({field!r}) decodes this field itself, and decode() has given it "
            f"{transforms.decoders[field]!r}: leave it out there"
        )
    indices = transforms.indices
    ids = np.arange(source.manifest.num_samples) if indices is None else indices
    files = files_of(source, field, ids)
    identity = files.identity()
    table = _table(source, files, ids, options, identity)
    made = ClipSource(
        source, indices=indices, fields=fields, files=files, options=options, table=table,
        identity=identity,
    )  # fmt: skip
    decoders: dict[str, Any] = {
        **transforms.decoders,
        field: ClipDecoder(
            options.frames, options.size, options.fit, options.layout, options.backend
        ),
    }
    if options.audio is not None:
        sound = f"{field}.audio"
        decoders |= {sound: SoundDecoder(), mask_of(sound): SoundDecoder(mask=True)}
    required = transforms.required.union([field])
    if options.short == "mask":
        required = required.union([mask_of(field)])
    return made, replace(
        transforms, selected=None, indices=None, decoders=decoders, required=required
    )


def _table(
    source: Source,
    files: MediaFiles,
    ids: NDArray[np.int64],
    options: ClipOptions,
    identity: str,
) -> ClipTable:
    """The clips, kept beside the indexes if these are: a look at a million videos takes minutes."""
    place = None
    if not isinstance(files, StoredFiles):
        version: Callable[[], str] | None = getattr(source, "version", None)
        chosen = hashlib.sha256(np.ascontiguousarray(ids, "<i8").data).hexdigest()
        origin = (
            f"clips 3 {source.manifest.fingerprint} {version() if version else ''} {identity} "
            f"{chosen} {options.described}"
        )
        place = KeptArrays(getattr(source, "directory", None), name="clips", origin=origin)
    cuts = _cut_reader(source, ids, options)
    return kept_or_made(place, ClipTable, lambda: clip_table(files, ids, options, cuts))


def _cut_reader(
    source: Source, ids: NDArray[np.int64], options: ClipOptions
) -> Callable[[int], Any] | None:
    if options.cuts is None:
        return None
    field = options.cuts.split(".")[0]

    def read(video: int) -> Any:
        columns = source.read(ids[video : video + 1], (field,))
        return values_of(columns.fields[field])[0]

    return read
