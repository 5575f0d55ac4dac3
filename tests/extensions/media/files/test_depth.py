"""Videos of more than 8 bits, and gray ones: maps of depth keep every value."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest

import shardwise as sw
from shardwise.testing import check_decoder
from tests.codecs.samples import encode

av = pytest.importorskip("av")
_SIDES = 48, 64


def depth_video(num_frames=6):
    """A lossless video of 12-bit gray, and its values."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 4096, (num_frames, *_SIDES)).astype(np.uint16)
    stream = io.BytesIO()
    with av.open(stream, "w", format="matroska") as file:
        track = file.add_stream("ffv1", rate=10)
        track.height, track.width = _SIDES
        track.pix_fmt = "gray12le"
        for number, values in enumerate(frames):
            frame = av.VideoFrame(*_SIDES[::-1], "gray12le")
            plane = frame.planes[0]
            padded = np.zeros((_SIDES[0], plane.line_size // 2), np.uint16)
            padded[:, : _SIDES[1]] = values
            plane.update(padded.tobytes())
            frame.pts = number
            file.mux(track.encode(frame))
        file.mux(track.encode())
    return stream.getvalue(), frames


def test_12_bit_gray_keeps_every_value():
    data, frames = depth_video()
    decoder = sw.video(6, mode="gray", dtype="uint16", start="first")
    clip = decoder(data)
    assert (clip.shape, clip.dtype) == ((6, 1, *_SIDES), np.uint16)
    assert np.array_equal(clip[:, 0] >> 4, frames)
    scaled = sw.video(6, mode="gray", dtype="float32", start="first")(data)
    assert np.array_equal(scaled, clip / np.float32(65535))
    colours = sw.video(6, dtype="uint16", start="first")(data)
    assert np.array_equal(colours[:, 0] >> 4, frames)
    eight = sw.video(6, mode="gray", start="first", layout="THWC")(data)
    assert (eight.shape, eight.dtype) == ((6, *_SIDES, 1), np.uint8)
    assert np.abs(eight[..., 0].astype(int) - (frames >> 4)).max() <= 1


# Of the product, what has each pair by default.
PAIRS = {("TCHW", "uint8"), ("THWC", "uint16"), ("CTHW", "float32")}


@pytest.mark.parametrize(
    ("layout", "mode", "dtype"),
    [
        pytest.param(
            *(layout, mode, dtype),
            marks=[] if ((layout, dtype) in PAIRS) == (mode == "rgb") else [pytest.mark.long],
        )
        for layout, mode, dtype in itertools.product(
            ("TCHW", "THWC", "CTHW"), ("rgb", "gray"), ("uint8", "uint16", "float32")
        )
    ],
)
def test_clips_of_every_mode_and_dtype_keep_the_protocol(layout, mode, dtype):
    decoder = sw.video(3, size=(20, 32), layout=layout, mode=mode, dtype=dtype)
    assert decoder.row[1] == dtype
    check_decoder(decoder, [depth_video(4)[0], depth_video(5)[0]])


def test_clips_of_a_dataset_are_those_of_the_decoder(tmp_path):
    data, frames = depth_video()
    with sw.TarWriter(tmp_path / "a.tar", media=True) as writer:
        writer.write({"__key__": "0", "mkv": data})
    options = {"mode": "gray", "dtype": "uint16"}
    clips = sw.tar(tmp_path / "a.tar").clips("mkv", frames=3, **options)
    got = np.concatenate([sample["mkv"] for sample in clips])
    assert np.array_equal(got[:, 0] >> 4, frames)
    sized = sw.tar(tmp_path / "a.tar").clips("mkv", frames=3, size=16, **options)
    with sw.DataLoader(sized, 2, rank=0, world_size=1, executor="inline") as loader:
        [batch] = loader
    assert batch["mkv"].shape == (2, 3, 1, 16, 16)


def test_numbered_pictures_of_16_bits_keep_every_value(tmp_path):
    cv2 = pytest.importorskip("cv2")
    values = depth_video(4)[1] * 13
    with sw.TarWriter(tmp_path / "a.tar") as writer:
        files = {
            f"{n:03d}.png": cv2.imencode(".png", each)[1].tobytes() for n, each in enumerate(values)
        }
        writer.write({"__key__": "0", **files})
    options = {"frames": 4, "mode": "gray"}
    [clip] = list(sw.tar(tmp_path / "a.tar").clips("%03d.png", dtype="uint16", **options))
    [name] = [name for name in clip if name.endswith("png")]
    assert np.array_equal(clip[name][:, 0], values)
    [scaled] = list(sw.tar(tmp_path / "a.tar").clips("%03d.png", dtype="float32", **options))
    assert np.array_equal(scaled[name][:, 0], values / np.float32(65535))


def test_unknown_modes_and_dtypes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="mode='grey'"):
        sw.video(3, mode="grey")
    with pytest.raises(ValueError, match="dtype='uint12'"):
        sw.video(3, dtype="uint12")
    with sw.TarWriter(tmp_path / "a.tar", media=True) as writer:
        writer.write(
            {
                "__key__": "0",
                "mkv": depth_video(2)[0],
                "png": encode(np.zeros((2, 2), np.uint8), "PNG"),
            }
        )
    with pytest.raises(ValueError, match="mode='grey'"):
        sw.tar(tmp_path / "a.tar").clips("mkv", mode="grey")
