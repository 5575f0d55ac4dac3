"""From the bytes of a sample to its fields: keys, metadata, the clip, the user's transforms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.compat.video2dataset.clips import ClipDecoder
from shardwise.compat.video2dataset.pictures import PictureSize
from shardwise.compat.video2dataset.selection import Selection
from shardwise.compat.video2dataset.sounds import SoundDecoder
from shardwise.compat.webdataset.autodecode import Decoder, DecodingError
from shardwise.dataset.keyed_random import SampleKeys

__all__ = ["DRAW", "SampleMaker", "UnwantedError"]

# Where a sample carries (seed, pass) on its way to the decoder.
DRAW = "__draw__"


class UnwantedError(Exception):
    """A sample is not selected: no error, and the handler is not called."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class SampleMaker:
    """Makes samples of bytes.

    Attributes:
        media_key: the field of the video or sound.
        decode: its decoder; None leaves all fields as bytes.
        size: of the pictures.
        selection: which samples are used.
        cuts_key: the field of the scenes; None for none.
        removed: fields that are taken out first.
        names: other names for keys of the decoder's.
        transforms: functions by field.
    """

    media_key: str
    decode: ClipDecoder | SoundDecoder | None
    size: PictureSize
    selection: Selection
    cuts_key: str | None
    removed: frozenset[str]
    names: Mapping[str, str]
    transforms: Mapping[str, Callable[[Any], Any]]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Make a sample.

        Raises:
            UnwantedError: it is left out by what was asked for.
            DecodingError: a field can't be decoded; it names field, key and url.
        """
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
            made |= self._decoded(data, cuts, sample)
        for key, transform in self.transforms.items():
            made[key] = transform(made[key])
        return made

    def _decoded(self, data: bytes, cuts: Any, sample: dict[str, Any]) -> dict[str, Any]:
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
