"""The decoders of video and sound, as a dataset and a loader use them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.media_index import index_media
from shardwise.testing import check_decoder
from tests.support.media import numbers_in, zeroed


@pytest.mark.parametrize("options", [{}, {"size": 32}, {"size": (40, 32), "layout": "CTHW"}])
def test_video_is_a_decoder(media_files, options):
    check_decoder(sw.video(4, stride=2, **options), [media_files.read("b_frames")])


def test_audio_is_a_decoder(media_files):
    data = media_files.sound("n.wav").read_bytes()
    check_decoder(sw.audio(seconds=0.5, rate=8000, channels=1), [data])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(29, 45)),
        ({"start": "first", "stride": 4}, range(0, 64, 4)),
        ({"start": 7}, range(7, 23)),
        ({"start": 70, "short": "repeat"}, [70, 71, 72, 73, 74] + [74] * 11),
        ({"start": 70, "short": "mask"}, [70, 71, 72, 73, 74] + [0] * 11),
        ({"fps": 5, "start": "first", "short": "mask"}, [*range(0, 75, 5), 0]),
    ],
)
def test_a_clip_has_the_frames_that_its_rule_says(media_files, options, expected):
    clip = sw.video(16, **options)(media_files.read("b_frames"))
    assert clip.shape == (16, 3, 120, 160)
    assert numbers_in(clip, "TCHW") == list(expected)


def test_a_random_clip_is_drawn_by_the_generator_alone(media_files):
    data = media_files.read("b_frames")
    decoder = sw.video(4, start="random", size=(60, 80))
    first = [
        numbers_in(decoder(data, rng=np.random.default_rng(seed)), "TCHW")[0] for seed in range(40)
    ]
    again = [
        numbers_in(decoder(data, rng=np.random.default_rng(seed)), "TCHW")[0] for seed in range(9)
    ]
    assert first[:9] == again
    assert len(set(first)) > 15
    assert max(first) <= 71
    with pytest.raises(TypeError, match="begins at random: call it with rng="):
        decoder(data)
    row = np.empty(*decoder.row)
    decoder.decode_into(data, row, rng=np.random.default_rng(3))
    assert numbers_in(row, "TCHW")[0] == first[3]


@pytest.mark.parametrize(
    "options",
    [
        {"frames": 0}, {"stride": 0}, {"fps": 0}, {"fps": 5, "stride": 2}, {"start": "last"},
        {"start": -1}, {"short": "drop"}, {"size": 0}, {"layout": "HWC"}, {"backend": "gpu"},
    ],
)  # fmt: skip
def test_options_without_sense_are_refused(options):
    with pytest.raises(ValueError, match=r"video\("):
        sw.video(**options)


def test_a_lazy_value_pickles_and_gives_what_is_asked_for(media_files):
    value = pickle.loads(pickle.dumps(sw.media()(media_files.read("sound"))))
    info = value.info
    assert (info.num_frames, info.height, info.width) == (75, 120, 160)
    assert (info.video_codec, info.audio_codec, info.rate) == ("h264", "aac", 44100)
    assert (info.seconds, info.fps, info.gop) == (3.0, 25.0, 25.0)
    frames = value.frames([7, 0, -1, 7])
    assert frames.shape == (4, 120, 160, 3)
    assert numbers_in(frames) == [7, 0, 74, 7]
    assert numbers_in(value.at([0.5, 2.99, 0.04])) == [12, 74, 1]
    assert value.audio(0.5, 1.0).shape[1] == 22050
    assert value.frames([]).shape == (0, 120, 160, 3)
    with pytest.raises(IndexError):
        value.frames([75])
    with pytest.raises(sw.DataError, match="lasts 3 s"):
        value.at(3.0)
    pickled = pickle.dumps(value)
    assert len(pickled) < len(value.data) + 1000


def test_a_loader_gives_the_same_clips_inline_and_in_processes(media_files, tmp_path):
    names = ["b_frames", "open_gop", "vfr", "hevc"]
    with sw.TarWriter(tmp_path / "v.tar") as writer:
        for name in names:
            writer.write({"__key__": name, "mp4": media_files.read(name)})
    data = sw.tar(str(tmp_path / "v.tar")).decode(mp4=sw.video(4, stride=3, start=5, size=(60, 80)))
    batches = []
    for options in ({"executor": "inline"}, {"num_workers": 2, "executor": "processes"}):
        with sw.DataLoader(data, batch_size=2, rank=0, world_size=1, **options) as loader:
            batches.append(np.concatenate([batch["mp4"].numpy() for batch in loader]))
    np.testing.assert_array_equal(*batches)
    for clip in batches[0]:
        assert numbers_in(clip, "TCHW") == [5, 8, 11, 14]


def test_the_error_of_a_damaged_frame_names_frame_and_byte(media_files, tmp_path):
    data = media_files.read("b_frames")
    columns = index_media(BytesReader(data)).first("video").columns
    with sw.TarWriter(tmp_path / "v.tar") as writer:
        writer.write({"__key__": "bad", "mp4": zeroed(data, 30)})
    ds = sw.tar(str(tmp_path / "v.tar")).decode(mp4=sw.video(20, start=25, size=(60, 80)))
    with sw.DataLoader(ds, batch_size=1, rank=0, world_size=1, num_workers=1) as loader:
        for read in (lambda: ds[0], lambda: list(loader)):
            with pytest.raises(sw.DataError, match=r"frame \d+") as caught:
                read()
            assert caught.value.url.endswith("v.tar")
            assert (caught.value.key, caught.value.field) == ("bad", "mp4")
            assert caught.value.offset in columns.offset.tolist()


def torch_threads(data: bytes) -> np.int64:
    sw.video(2)(data)
    return np.int64(torch.get_num_threads())


def test_torch_has_one_thread_in_the_loaders_worker_processes(media_files, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with sw.TarWriter(tmp_path / "v.tar") as writer:
        for key in "abcd":
            writer.write({"__key__": key, "mp4": media_files.read("b_frames")})
    ds = sw.tar(str(tmp_path / "v.tar")).decode(mp4=torch_threads)
    options = {"num_workers": 1, "num_threads": 2, "executor": "processes"}
    with sw.DataLoader(ds, batch_size=2, rank=0, world_size=1, **options) as loader:
        assert [batch["mp4"].tolist() for batch in loader] == [[1, 1], [1, 1]]
