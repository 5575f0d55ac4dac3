"""A family of videos: any request gives the frames of a plain decode, or is a listed refusal."""

from __future__ import annotations

import re
from pathlib import Path
from zlib import crc32

import av
import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import read_head, read_moov
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.index_format import index_from_bytes, index_to_bytes
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS
from shardwise.extensions.media.files.media_index import index_media, with_checksums
from shardwise.extensions.media.files.moov import read_tracks
from tests.support.media_family import COPIED, ENCODED, FIFTH, REFUSED, make_family

OTHERS = [name for name in (*ENCODED, *COPIED) if name not in FIFTH]


def plain_frames(path: Path) -> tuple[list[np.ndarray], list[int | None]]:
    """All frames and their times in order, by PyAV with one thread, turned as the file says."""
    frames, times = [], []
    with av.open(str(path)) as container:
        stream = next(
            s for s in container.streams.video
            if not s.disposition & s.disposition.attached_pic
        )  # fmt: skip
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        size = (stream.codec_context.height, stream.codec_context.width)
        for frame in container.decode(stream):
            pixels = frame.reformat(
                width=size[1], height=size[0], format="rgb24", interpolation="BILINEAR", threads=1
            ).to_ndarray()
            frames.append(np.rot90(pixels, frame.rotation // 90))
            times.append(frame.pts)
    return frames, times


def check_requests(name: str, data: bytes, frames: list[np.ndarray]) -> None:
    """Ask for all frames, backwards, single ones, a clip; from the file, and by a stored index."""
    media = sw.media()(data)
    count = media.info.num_frames
    assert count == len(frames)
    rng = np.random.default_rng(crc32(name.encode()))
    orders = [
        np.arange(count),
        np.arange(count)[::-3],
        *rng.integers(0, count, (4, 1)),
        rng.integers(0, count, 5),
    ]
    for order in orders:
        for number, pixels in zip(order.tolist(), media.frames(order), strict=True):
            np.testing.assert_array_equal(pixels, frames[number], f"frame {number} of {order}")
    stride = max(1, min(3, (count - 1) // 4))
    start = int(rng.integers(0, max(1, count - 3 * stride)))
    clip = sw.video(4, stride=stride, start=start, short="repeat", layout="THWC")(data)
    for i, pixels in enumerate(clip):
        np.testing.assert_array_equal(pixels, frames[min(start + i * stride, count - 1)])
    reader = BytesReader(data)
    index = index_from_bytes(index_to_bytes(with_checksums(index_media(reader), reader)))
    form = form_of(index, layout="THWC")
    for number, pixels in zip(
        orders[-1].tolist(), decode_frames(reader, index, orders[-1], form=form), strict=True
    ):
        np.testing.assert_array_equal(pixels, frames[number], f"frame {number} by the index")


def check_times(path: Path, data: bytes, times: list[int | None]) -> None:
    """The times of showing, from the first one on; avi has none, and FFmpeg guesses the first."""
    own = index_media(BytesReader(data)).first("video").pts
    if len(times) and None not in times and (np.diff(times) >= 0).all():
        differences = (own - own[0]) - (np.array(times) - times[0])
        assert abs(differences).max() <= (path.suffix == ".avi")


def check_tables(path: Path, data: bytes) -> bool:
    """Compare the own parser of mp4 with libavformat; False where it leaves a file to that."""
    if data[4:8] not in (b"ftyp", b"moov", b"mdat", b"wide", b"free"):
        return False
    reader = BytesReader(data)
    moov = read_moov(reader, read_head(reader))
    tracks = read_tracks(moov, num_bytes=len(data), limits=DEFAULT_LIMITS)
    if tracks is None:
        return False
    with av.open(str(path)) as container:
        streams = [
            s for s in container.streams
            if s.type in ("video", "audio") and not s.disposition & s.disposition.attached_pic
        ]  # fmt: skip
        packets = {stream.index: [] for stream in streams}
        for packet in container.demux(streams):
            if packet.size:
                packets[packet.stream_index].append((packet.pos, packet.size, packet.is_keyframe))
        for track, stream in zip(tracks, streams, strict=True):
            columns = track.columns
            rows = zip(columns.offset.tolist(), columns.size.tolist(), columns.key.tolist(),
                       strict=True)  # fmt: skip
            assert [*rows] == packets[stream.index]
    return True


def check_file(path: Path) -> str:
    """Check one file: "exact" or "refused"."""
    data = path.read_bytes()
    check_tables(path, data)
    if path.name in REFUSED:
        with pytest.raises(DataError, match=re.escape(REFUSED[path.name])):
            media = sw.media()(data)
            media.frames(np.arange(media.info.num_frames))
        return "refused"
    frames, times = plain_frames(path)
    check_requests(path.name, data, frames)
    check_times(path, data, times)
    return "exact"


def check_all(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """Make and check some files, and say of all that are wrong what is."""
    found: dict[str, list[str]] = {}
    wrong = {}
    for name in make_family(folder, names):
        try:
            found.setdefault(check_file(folder / name), []).append(name)
        except (AssertionError, DataError, pytest.fail.Exception) as error:
            wrong[name] = f"{type(error).__name__}: {error}"[:400]
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    return found


def test_a_fifth_of_the_family_is_exact_or_refused(media_files, tmp_path):
    found = check_all(tmp_path, FIFTH)
    assert len(found["exact"]) >= 0.8 * len(FIFTH)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_all_of_the_family_is_exact_or_refused(media_files, tmp_path, part):
    names = OTHERS[part::4]
    found = check_all(tmp_path, names)
    assert len(found["exact"]) >= 0.8 * len(names)


def test_the_family_is_large():
    assert len(ENCODED) + len(COPIED) >= 150
    assert len(FIFTH) >= (len(ENCODED) + len(COPIED)) // 5
    assert {*FIFTH, *REFUSED} <= {*ENCODED, *COPIED}
