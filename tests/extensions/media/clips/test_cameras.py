"""Clips of several videos of a sample at one moment."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from tests.support.media import numbers_in


@pytest.fixture(scope="module")
def cameras(media_files, tmp_path_factory):
    """Two samples with three cameras each, of other containers, rates and lengths."""
    path = tmp_path_factory.mktemp("cameras") / "c.tar"
    half = r"-vf select=not(mod(n\,2)) -vsync vfr -c:v libx264 -pix_fmt yuv420p -g 6 -bf 2"
    slow = media_files.make("half_rate.mp4", half).read_bytes()
    with sw.TarWriter(path, media=True) as writer:
        for key, late in (("a", "offset"), ("b", "edit")):
            writer.write(
                {"__key__": key, "cam0.mp4": media_files.read(late), "cam1.mkv":
                 media_files.read("mkv"), "cam2.mp4": slow, "cls": 1}
            )  # fmt: skip
    return str(path)


def test_cameras_show_one_moment(cameras):
    names = ("cam0.mp4", "cam1.mkv", "cam2.mp4")
    ds = sw.tar(cameras).decode(cls=int).clips(names, frames=4, stride=4, step=20, size=(60, 80))
    # The second sample's first camera has 62 frames, from the video's frame 13 on.
    assert [(s["__key__"], s["__media__"]["clip"]) for s in ds] == [
        *(("a", n) for n in range(4)), *(("b", n) for n in range(3)),
    ]  # fmt: skip
    for sample in ds:
        media = sample["__media__"]
        first = 13 if sample["__key__"] == "b" else 0
        wanted = np.array(media["frames"])
        assert media["frames"] == [20 * media["clip"] + 4 * i for i in range(4)]
        assert numbers_in(sample["cam0.mp4"], "TCHW") == (wanted + first).tolist()
        assert numbers_in(sample["cam1.mkv"], "TCHW") == wanted.tolist()
        assert media["fields"]["cam1.mkv"]["frames"] == wanted.tolist()
        assert media["fields"]["cam2.mp4"]["frames"] == (wanted // 2).tolist()
        assert numbers_in(sample["cam2.mp4"], "TCHW") == (wanted // 2 * 2).tolist()
        assert sample["cls"] == 1
    with sw.DataLoader(ds, batch_size=2, shuffle=True, output="numpy", num_workers=1) as loader:
        for batch in loader:
            expected = ds.load(batch["__index__"])
            for name in names:
                np.testing.assert_array_equal(batch[name], expected[name])


def test_the_shortest_camera_ends_a_video(media_files, tmp_path):
    short = media_files.make("twenty_frames.mp4", "-c:v libx264 -pix_fmt yuv420p -g 6", count=20)
    with sw.TarWriter(tmp_path / "c.tar", media=True) as writer:
        whole = media_files.read("b_frames")
        writer.write({"__key__": "a", "x.mp4": whole, "y.mp4": short.read_bytes()})
    ds = sw.tar(tmp_path / "c.tar")
    for names in (("x.mp4", "y.mp4"), ("y.mp4", "x.mp4")):
        assert len(ds.clips(names, frames=8)) == 2
        masked = ds.clips(names, frames=16, stride=2, short="mask")[0]
        for name in names:
            assert masked[f"{name}.mask"].tolist() == [True] * 10 + [False] * 6
            assert not masked[name][10:].any()
    with pytest.raises(ValueError, match="named twice"):
        ds.clips(("x.mp4", "x.mp4"))
    with pytest.raises(TypeError, match="or their names"):
        ds.clips(())
