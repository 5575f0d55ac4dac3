"""Video and sound as tensors, from real files."""

from __future__ import annotations

import functools
import sys
import wave

import numpy as np
import pytest
import torch

from shardwise.base.errors import MissingExtraError
from shardwise.compat.webdataset import torch_audio, torch_video
from shardwise.compat.webdataset.autodecode import Decoder, DecodingError
from tests.support.media import HEIGHT, WIDTH, MediaFolder, numbers_in
from tests.support.ranks import run_forked

FRAMES, FPS, RATE = 20, 25, 16000
TONE = "0.5*sin(440*2*PI*t)"


@pytest.fixture
def silent(media_files: MediaFolder) -> bytes:
    return media_files.make("silent.mp4", "-c:v mpeg4", count=FRAMES).read_bytes()


@pytest.fixture
def film(media_files: MediaFolder) -> bytes:
    return film_of(media_files, channels=2)


def film_of(files: MediaFolder, *, channels: int) -> bytes:
    sound = f"-f lavfi -i aevalsrc={'|-'.join([TONE] * channels)}:s={RATE}:d=2"
    options = "-c:v mpeg4 -c:a aac"
    return files.make(f"film{channels}.mp4", options, inputs=sound, count=FRAMES).read_bytes()


@pytest.fixture
def recording(media_files: MediaFolder) -> bytes:
    return media_files.sound("tone.wav", "-ac 1", seconds=2, rate=RATE).read_bytes()


@pytest.mark.parametrize("channels", [1, 2])
def test_a_video_is_frames_sound_and_rates(media_files, channels):
    frames, sound, info = torch_video(".mp4", film_of(media_files, channels=channels))
    assert (frames.dtype, tuple(frames.shape)) == (torch.uint8, (FRAMES, HEIGHT, WIDTH, 3))
    assert numbers_in(frames.numpy()) == list(range(FRAMES))
    assert sound.dtype == torch.float32
    assert sound.shape[0] == channels
    # The coder adds silence at the ends.
    assert 2 * RATE <= sound.shape[1] <= 2 * RATE + 4096
    assert 0.4 < sound.abs().max() < 0.6
    assert info == {"video_fps": FPS, "audio_fps": RATE}
    assert isinstance(info["video_fps"], float)
    assert isinstance(info["audio_fps"], int)


# PyAV frees in the child what the other threads of the parent convert colours with.
_FORKS = """
import os, sys, threading
from pathlib import Path
from shardwise.compat.webdataset import torch_video

def decode():
    torch_video(".mp4", Path(sys.argv[1]).read_bytes())
    is_decoded.set()
    is_over.wait()

is_decoded, is_over = threading.Event(), threading.Event()
thread = threading.Thread(target=decode)
thread.start()
is_decoded.wait()
child = os.fork()
if not child:
    os._exit(0)
is_over.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_fork_ends_while_a_thread_lives_that_decoded(media_files, tmp_path):
    path = media_files.make("silent.mp4", "-c:v mpeg4", count=FRAMES)
    run_forked(tmp_path, _FORKS, path)


def test_a_silent_video_has_empty_sound(silent):
    frames, sound, info = torch_video("a.MP4", silent)
    assert len(frames) == FRAMES
    assert (sound.dtype, tuple(sound.shape)) == (torch.float32, (1, 0))
    assert info == {"video_fps": FPS}


@pytest.mark.parametrize(
    ("name", "codec"),
    [("avi", "mpeg4"), ("mkv", "mpeg4"), ("mov", "mpeg4"), ("wmv", "wmv2"), ("mpg", "mpeg1video")],
)
def test_videos_come_in_many_files(media_files, name, codec):
    data = media_files.make(f"other.{name}", f"-c:v {codec}", count=FRAMES).read_bytes()
    frames, _, info = torch_video(f".{name}", data)
    assert numbers_in(frames.numpy()) == list(range(FRAMES))
    assert info == {"video_fps": 25.0}


@pytest.mark.parametrize("channels", [1, 2])
def test_sound_without_loss_is_a_tensor_of_the_samples(media_files, channels):
    made = {
        kind: media_files.sound(f"{channels}.{kind}", f"-ac {channels}", seconds=2, rate=RATE)
        for kind in ("wav", "flac")
    }
    with wave.open(str(made["wav"])) as file:
        samples = np.frombuffer(file.readframes(2 * RATE), "<i2").reshape(-1, channels).T
    for kind, path in made.items():
        sound, rate = torch_audio(f".{kind}", path.read_bytes())
        assert rate == RATE
        assert (sound.dtype, tuple(sound.shape)) == (torch.float32, (channels, 2 * RATE))
        assert (sound - torch.from_numpy(samples / 32768)).abs().max() < 1e-3


@pytest.mark.parametrize("data", [b"", b"garbage" * 100, None])
def test_a_damaged_file_is_an_error_and_no_shorter_video(film, data):
    data = film[:5000] if data is None else data
    with pytest.raises(ValueError, match=f"{len(data)} bytes"):
        torch_video(".mp4", data)
    with pytest.raises(DecodingError, match=r"mp4.*0001.*x\.tar.*bytes"):
        Decoder([torch_video])({"__key__": "0001", "__url__": "x.tar", "mp4": data})


def test_a_damaged_recording_is_an_error(silent):
    with pytest.raises(ValueError, match="700 bytes"):
        torch_audio(".wav", b"garbage" * 100)
    with pytest.raises(ValueError, match="no sound"):
        torch_audio(".m4a", silent)


def test_other_fields_are_left_alone():
    for name in (".jpg", ".json", ".mp4.txt"):
        assert torch_video(name, b"") is None
        assert torch_audio(name, b"") is None
    assert torch_video(".wav", b"") is None
    assert torch_audio(".mp4", b"") is None


def test_a_missing_package_is_named_with_its_extra(monkeypatch, silent):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"shardwise\[video\]"):
        torch_video(".mp4", silent)


def test_some_frames_are_decoded_with_the_sound_of_their_time(film):
    frames, part, info = torch_video(".mp4", film, frames=3, stride=4)
    assert numbers_in(frames.numpy()) == [0, 4, 8]
    assert tuple(frames.shape) == (3, HEIGHT, WIDTH, 3)
    assert tuple(part.shape) == (2, round(12 / FPS * RATE))
    assert info == {"video_fps": pytest.approx(FPS), "audio_fps": RATE}


def test_a_partial_of_it_is_a_decoder_of_a_pipeline(silent):
    decoder = Decoder([functools.partial(torch_video, frames=2)])
    sample = decoder({"__key__": "a", "mp4": silent, "cls": b"3"})
    assert tuple(sample["mp4"][0].shape) == (2, HEIGHT, WIDTH, 3)
    assert sample["cls"] == 3


def test_more_frames_than_there_are_is_an_error(silent):
    with pytest.raises(ValueError, match=r"20 frames.*frames=21"):
        torch_video(".mp4", silent, frames=21)
    assert len(torch_video(".mp4", silent, frames=20)[0]) == 20


def test_what_takes_too_many_bytes_is_refused_before_it_is_decoded(silent, recording):
    film_bytes = FRAMES * HEIGHT * WIDTH * 3
    assert len(torch_video(".mp4", silent, max_bytes=film_bytes)[0]) == FRAMES
    with pytest.raises(ValueError, match=f"max_bytes={film_bytes - 1}"):
        torch_video(".mp4", silent, max_bytes=film_bytes - 1)
    with pytest.raises(ValueError, match="max_bytes=20000"):
        torch_video(".mp4", silent, frames=3, max_bytes=20000)
    with pytest.raises(ValueError, match="max_bytes=1000"):
        torch_audio(".wav", recording, max_bytes=1000)
    assert torch_audio(".wav", recording, max_bytes=4 * 2 * RATE)[0].shape[1] == 2 * RATE


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"frames": 0}, ValueError),
        ({"frames": 1.5}, TypeError),
        ({"frames": True}, TypeError),
        ({"frames": 1, "stride": 0}, ValueError),
        ({"stride": 2}, ValueError),
        ({"max_bytes": 0}, ValueError),
        ({"max_bytes": "1 GB"}, TypeError),
    ],
)
def test_wrong_bounds_are_named(arguments, error):
    with pytest.raises(error, match=next(reversed(arguments))):
        torch_video(".mp4", b"", **arguments)
