"""`Dataset.segments`: segments of sounds as samples."""

from __future__ import annotations

from typing import Self

from shardwise.base.plugins import find
from shardwise.dataset.indexed_samples import IndexedSamples


class Segmented(IndexedSamples):
    """Samples that may be sounds."""

    def segments(
        self,
        field: str,
        *,
        cuts: str | None = None,
        rate: int | None = None,
        channels: int | None = None,
    ) -> Self:
        """Segments of the samples' sounds as samples, such as the utterances of an hour of speech.

        A segment has the sample's other fields, and "offset", "duration" (float64, seconds) and
        what else its row has, such as "text" and "speaker". docs/audio.md has a program.

        Args:
            field: the field that has the sounds, as stored.
            cuts: a field of JSON ("json.segments") with a row or a list of rows {"offset": s,
                "duration": s, ...} or {"start": s, "end": s, ...}, in seconds. None for samples
                that are rows themselves, as those of lists of NeMo, lhotse and Kaldi are.
            rate: samples a second; None keeps the sound's.
            channels: None keeps the sound's, 1 is the mean of all.

        Returns:
            A dataset whose field `field` is float32 `[channels, samples]`. Up to 0.1 s after the
            sound's end is silence, since lists round; more is a DataError.

        Raises:
            DataError: a row has no offset and duration; a shard has no media index.
            ValueError: the field does not exist, it has a decoder, or a `map()` comes before.
        """
        source, transforms = find("methods", "segments")(
            self._source, self._transforms, self.fields,
            field, cuts=cuts, rate=rate, channels=channels,
        )  # fmt: skip
        return type(self)(source, _transforms=transforms)  # type: ignore[call-arg]
