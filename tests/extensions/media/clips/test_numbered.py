"""Clips of numbered pictures: the members of one sample as a video."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import shardwise as sw
from tests.support.media import frame, numbers_in


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Samples of 12, 9 and 0 numbered pictures; one picture lacks, one is of another size."""
    path = tmp_path_factory.mktemp("pictures") / "p.tar"
    with sw.TarWriter(path) as writer:
        for key, count in (("a", 12), ("b", 9), ("none", 0)):
            sample = {f"frame_{n:05d}.png": png(n) for n in range(count)}
            if key == "b":
                del sample["frame_00004.png"]
                sample["frame_00005.png"] = png(5, (60, 80))
            writer.write({"__key__": key, "cls": count, **sample})
    return str(path)


def png(number, size=(120, 160)):
    image = Image.fromarray(frame(number)).resize(size[::-1], Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def test_numbered_pictures_are_a_video(pictures):
    pattern = "frame_%05d.png"
    ds = sw.tar(pictures).decode(cls=int)
    with pytest.raises(sw.DataError, match="'none'"):
        ds.clips(pattern)
    clips = ds.clips(pattern, frames=3, stride=2, step=3, on_bad="drop")
    assert clips.source.counts.num_bad == 1
    assert set(clips[0]) == {"__key__", "cls", pattern, "__media__"}
    shown = [numbers_in(np.asarray(s[pattern]), "TCHW") for s in clips]
    assert shown == [[0, 2, 4], [3, 5, 7], [6, 8, 10], [0, 2, 5], [3, 6, 8]]
    assert [s["__media__"]["frames"] for s in clips][-1] == [3, 5, 7]
    np.testing.assert_array_equal(clips[0][pattern][1].transpose(1, 2, 0), frame(2))
    small = ds.clips(pattern, frames=8, size=(30, 40), fit="crop", short="mask", on_bad="drop")
    batch = small.load(np.arange(2), out={})
    assert np.stack(batch[pattern]).shape == (2, 8, 3, 30, 40)
    assert numbers_in(batch[pattern][1], "TCHW") == [0, 1, 2, 3, 5, 6, 7, 8]
    with sw.DataLoader(small, batch_size=2, output="numpy", num_workers=1) as loader:
        for loaded in loader:
            np.testing.assert_array_equal(loaded[pattern], batch[pattern])


def test_numbered_pictures_have_no_times_and_lie_in_shards(pictures):
    ds = sw.tar(pictures)
    for options in ({"fps": 5}, {"seconds": 1}, {"audio": "same"}):
        with pytest.raises(ValueError, match="neither times nor sound"):
            ds.clips("frame_%05d.png", **options)
    with pytest.raises(ValueError, match="no field has such a name"):
        ds.clips("other_%d.png")
    with pytest.raises(ValueError, match="members of tar shards"):
        sw.wrap([{"f_1.png": png(1)}]).clips("f_%d.png")


def test_a_damaged_picture_is_an_error_that_names_it(tmp_path):
    with sw.TarWriter(tmp_path / "d.tar") as writer:
        members = {f"{n}.png": png(n) for n in range(4)}
        members["2.png"] = members["2.png"][:200]
        writer.write({"__key__": "a", **members})
    with pytest.raises(sw.DataError, match=r"clip of frames 0 to 3: picture 2") as error:
        sw.tar(tmp_path / "d.tar").clips("%d.png", frames=4)[0]
    assert (error.value.key, error.value.field) == ("a", "%d.png")
