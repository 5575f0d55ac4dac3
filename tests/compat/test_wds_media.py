"""Video and sound as tensors, from real files, by each of the packages that decode them."""

from __future__ import annotations

import functools
import importlib
import io
import os
import signal
import subprocess
import sys
from contextlib import suppress

import av
import numpy as np
import pytest
import torch

from shardwise.compat.webdataset import media, torch_audio, torch_video
from shardwise.compat.webdataset.autodecode import Decoder, DecodingError
from shardwise.errors import MissingExtraError

FRAMES, FPS, RATE = 20, 10, 16000


def film(*, sound=True, channels=2, kind="mp4", codec="mpeg4", rate=FPS):
    """A video of 64 x 48 pixels, frame n of the gray level 10 n, with a tone of 440 Hz."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        video = container.add_stream(codec, rate=rate)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = None
        if sound:
            audio = container.add_stream("aac", rate=RATE)
            audio.layout = "stereo" if channels == 2 else "mono"
        for number in range(FRAMES):
            pixels = np.full((48, 64, 3), 10 * number, np.uint8)
            for packet in video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in video.encode():
            container.mux(packet)
        if audio is not None:
            mux_tone(container, audio, channels)
    return file.getvalue()


def mux_tone(container, stream, channels, samples="fltp"):
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)
    waves = np.stack([wave, -wave][:channels]).astype(np.float32)
    layout = "stereo" if channels == 2 else "mono"
    frame = av.AudioFrame.from_ndarray(waves, format="fltp", layout=layout)
    frame.rate = RATE
    for part in [*av.AudioResampler(format=samples).resample(frame), None]:
        for packet in stream.encode(part):
            container.mux(packet)


def recording(kind="wav", codec="pcm_s16le", channels=1):
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.layout = "stereo" if channels == 2 else "mono"
        mux_tone(container, stream, channels, samples="s16")
    return file.getvalue()


def can_load_torchcodec():
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, RuntimeError, OSError):
        return False
    return True


@pytest.fixture(params=["torchcodec", "av"])
def backend(request, monkeypatch):
    """Each of the two packages as the one that is installed."""
    if request.param == "torchcodec":
        if not can_load_torchcodec():
            reason = "torchcodec, or FFmpeg's libraries, which it needs, can't be loaded"
            pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    else:
        hide(monkeypatch, "torchcodec.decoders", RuntimeError("no FFmpeg"))
    forget()
    yield request.param
    forget()


def forget():
    """Look again at what is installed."""
    media._can_import.cache_clear()


def hide(monkeypatch, name, error):
    original = importlib.import_module

    def import_module(asked, package=None):
        if asked == name:
            raise error
        return original(asked, package)

    monkeypatch.setattr(media.importlib, "import_module", import_module)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_video_is_frames_sound_and_rates(backend, channels):
    frames, sound, info = torch_video(".mp4", film(channels=channels))
    assert (frames.dtype, tuple(frames.shape)) == (torch.uint8, (FRAMES, 48, 64, 3))
    # Each frame has its own gray, lossy coding apart.
    levels = frames.float().mean(dim=(1, 2, 3))
    assert (levels - 10 * torch.arange(FRAMES)).abs().max() < 4
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
from shardwise.compat.webdataset.media import _video_by_pyav

def decode():
    _video_by_pyav(Path(sys.argv[1]).read_bytes(), 1 << 30)
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


def test_a_fork_ends_while_a_thread_lives_that_decoded(tmp_path):
    (tmp_path / "a.mp4").write_bytes(film())
    # In a session of its own: a child that hangs has to be killed, too.
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS, str(tmp_path / "a.mp4")], start_new_session=True
    ) as process:
        try:
            assert process.wait(timeout=60) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_silent_video_has_empty_sound(backend):
    frames, sound, info = torch_video("a.MP4", film(sound=False))
    assert len(frames) == FRAMES
    assert (sound.dtype, tuple(sound.shape)) == (torch.float32, (1, 0))
    assert info == {"video_fps": FPS}


@pytest.mark.parametrize(
    ("name", "kind", "codec"),
    [
        ("avi", "avi", "mpeg4"),
        ("mkv", "matroska", "mpeg4"),
        ("mov", "mov", "mpeg4"),
        ("wmv", "asf", "wmv2"),
        ("mpg", "mpeg", "mpeg1video"),
    ],
)
def test_videos_come_in_many_files(backend, name, kind, codec):
    data = film(sound=False, kind=kind, codec=codec, rate=25)
    frames, _, info = torch_video(f".{name}", data)
    assert tuple(frames.shape) == (FRAMES, 48, 64, 3)
    assert info == {"video_fps": 25.0}


@pytest.mark.parametrize(("kind", "codec"), [("wav", "pcm_s16le"), ("flac", "flac")])
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_without_loss_is_a_tensor_of_the_samples(backend, kind, codec, channels):
    sound, rate = torch_audio(f".{kind}", recording(kind, codec, channels))
    assert rate == RATE
    assert (sound.dtype, tuple(sound.shape)) == (torch.float32, (channels, 2 * RATE))
    wave = 0.5 * torch.sin(2 * torch.pi * 440 * torch.arange(2 * RATE) / RATE)
    assert (sound[0] - wave).abs().max() < 1e-3
    if channels == 2:
        assert (sound[1] + wave).abs().max() < 1e-3


@pytest.mark.parametrize("data", [b"", b"garbage" * 100, film()[:5000]])
def test_a_damaged_file_is_an_error_and_no_shorter_video(backend, data):
    with pytest.raises(ValueError, match=f"{len(data)} bytes"):
        torch_video(".mp4", data)
    with pytest.raises(DecodingError, match=r"mp4.*0001.*x\.tar.*bytes"):
        Decoder([torch_video])({"__key__": "0001", "__url__": "x.tar", "mp4": data})


def test_a_damaged_recording_is_an_error(backend):
    with pytest.raises(ValueError, match="700 bytes"):
        torch_audio(".wav", b"garbage" * 100)
    with pytest.raises(ValueError, match="no sound"):
        torch_audio(".m4a", film(sound=False))


def test_other_fields_are_left_alone():
    for name in (".jpg", ".json", ".mp4.txt"):
        assert torch_video(name, b"") is None
        assert torch_audio(name, b"") is None
    assert torch_video(".wav", b"") is None
    assert torch_audio(".mp4", b"") is None


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    original = importlib.import_module

    def import_module(asked, package=None):
        if asked in ("torchcodec.decoders", "av"):
            raise ImportError(asked)
        return original(asked, package)

    monkeypatch.setattr(media.importlib, "import_module", import_module)
    forget()
    with pytest.raises(MissingExtraError, match=r"shardwise\[video\]"):
        torch_video(".mp4", b"")
    forget()


def test_some_frames_are_decoded_with_the_sound_of_their_time(backend):
    whole, sound, _ = torch_video(".mp4", film())
    frames, part, info = torch_video(".mp4", film(), frames=3, stride=4)
    levels = frames.float().mean(dim=(1, 2, 3))
    assert (levels - 10 * torch.tensor([0, 4, 8])).abs().max() < 4
    assert tuple(frames.shape) == (3, *whole.shape[1:])
    # Twelve frames of a tenth of a second.
    assert tuple(part.shape) == (sound.shape[0], round(1.2 * RATE))
    assert info == {"video_fps": pytest.approx(FPS), "audio_fps": RATE}


def test_a_partial_of_it_is_a_decoder_of_a_pipeline():
    decoder = Decoder([functools.partial(torch_video, frames=2)])
    sample = decoder({"__key__": "a", "mp4": film(sound=False), "cls": b"3"})
    assert tuple(sample["mp4"][0].shape) == (2, 48, 64, 3)
    assert sample["cls"] == 3


def test_more_frames_than_there_are_is_an_error(backend):
    with pytest.raises(ValueError, match=r"20 frames.*frames=21"):
        torch_video(".mp4", film(sound=False), frames=21)
    assert len(torch_video(".mp4", film(sound=False), frames=20)[0]) == 20


def test_what_takes_too_many_bytes_is_refused_before_it_is_decoded(backend):
    film_bytes = FRAMES * 48 * 64 * 3
    assert len(torch_video(".mp4", film(sound=False), max_bytes=film_bytes)[0]) == FRAMES
    with pytest.raises(ValueError, match=f"max_bytes={film_bytes - 1}"):
        torch_video(".mp4", film(sound=False), max_bytes=film_bytes - 1)
    with pytest.raises(ValueError, match="max_bytes=20000"):
        torch_video(".mp4", film(sound=False), frames=3, max_bytes=20000)
    with pytest.raises(ValueError, match="max_bytes=1000"):
        torch_audio(".wav", recording(), max_bytes=1000)
    assert torch_audio(".wav", recording(), max_bytes=4 * 2 * RATE)[0].shape[1] == 2 * RATE


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
