"""Frames of odd files: the number burnt into each picture is the one that was asked for."""

from __future__ import annotations

import av
import numpy as np
import pytest

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.media_index import index_media
from tests.support.media import COPIES, VIDEOS, decode, numbers_in

# What a player shows of the files that begin before their first frame.
FIRST = {"edit": 13, "edit_mkv": 0}


def upright(data, frames):
    """The frames as they are stored, before they are turned."""
    rotation = index_media(BytesReader(data)).first("video").rotation
    return np.rot90(decode(data, frames), -rotation // 90, axes=(1, 2))


def shown_by_ffmpeg(path):
    """The numbers in all frames of a file, as FFmpeg's own player would show them."""
    with av.open(str(path)) as container:
        return numbers_in(
            np.stack([f.to_ndarray(format="rgb24", threads=1) for f in container.decode(video=0)])
        )


@pytest.mark.parametrize("name", [*VIDEOS, *COPIES])
def test_every_frame_is_the_one_asked_for_in_any_order(media_files, name):
    path = media_files.path(name)
    data = path.read_bytes()
    shown = shown_by_ffmpeg(path)
    count = index_media(BytesReader(data)).first("video").num_frames
    assert count == len(shown)
    assert shown == list(range(shown[0], shown[0] + count))
    rng = np.random.default_rng(3)
    orders = [
        rng.integers(0, count, 9),
        np.arange(count - 1, count - 20, -3),
        np.array([5, 5, 40, 5, 0, count - 1]),
        np.arange(count),
    ]
    for frames in orders:
        assert numbers_in(upright(data, frames)) == [shown[number] for number in frames]


def test_a_frame_that_is_not_there_is_an_error(media_files):
    data = media_files.read("b_frames")
    with pytest.raises(DataError, match="has 75"):
        decode(data, [75])


def test_rotation_is_applied(media_files):
    stored, turned = media_files.read("b_frames"), media_files.read("rotated")
    clip = decode(turned, [30])
    assert clip.shape == (1, 160, 120, 3)
    plain = decode(stored, [30])
    with av.open(str(media_files.path("rotated"))) as container:
        degrees = next(container.decode(video=0)).rotation % 360
    np.testing.assert_array_equal(clip[0], np.rot90(plain[0], degrees // 90))


def test_a_size_and_a_cut_hold_the_picture_in_place(media_files):
    data = media_files.read("b_frames")
    assert numbers_in(decode(data, [3, 60], size=(60, 80))) == [3, 60]
    cut = decode(data, [3, 60], size=(120, 120), fit="crop")
    whole = decode(data, [3, 60])
    np.testing.assert_array_equal(cut, whole[:, :, 20:140])


@pytest.mark.parametrize("container", ["mp4", "ts"])
def test_recovery_points_that_no_picture_leads_are_begun_at(media_files, container):
    """Later pictures name references of before such a point, and do not use them."""
    options = "-c:v libx264 -preset veryfast -pix_fmt yuv420p -crf 28 -x264-params "
    options += "open-gop=1:bframes=3:keyint=12"
    data = media_files.make(f"recovery_points.{container}", options).read_bytes()
    track = index_media(BytesReader(data)).first("video")
    assert not any(
        (track.columns.pts[k : k + 4] < track.columns.pts[k]).any() for k in track.keys[:4]
    )
    for number in range(10, 42, 3):
        assert numbers_in(decode(data, [number, number + 2])) == [number, number + 2]


def test_frames_do_not_depend_on_what_was_decoded_before(media_files):
    data = media_files.read("open_gop")
    alone = [decode(data, [number])[0] for number in (20, 33, 50)]
    np.testing.assert_array_equal(np.stack(alone), decode(data, [20, 33, 50]))
