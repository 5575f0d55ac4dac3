"""`Dataset.clips`: from a source of videos to the source of their clips."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import mask_of, values_of
from shardwise.dataset.kept_arrays import KeptArrays, kept_or_made
from shardwise.dataset.transforms import Transforms
from shardwise.extensions.media.clips.clip import ClipDecoder, SoundDecoder
from shardwise.extensions.media.clips.files import MediaFiles, StoredFiles, files_of
from shardwise.extensions.media.clips.options import ClipOptions, checked_options
from shardwise.extensions.media.clips.source import ClipSource
from shardwise.extensions.media.clips.table import clip_table
from shardwise.extensions.media.clips.windows import ClipTable
from shardwise.extensions.media.files.numbered import numbered_fields
from shardwise.sources.protocol import HasVersion, Source, directory_of


def make_clips(
    source: Source, transforms: Transforms, fields: tuple[str, ...], field: Any, **arguments: Any
) -> tuple[ClipSource, Transforms]:
    """The source of clips, and what is done to its samples; `fields` are those that are read.

    The other arguments are those of `Dataset.clips`.
    """
    options = checked_options(field, **arguments)
    of_videos = {
        name: numbered_fields(name, fields) if "%" in name else [name] for name in options.fields
    }
    stored = [*chain.from_iterable(of_videos.values())]
    transforms.check("clips", [*stored, *filter(None, [options.cut_field])], fields)
    for name in stored:
        if name in transforms.decoders:
            raise ValueError(
                f"clips({name!r}) decodes this field itself, and decode() has given it "
                f"{transforms.decoders[name]!r}: leave it out there"
            )
    indices = transforms.indices
    ids = np.arange(source.manifest.num_samples) if indices is None else indices
    files = {name: files_of(source, name, ids) for name in options.fields}
    identity = " ".join(each.identity() for each in files.values())
    table = _table(source, [*files.values()], ids, options, identity)
    beside = tuple(name for name in fields if name not in stored)
    made = ClipSource(
        source, indices=indices, fields=beside, files=files, options=options, table=table,
        identity=identity,
    )  # fmt: skip
    decoders: dict[str, Any] = {
        **transforms.decoders,
        **dict.fromkeys(options.fields, _decoder(options)),
    }
    if options.audio is not None:
        sound = f"{options.field}.audio"
        decoders |= {sound: SoundDecoder(), mask_of(sound): SoundDecoder(mask=True)}
    required = transforms.required.union(options.fields)
    if options.short == "mask":
        required = required.union(map(mask_of, options.fields))
    return made, replace(
        transforms, selected=None, indices=None, decoders=decoders, required=required
    )


def _decoder(options: ClipOptions) -> ClipDecoder:
    return ClipDecoder(
        options.frames, options.size, options.fit, options.layout, options.backend,
        options.per_sample, options.mode, options.dtype,
    )  # fmt: skip


def _table(
    source: Source,
    files: Sequence[MediaFiles],
    ids: NDArray[np.int64],
    options: ClipOptions,
    identity: str,
) -> ClipTable:
    """The clips, kept beside the indexes if these are: a look at a million videos takes minutes."""
    place = None
    if not any(isinstance(each, StoredFiles) for each in files):
        own = having(source, HasVersion)
        version = "" if own is None else own.version()
        chosen = hashlib.sha256(np.ascontiguousarray(ids, "<i8").data).hexdigest()
        origin = (
            f"clips 3 {source.manifest.fingerprint} {version} {identity} "
            f"{chosen} {options.described}"
        )
        place = KeptArrays(directory_of(source), name="clips", origin=origin)
    cuts = _cut_reader(source, ids, options)
    return kept_or_made(place, ClipTable, lambda: clip_table(files, ids, options, cuts))


def _cut_reader(
    source: Source, ids: NDArray[np.int64], options: ClipOptions
) -> Callable[[int], Any] | None:
    if (field := options.cut_field) is None:
        return None

    def read(video: int) -> Any:
        columns = source.read(ids[video : video + 1], (field,))
        return values_of(columns.fields[field])[0]

    return read
