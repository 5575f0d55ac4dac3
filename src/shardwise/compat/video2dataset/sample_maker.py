"""Make the fields of a sample from its bytes: keys, metadata, the clip, the user's transforms."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.compat.video2dataset.clips import ClipDecoder, SoundDecoder
from shardwise.compat.video2dataset.pictures import PictureSize
from shardwise.compat.webdataset.autodecode import Decoder, DecodingError
from shardwise.dataset.keyed_random import SampleKeys

# The field in which a sample carries (seed, pass) to the decoder.
DRAW = "__draw__"


class UnwantedError(Exception):
    """A sample is not selected: no error, and the handler is not called."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Selection:
    """The conditions for a sample: fields, scores in its json, a language of its text."""

    keys: tuple[str, ...]
    aesthetics: float | None = None
    languages: tuple[str, ...] | None = None
    unsafe: float | None = None

    @property
    def asks_metadata(self) -> bool:
        return not (self.aesthetics is None and self.languages is None and self.unsafe is None)

    def refuse(self, sample: Mapping[str, Any]) -> str | None:
        if self.aesthetics is not None and _entry(sample, "AESTHETIC_SCORE") < self.aesthetics:
            return "aesthetics"
        if self.languages is not None and _language(sample) not in self.languages:
            return "language"
        if self.unsafe is not None and _entry(sample, "punsafe") >= self.unsafe:
            return "unsafe"
        return None


@dataclass(frozen=True)
class SampleMaker:
    """Makes samples of bytes."""

    media_key: str
    decode: ClipDecoder | SoundDecoder | None
    size: PictureSize
    selection: Selection
    cuts_key: str | None
    removed: frozenset[str]
    names: Mapping[str, str]
    transforms: Mapping[str, Callable[[Any], Any]]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Make a sample, or raise UnwantedError or DecodingError."""
        made = {k: v for k, v in sample.items() if k not in self.removed and k != DRAW}
        missing = [k for k in self.selection.keys if k not in made]
        if missing:
            has = [k for k in made if not k.startswith("__")]
            raise UnwantedError("missing keys", f"it lacks {missing} and has {has}")
        if self.decode is not None:
            data = made.pop(self.media_key)
            made = Decoder([]).decode(made)
            reason = self.selection.refuse(made)
            if reason is not None:
                raise UnwantedError(reason, f"the condition on {reason} is not met")
            cuts = None if self.cuts_key is None else made.pop(self.cuts_key)
            made |= self._decode_media(data, cuts, sample)
        for key, transform in self.transforms.items():
            made[key] = transform(made[key])
        return made

    def _decode_media(self, data: bytes, cuts: Any, sample: dict[str, Any]) -> dict[str, Any]:
        try:
            if isinstance(self.decode, SoundDecoder):
                found = self.decode(data)
                return {self.media_key: found.pop("sound")} | found
            assert self.decode is not None
            seed, number = sample[DRAW]
            rng = SampleKeys(seed, number).generator(_word(sample))
            found = self.decode(data, self.size, rng, cuts)
        # ValueError: DataError, and what decoders of other packages raise.
        except (ValueError, RuntimeError, OSError) as error:
            raise DecodingError(
                url=sample.get("__url__"), key=sample.get("__key__"), k=self.media_key
            ) from error
        named = {self.names.get(k, k): v for k, v in found.items() if k != "frames"}
        return {self.media_key: found["frames"]} | named


def _word(sample: Mapping[str, Any]) -> int:
    """A number of the sample: by its key and its shard's name, wherever the shard lies."""
    shard = str(sample.get("__url__")).rpartition("/")[2]
    text = f"{shard}\0{sample.get('__key__')}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _entry(sample: Mapping[str, Any], name: str) -> float:
    metadata = sample.get("json")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(name), int | float):
        raise KeyError(
            f"the sample {sample.get('__key__')!r} of {sample.get('__url__')} has no number "
            f"{name!r} in its json field, which a threshold asks for"
        )
    return float(metadata[name])


def _language(sample: Mapping[str, Any]) -> str | None:
    """The likeliest language of the text; None if the text has no detectable language."""
    langdetect: Any = importlib.import_module("langdetect")
    # It draws at random unless it is seeded: the same text must have the same language.
    langdetect.DetectorFactory.seed = 0
    try:
        found = langdetect.detect_langs(sample["txt"])
    except langdetect.LangDetectException:
        return None
    return str(max(found, key=lambda each: each.prob).lang)
