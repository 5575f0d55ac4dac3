"""`get_video_dataset`: video2dataset's data loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, TypeVar

from shardwise.compat.video2dataset.clips import ClipDecoder, SoundDecoder, check_positive
from shardwise.compat.video2dataset.pictures import picture_size
from shardwise.compat.video2dataset.sample_maker import SampleMaker, Selection
from shardwise.compat.video2dataset.sample_stages import Batches, MadeSamples, with_draws
from shardwise.compat.video2dataset.video_dataset import VideoDataset
from shardwise.compat.webdataset import autodecode
from shardwise.compat.webdataset.handlers import reraise_exception

D = TypeVar("D", ClipDecoder, SoundDecoder)

_SOUNDS = frozenset(("mp3", "wav", "flac", "m4a"))
_VIDEOS = frozenset(
    ("avi", "h264", "m4v", "mjpeg", "mkv", "mov", "mp4", "mpg", "ogv", "ts", "webm", "wmv")
)


def get_video_dataset(
    urls: Any,
    batch_size: int,
    shuffle: int = 0,
    repeat: int | None = 1,
    drop_last: bool = False,
    video_key: str = "mp4",
    cuts_key: str | None = None,
    decoder_kwargs: Mapping[str, Any] | None = None,
    custom_transforms: Mapping[str, Callable[[Any], Any]] | None = None,
    aesthetics_threshold: float | None = None,
    allowed_languages: str | Sequence[str] | None = None,
    p_unsafe_threshold: float | None = None,
    resize_size: Any = None,
    crop_size: Any = None,
    random_crop: bool = False,
    original_height_key: str = "original_height",
    original_width_key: str = "original_width",
    keys_to_remove: str | Sequence[str] | None = None,
    enforce_additional_keys: Sequence[str] | None = None,
    return_always: bool = False,
    handler: Callable[[Exception], Any] = reraise_exception,
    *,
    seed: Any = None,
    sample_shuffle: int = 0,
    dtype: Any = None,
) -> VideoDataset:
    """Make a dataset of batches of clips, with video2dataset's arguments and keys.

    Read it by `wds.WebLoader(dataset, batch_size=None, num_workers=n)`.

    Args:
        urls: tar shards: a text (brace patterns, `::`) or a list; any store, or `pipe:`.
        batch_size: samples per batch.
        shuffle: above 0, shards come in another order each epoch.
        repeat: passes per epoch; -1 or None for no end.
        drop_last: leave out a worker's last batch if it is smaller; counted.
        video_key: the field of the video; of sound if it is mp3, wav, flac or m4a.
        cuts_key: a field of pairs of frames (first, stop), one a scene: a clip lies in one of them.
        decoder_kwargs: see `ClipDecoder` and `SoundDecoder`; None gives samples of bytes, without
            batches.
        custom_transforms: functions by field, called last.
        aesthetics_threshold: the least json["AESTHETIC_SCORE"].
        allowed_languages: languages of the field "txt"; needs the package langdetect.
        p_unsafe_threshold: json["punsafe"] must be below it.
        resize_size: the shorter side, or [height, width].
        crop_size: a side, or [height, width].
        random_crop: the crop lies anywhere, and else in the centre.
        original_height_key: under which name the height before resizing is given.
        original_width_key: the same for the width.
        keys_to_remove: fields to take out before anything is decoded.
        enforce_additional_keys: fields that a sample must have; None for ["txt"].
        return_always: give a sample that fails too, marked by `__corrupted__`, with another
            sample's values.
        handler: called where a sample fails: raises, or returns whether to continue.
        seed: drives shuffles, clips and crops, with epoch and sample; None is 0.
        sample_shuffle: the size of a buffer in which encoded samples are shuffled.
        dtype: of the frames: "uint8", "float16", "bfloat16" or "float32"; None for float16 where
            they are resized or cropped, and else float32.

    Returns:
        A dataset of dicts: frames `[B, T, H, W, 3]` under `video_key`, 0 to 255; "fps_id",
        "original_height", "original_width" int64 and "pad_masks" float32 `[B, T]`; "native_fps",
        "start_frame" and "pad_start" `[B]`; other fields decoded. Its `left_out` counts.

    Raises:
        ValueError: an argument is out of its range, or two do not go together.
        TypeError: `decoder_kwargs` has unknown names.
        ImportError: `langdetect` is missing.
    """
    check_positive("batch_size", batch_size)
    if repeat is not None and (repeat == 0 or repeat < -1):
        raise ValueError(f"repeat={repeat!r}: must be 1 or more, or -1 or None for no end")
    for name, value in (
        ("video_key", video_key),
        ("cuts_key", cuts_key or ""),
        ("original_height_key", original_height_key),
        ("original_width_key", original_width_key),
    ):
        if not isinstance(value, str):
            raise TypeError(f"{name}={value!r}: must be the name of a field")
    decode = _decoder(video_key, dict(decoder_kwargs or {}), cuts_key)
    # None stands for the default: the field of the caption.
    enforced = ["txt"] if enforce_additional_keys is None else _names(enforce_additional_keys)
    selection = Selection(
        keys=(video_key, *enforced, *([cuts_key] if cuts_key and decode else [])),
        aesthetics=aesthetics_threshold,
        languages=None if allowed_languages is None else tuple(_names(allowed_languages)),
        unsafe=p_unsafe_threshold,
    )
    if selection.asks_metadata and decode is None:
        raise ValueError("thresholds and languages need decoded fields: pass decoder_kwargs=")
    if selection.languages is not None and find_spec("langdetect") is None:
        raise ImportError("allowed_languages= needs the package langdetect: pip install langdetect")
    make = SampleMaker(
        media_key=video_key,
        decode=decode,
        size=picture_size(resize_size, crop_size, random_crop=random_crop, dtype=dtype),
        selection=selection,
        cuts_key=cuts_key,
        removed=frozenset(_names(keys_to_remove or ())),
        names={"original_height": original_height_key, "original_width": original_width_key},
        transforms=dict(custom_transforms or {}),
    )
    dataset = VideoDataset(urls, is_shuffled=shuffle > 0, seed=seed, handler=handler)
    counts = dataset.counts_left_out
    dataset = dataset.shuffle(sample_shuffle, initial=sample_shuffle)
    stages: list[Any] = [with_draws, MadeSamples(make, handler, counts, bool(return_always))]
    if decode is not None:
        stages.append(Batches(batch_size, bool(drop_last), counts))
    dataset = dataset.compose(*stages)
    return dataset if repeat == 1 else dataset.repeat(-1 if repeat is None else repeat)


def _decoder(
    key: str, arguments: dict[str, Any], cuts_key: str | None
) -> ClipDecoder | SoundDecoder | None:
    if not arguments:
        return None
    extension = key.rpartition(".")[2].lower()
    if extension in _SOUNDS:
        if cuts_key:
            raise ValueError(f"cuts_key={cuts_key!r} with video_key={key!r}: sound has no cuts")
        return _made_of(SoundDecoder, arguments, media="sound")
    if extension not in _VIDEOS:
        raise ValueError(
            f"video_key={key!r}: its extension must be one of {sorted(_VIDEOS | _SOUNDS)}"
        )
    decode = _made_of(ClipDecoder, arguments, media="videos")
    if cuts_key and decode.uniformly_sample:
        raise ValueError("uniformly_sample=True with cuts_key=: it takes the whole video")
    if cuts_key and cuts_key.rpartition(".")[2] not in autodecode.decoders:
        raise ValueError(
            f"cuts_key={cuts_key!r}: no decoder for it; there are {sorted(autodecode.decoders)}"
        )
    return decode


def _names(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _made_of(kind: type[D], arguments: Mapping[str, Any], *, media: str) -> D:
    names = [each.name for each in fields(kind)]
    unknown = sorted(set(arguments) - set(names))
    if unknown:
        raise TypeError(f"decoder_kwargs has {unknown}; the decoder of {media} takes {names}")
    return kind(**arguments)
