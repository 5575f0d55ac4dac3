"""Masks of decoders: a field says which frames or samples are real, and which are zeros."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.testing import assert_batches_equal
from tests.support.media import H264

# 8 frames, each fourth one: of 20 frames there are 5 of them.
REAL = [5, 8]


@pytest.fixture(scope="module")
def videos(media_files, tmp_path_factory):
    path = tmp_path_factory.mktemp("masks") / "v.tar"
    short = media_files.make("masks.mp4", H264 + "-g 10", count=20)
    with sw.TarWriter(path) as writer:
        for key, file in (("short", short), ("long", media_files.path("b_frames"))):
            writer.write({"__key__": key, "mp4": file.read_bytes(), "cls": len(key)})
    return sw.tar(path)


def loaded(data, **options):
    options = {"batch_size": 2, "rank": 0, "world_size": 1, "output": "numpy", **options}
    with sw.DataLoader(data, **options) as loader:
        return list(loader)


@pytest.mark.parametrize("size", [(60, 80), None])
@pytest.mark.parametrize("start", ["first", "random"])
def test_a_clip_comes_with_a_mask_of_its_real_frames_on_every_executor(videos, size, start):
    data = videos.decode(mp4=sw.video(8, stride=4, start=start, short="mask", size=size))
    [batch] = loaded(data, executor="inline")
    assert batch["mp4.mask"].dtype == np.bool_
    assert batch["mp4.mask"].tolist() == [[i < real for i in range(8)] for real in REAL]
    # The zeros are where the mask says.
    np.testing.assert_array_equal(batch["mp4"].any(axis=(2, 3, 4)), batch["mp4.mask"])
    assert_batches_equal([batch], loaded(data, num_threads=2))
    assert_batches_equal([batch], loaded(data, num_workers=1))
    for samples in ([data[0], data[1]], data[[0, 1]], list(data)):
        for name in ("mp4", "mp4.mask"):
            np.testing.assert_array_equal([sample[name] for sample in samples], batch[name])


def test_masks_go_through_maps_concats_and_mixtures(videos):
    data = videos.select("mp4").decode(mp4=sw.video(8, stride=4, short="mask", size=32))
    mapped = data.map(lambda sample: {"real": sample["mp4.mask"].sum()})
    assert loaded(mapped, executor="inline")[0]["real"].tolist() == REAL
    assert [batch["mp4.mask"].sum(1).tolist() for batch in loaded(sw.concat([data, data]))] == [
        REAL, REAL,
    ]  # fmt: skip
    mixed = sw.mix({"a": (data, 1), "b": (data, 1)}, until="all")
    assert {int(real) for b in loaded(mixed) for real in b["mp4.mask"].sum(1)} == set(REAL)
    # A mask has a fixed shape: padding leaves it alone.
    assert set(loaded(data, ragged="pad")[0]) >= {"mp4", "mp4.mask"}


def test_a_batch_of_a_tuple_may_have_a_mask(videos):
    data = videos.select("mp4").decode(mp4=sw.video(8, stride=4, short="mask", size=32))
    for samples in (data, sw.concat([data]), sw.mix({"a": (data, 1)})):
        [(clips, masks)] = loaded(samples, as_tuple=("mp4", "mp4.mask"))
        assert clips.shape[:2] == masks.shape
    plain = videos.decode(mp4=sw.video(4))
    with pytest.raises(ValueError, match=r"names 'mp4\.mask'"):
        loaded(plain, as_tuple=("mp4", "mp4.mask"))


def test_a_mask_of_padding_never_takes_the_place_of_a_decoders(videos):
    data = videos.select("mp4").decode(mp4=sw.video(8, stride=4, short="mask"))
    with pytest.raises(sw.DataError, match=r"if a decoder makes it, .*video\(size=\)"):
        loaded(data, ragged="pad")


def test_there_is_no_mask_where_nothing_is_filled_up(videos):
    for decoder in (sw.video(4), sw.video(8, stride=4, short="repeat"), sw.audio()):
        assert "mp4.mask" not in videos.decode(mp4=decoder).mask_fields
    clashing = sw.wrap([{"mp4": b"", "mp4.mask": b""}])
    with pytest.raises(ValueError, match=r"makes a field 'mp4\.mask'"):
        clashing.decode(mp4=sw.video(short="mask"))


def test_sound_comes_with_a_mask_of_what_is_heard(media_files, tmp_path):
    with sw.TarWriter(tmp_path / "s.tar") as writer:
        for seconds in (1, 3):
            file = media_files.sound(f"mask{seconds}.wav", seconds=seconds)
            writer.write({"__key__": f"{seconds}", "wav": file.read_bytes()})
    for channels in (1, None):
        decoder = sw.audio(seconds=2, rate=8000, channels=channels)
        [batch] = loaded(sw.tar(tmp_path / "s.tar").decode(wav=decoder))
        assert batch["wav"].shape == (2, 1, 16000)
        assert batch["wav.mask"].tolist() == [[True] * 8000 + [False] * 8000, [True] * 16000]
        assert not batch["wav"][0, 0, 8000:].any()


def test_a_bad_video_is_an_error_of_its_own_field(videos, media_files, tmp_path):
    with sw.TarWriter(tmp_path / "b.tar") as writer:
        writer.write({"__key__": "bad", "mp4": media_files.read("b_frames")[:9000]})
    bad = sw.tar(tmp_path / "b.tar").decode(mp4=sw.video(8, short="mask", size=32))
    for read in (lambda: bad[0], lambda: loaded(bad)):
        with pytest.raises(sw.DataError) as caught:
            read()
        assert (caught.value.key, caught.value.field) == ("bad", "mp4")
