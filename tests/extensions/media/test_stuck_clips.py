"""decode_timeout and clips: an epoch goes on without the stuck one, and its frames are named."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.testing import assert_batches_equal

# A hundred times what the healthy clips take.
_TIMEOUT_S = 3.0
_STUCK = 24
_FRAMES = "clip of frames 24 to 27"


@dataclass(frozen=True)
class StuckClip:
    """The decoder of a dataset's clips; it sleeps for ever, or raises, for one of them."""

    decoder: Any
    raises: bool = False

    @property
    def row(self):
        return self.decoder.row

    def __call__(self, clip):
        self._begin(clip)
        return self.decoder(clip)

    def decode_into(self, clip, out):
        self._begin(clip)
        self.decoder.decode_into(clip, out)

    def _begin(self, clip):
        if clip.chosen.frames[0] != _STUCK:
            return
        if self.raises:
            raise ValueError("not this one")
        threading.Event().wait()


@pytest.fixture
def clips(media_files, tmp_path):
    """50 clips of 4 frames of one video."""
    with sw.TarWriter(tmp_path / "v.tar", media=True) as writer:
        writer.write({"__key__": "film", "mp4": media_files.read("b_frames")})
    data = sw.tar(tmp_path / "v.tar").select("mp4")
    return data.clips("mp4", frames=4, step=1, size=(30, 40)).subset(np.arange(50))


def loader_of(data, **options):
    options = {"batch_size": 10, "output": "numpy", "rank": 0, "world_size": 1, **options}
    return sw.DataLoader(data, **options)


def test_an_epoch_of_50_clips_of_which_one_is_stuck_ends_with_49_and_a_count_of_1(clips, caplog):
    decoder = clips.transforms.decoders["mp4"]
    damaged = clips.decode(mp4=StuckClip(decoder, raises=True))
    with loader_of(damaged, executor="inline", on_error="skip") as loader:
        expected = list(loader)
    caplog.clear()
    options = {"decode_timeout": _TIMEOUT_S, "num_workers": 2, "on_error": "skip"}
    with loader_of(clips.decode(mp4=StuckClip(decoder)), **options) as loader:
        batches = list(loader)
        stats = loader.stats()
    assert_batches_equal(expected, batches)
    assert sum(len(batch["mp4"]) for batch in batches) == 49
    assert (stats["samples"], stats["skipped"]) == (49, 1)
    (message,) = [each.message for each in caplog.records if "decode_timeout" in each.message]
    assert all(part in message for part in ("v.tar", "'film'", "'mp4'", _FRAMES))


def test_the_error_of_a_stuck_clip_names_url_key_field_and_frames(clips):
    data = clips.decode(mp4=StuckClip(clips.transforms.decoders["mp4"]))
    with loader_of(data, decode_timeout=_TIMEOUT_S, num_workers=2) as loader:
        seen = []
        with pytest.raises(sw.DecodeTimeoutError, match=_FRAMES) as raised:
            for batch in loader:
                seen += batch["__index__"].tolist()
        assert seen == list(range(20))
        assert raised.value.url.endswith("v.tar")
        assert (raised.value.key, raised.value.field, raised.value.index) == ("film", "mp4", 24)
        # Its worker was replaced.
        assert next(iter(loader))["__index__"].tolist() == list(range(10))
