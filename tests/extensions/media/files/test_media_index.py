"""The index of a file against FFmpeg's packets, and what it reads."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest

from shardwise.extensions.media.files import demux, order_by_decoding
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.clip_frames import ClipRule
from shardwise.extensions.media.files.coded_frames import read_segments
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.index_format import index_from_bytes, index_to_bytes
from shardwise.extensions.media.files.media_index import index_media, with_checksums
from tests.support.media import COPIES, NUM_FRAMES, VIDEOS, CountingReader, decode, numbers_in

MP4 = [
    name
    for name in [*VIDEOS, *COPIES]
    if (VIDEOS.get(name, ("mp4",))[0] in ("mp4", "mov")) and name not in ("fragmented", "edit_mkv")
]


@pytest.mark.parametrize("name", MP4)
def test_moov_alone_gives_the_packets_of_ffmpeg(media_files, name, monkeypatch):
    monkeypatch.setattr(demux, "import_av", None)  # nothing else may be asked
    index = index_media(BytesReader(media_files.read(name)))
    with av.open(str(media_files.path(name))) as container:
        packets = [p for p in container.demux(video=0) if p.size]
        base = container.streams.video[0].time_base
    track = index.first("video")
    columns = track.columns
    assert track.time_base == (base.numerator, base.denominator)
    assert columns.size.tolist() == [p.size for p in packets]
    assert columns.offset.tolist() == [p.pos for p in packets]
    assert columns.key.tolist() == [p.is_keyframe for p in packets]
    assert columns.shown.tolist() == [not p.is_discard for p in packets]
    assert columns.pts.tolist() == [p.pts for p in packets]
    assert columns.duration.tolist()[:-1] == [p.duration for p in packets][:-1]


@pytest.mark.parametrize("name", ["sound", "co64", "ts", "mkv"])  # mkv: a delay of 6.5 ticks
def test_sound_is_where_ffmpeg_has_it_from_the_first_sample_that_is_heard_on(media_files, name):
    track = index_media(BytesReader(media_files.read(name))).first("audio")
    with av.open(str(media_files.path(name))) as container:
        packets = [p for p in container.demux(audio=0) if p.size]
        container.seek(0)
        frame = next(container.decode(audio=0))
    # Ticks are samples, where the container's are coarser.
    assert track.time_base == (1, track.rate)
    tick = Fraction(frame.time_base) * track.rate
    assert abs(track.origin - frame.pts * tick) <= tick / 2 + 1
    expected = [p.pts * tick for p in packets]
    apart = [mine - theirs for mine, theirs in zip(track.columns.pts, expected, strict=True)]
    assert max(map(abs, apart)) <= tick + 1
    if name in ("sound", "co64"):
        assert (track.codec, track.rate) == ("aac", 44100)
        assert track.columns.offset.tolist() == [p.pos for p in packets]


@pytest.mark.parametrize("name", ["b_frames", "co64"])  # moov behind the frames, and before them
def test_a_far_mp4_is_indexed_by_three_ranges_and_a_clip_is_one(media_files, name):
    reader = CountingReader(media_files.read(name))
    index = index_media(reader)
    assert len(reader.ranges) <= 4  # the first one looks at 12 bytes
    track = index.first("video")
    reader.ranges.clear()
    frames = np.arange(30, 46, 3)
    decode_frames(reader, index, frames, form=form_of(index))
    (one,) = reader.ranges
    (segment,) = track.segments(frames)
    columns = track.columns
    first, last = int(segment.samples[0]), int(track.order[frames].max())
    needed = int(columns.offset[last] + columns.size[last] - columns.offset[first])
    assert one[1] - one[0] <= 1.3 * needed


@pytest.mark.parametrize("name", ["mkv", "vp9", "avi", "fragmented", "ts", "mpg"])
def test_a_clip_of_another_container_is_one_range_or_the_scattered_whole(media_files, name):
    data = media_files.read(name)
    index = index_from_bytes(index_to_bytes(index_media(BytesReader(data))))
    reader = CountingReader(data)
    clip = decode_frames(reader, index, np.array([63, 60]), form=form_of(index, layout="THWC"))
    assert numbers_in(clip) == [63, 60]
    assert len(reader.ranges) == 1
    if name in ("ts", "mpg"):
        assert reader.total == len(data)
    else:
        assert reader.total < len(data) * 0.6


@pytest.mark.parametrize("name", [*VIDEOS, *COPIES])
def test_a_stored_index_is_the_index(media_files, name):
    reader = BytesReader(media_files.read(name))
    index = with_checksums(index_media(reader), reader)
    stored = index_to_bytes(index)
    back = index_from_bytes(stored)
    assert index_to_bytes(back) == stored
    for mine, theirs in zip(index.tracks, back.tracks, strict=True):
        for column in ("pts", "duration", "size", "offset", "key", "shown"):
            a, b = getattr(mine.columns, column), getattr(theirs.columns, column)
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(mine.checksums, theirs.checksums)
        assert (mine.config, mine.parameters) == (theirs.config, theirs.parameters)


def test_an_index_takes_few_bytes_a_frame(media_files):
    path = media_files.make(
        "long.mp4", "-c:v libx264 -preset ultrafast -bf 2 -g 48 -pix_fmt yuv420p -vf "
        "loop=loop=19:size=75,noise=alls=20:allf=t", count=75,
    )  # fmt: skip
    index = index_media(BytesReader(path.read_bytes()))
    track = index.first("video")
    assert track.num_frames == 1500
    assert len(index_to_bytes(index)) <= 3.5 * track.num_frames


def test_the_text_of_x265_is_not_stored(media_files):
    data = media_files.read("hevc")
    begin = data.index(b"hvcC") + 4
    assert b"x265 (build" in data[begin : begin + 4096]
    track = index_media(BytesReader(data)).first("video")
    assert b"x265 (build" not in track.config
    # All else of the configuration is there, the three sets of parameters before the text.
    config = track.config
    assert config[22] == data[begin + 22] - 1 == 3
    assert (
        config[:22] + config[23:]
        == data[begin : begin + 22] + data[begin + 23 :][: len(config) - 23]
    )


@pytest.mark.parametrize("fps", [8, 12.5, 29.97])
def test_fps_takes_the_frame_that_is_on_the_screen(media_files, fps):
    track = index_media(BytesReader(media_files.read("vfr"))).first("video")
    numbers = ClipRule(9, fps=fps).numbers(track, 4)
    seconds = track.pts * track.time_base[0] / track.time_base[1]
    times = seconds[4] + np.arange(9) / fps
    expected = [int(np.flatnonzero(seconds <= time + 1e-9)[-1]) for time in times]
    assert numbers.tolist() == expected


def test_starts_are_all_that_leave_room_for_a_clip(media_files):
    track = index_media(BytesReader(media_files.read("vfr"))).first("video")
    for rule in (ClipRule(16, 4), ClipRule(10, fps=6), ClipRule(75), ClipRule(76)):
        count = rule.num_starts(track)
        whole = []
        for start in range(track.num_frames):
            try:
                rule.numbers(track, start)
            except ValueError:
                continue
            whole.append(start)
        assert whole == list(range(count))


def test_frames_before_a_key_frame_are_not_read(media_files):
    data = media_files.read("b_frames")
    index = index_media(BytesReader(data))
    track = index.first("video")
    (segment,) = track.segments(np.array([60]))
    assert track.columns.key[segment.samples[0]]
    assert len(segment.samples) < 20
    (payloads,) = read_segments(index, track, [segment], BytesReader(data))
    assert [len(p) for p in payloads] == track.columns.size[segment.samples].tolist()


def test_the_order_of_mpeg_in_avi_is_known_without_decoding(media_files, monkeypatch):
    mpeg2 = media_files.make("mpeg2_b.avi", "-c:v mpeg2video -bf 2 -g 12 -q:v 5").read_bytes()
    monkeypatch.delattr(order_by_decoding, "decoded_frames")
    for data in (media_files.read("avi_b"), mpeg2):
        assert numbers_in(decode(data, np.arange(NUM_FRAMES))) == list(range(NUM_FRAMES))
