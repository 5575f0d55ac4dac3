"""Damaged files: an error that says where, never another frame than the one asked for."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.media.files import demux
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.index_format import index_from_bytes, index_to_bytes
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.media_index import index_media, with_checksums
from tests.support.media import numbers_in, zeroed


@pytest.mark.parametrize(
    "name", ["b_frames", "co64", "mkv", "vp9", "avi", "ts", "wmv", "fragmented"]
)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.95])
def test_a_cut_file_is_an_error(media_files, name, share):
    data = media_files.read(name)
    # Not at the end of a packet of ts, where nothing can be seen.
    cut = data[: int(len(data) * share) // 188 * 188 + (50 if share else 0)]
    with pytest.raises(DataError):
        sw.video(4, start="first")(cut)


@pytest.mark.parametrize("name", ["b_frames", "hevc", "av1", "vp9_mp4", "mpeg4", "mkv", "avi"])
def test_flipped_bytes_give_the_frames_asked_for_or_an_error(media_files, name):
    data = media_files.read(name)
    reader = BytesReader(data)
    index = index_from_bytes(index_to_bytes(with_checksums(index_media(reader), reader)))
    track = index.first("video")
    frames = np.arange(track.num_frames)
    good = decode_frames(reader, index, frames, form=form_of(index))
    rng = np.random.default_rng(5)
    for _ in range(6):
        damaged = bytearray(data)
        sample = int(rng.integers(len(track.columns.size)))
        at = int(track.columns.offset[sample]) + int(rng.integers(track.columns.size[sample]))
        damaged[at] ^= 1 << int(rng.integers(8))
        # With checksums every change is found, and the error says where.
        with pytest.raises(DataError, match="CRC-32") as caught:
            decode_frames(BytesReader(bytes(damaged)), index, frames, form=form_of(index))
        assert 0 <= caught.value.offset <= at
        # Without them the frames that are decoded are at their places, or there is an error.
        try:
            clip = sw.video(track.num_frames)(bytes(damaged))
        except DataError:
            continue
        assert clip.shape == good.shape


@pytest.mark.parametrize("name", ["b_frames", "hevc"])
def test_frames_that_a_decoder_calls_damaged_are_an_error(media_files, name):
    with pytest.raises(DataError, match="frame"):
        sw.video(75, start=0)(zeroed(media_files.read(name), 30))


@pytest.mark.parametrize("name", ["open_gop_late", "open_gop_short", "intra_refresh"])
def test_a_second_try_from_an_earlier_key_frame_hides_no_damage(media_files, name):
    data = media_files.read(name)
    track = index_media(BytesReader(data)).first("video")
    for frame in (30, 40, 50, 60):
        sample = int(track.order[frame])
        for number in (sample, int(track.segments(np.array([frame]))[0].samples[0])):
            with pytest.raises(DataError, match="frame"):
                sw.video(1, start=frame)(zeroed(data, number))
        assert numbers_in(sw.video(1, start=frame, layout="THWC")(data)) == [frame]


@pytest.mark.parametrize("name", ["open_gop_late", "open_gop_short"])
def test_each_frame_is_decoded_alone_where_slices_name_pictures_of_groups_before(media_files, name):
    decoded = [
        numbers_in(sw.video(1, start=frame, layout="THWC")(media_files.read(name)))
        for frame in range(75)
    ]
    assert decoded == [[frame] for frame in range(75)]


def test_damage_in_groups_with_leading_pictures_is_seen_as_in_others(media_files):
    """The leading pictures alone may fail: what they need is not there."""
    data = media_files.read("open_gop")
    track = index_media(BytesReader(data)).first("video")
    tried = 0
    for frame in range(14, 74, 3):
        [segment] = track.segments(np.array([frame]))
        assert segment.may_fail
        assert not segment.may_fail & set(segment.wanted.tolist())
        for sample in {int(segment.samples[0]), int(segment.wanted[0])}:
            damaged = zeroed(data, sample, keep=int(track.columns.size[sample]) // 2)
            with pytest.raises(DataError, match="frame"):
                sw.video(1, start=frame)(damaged)
            tried += 1
    assert tried > 20


def test_a_frame_that_lacks_its_bytes_is_named(media_files):
    data = media_files.read("b_frames")
    reader = BytesReader(data)
    index = index_media(reader)
    with pytest.raises(DataError, match="make it again"):
        decode_frames(BytesReader(data[:-1]), index, np.array([0]), form=form_of(index))


def test_what_is_no_video_is_an_error(media_files):
    sound = media_files.sound("tone.m4a", "-c:a aac").read_bytes()
    with pytest.raises(DataError, match=r"no video track; it has audio \(aac\)"):
        sw.video(1)(sound)
    for data in (b"", b"x", b"not a video at all" * 100, b"\0\0\0\x08ftyp", bytes(5000)):
        with pytest.raises(DataError):
            sw.video(1)(data)
        with pytest.raises(DataError):
            sw.audio()(data)


def test_a_video_of_one_frame_is_whole(media_files):
    path = media_files.make("one.mp4", "-c:v libx264 -pix_fmt yuv420p", count=1)
    data = path.read_bytes()
    assert numbers_in(sw.video(1, layout="THWC")(data)) == [0]
    assert numbers_in(sw.video(3, layout="THWC", short="repeat")(data)) == [0, 0, 0]
    with pytest.raises(DataError, match="short="):
        sw.video(2)(data)


def test_a_header_that_promises_too_much_is_refused(media_files):
    data = media_files.read("b_frames")
    with pytest.raises(DataError, match="max_pixels=1000"):
        sw.video(1, max_pixels=1000)(data)
    with pytest.raises(DataError, match="max_frames=74"):
        sw.video(1, max_frames=74)(data)
    # Four billion frames of one size take 12 bytes of header.
    at = data.index(b"stsz") + 8
    bomb = data[:at] + struct.pack(">II", 1, 0xFFFFFFFF) + data[at + 8 :]
    with pytest.raises(DataError, match="4294967295 samples"):
        sw.video(1)(bomb)
    at = data.rindex(b"avc1") + 28
    bomb = data[:at] + struct.pack(">HH", 65535, 65535) + data[at + 4 :]
    with pytest.raises(DataError, match="65535 x 65535"):
        sw.video(1)(bomb)
    # The stream itself is larger than its container says.
    small = data[:at] + struct.pack(">HH", 8, 8) + data[at + 4 :]
    with pytest.raises(DataError):
        sw.video(1, max_pixels=100)(small)
    assert Limits().max_pixels >= 7680 * 4320


def test_damaged_headers_raise_nothing_else(media_files):
    rng = np.random.default_rng(11)
    for name in ("sound", "mkv", "ts"):
        data = media_files.read(name)
        moov = data.find(b"moov") if name == "sound" else 0
        for _ in range(40):
            damaged = bytearray(data)
            for at in rng.integers(moov, min(len(data), moov + 3000), 4).tolist():
                damaged[at] = int(rng.integers(256))
            try:
                sw.media()(bytes(damaged)).frames([0, 30])
            except (DataError, IndexError):
                continue


def test_a_damaged_stored_index_is_refused(media_files):
    stored = bytearray(index_to_bytes(index_media(BytesReader(media_files.read("sound")))))
    for at in range(0, len(stored), 7):
        damaged = bytearray(stored)
        damaged[at] ^= 0x10
        with pytest.raises(DataError, match="media index"):
            index_from_bytes(bytes(damaged))
    with pytest.raises(DataError, match="media index"):
        index_from_bytes(bytes(stored[:40]))


def test_picture_hashes_of_hevc_find_each_flipped_bit(media_files):
    options = "-c:v libx265 -preset ultrafast -pix_fmt yuv420p -x265-params"
    options += " hash=1:keyint=12:open-gop=1:bframes=3:log-level=none"
    data = media_files.make("hashed.mp4", options).read_bytes()
    track = index_media(BytesReader(data)).first("video")
    decoder = sw.video(track.num_frames, backend="pyav")
    good = decoder(data)
    num_errors = 0
    rng = np.random.default_rng(3)
    for _ in range(8):
        damaged = bytearray(data)
        frame = int(rng.integers(len(track.columns.size)))
        at = int(track.columns.offset[frame] + rng.integers(20, track.columns.size[frame]))
        damaged[at] ^= 1 << int(rng.integers(8))
        try:
            clip = decoder(bytes(damaged))
        except DataError:
            num_errors += 1
        else:
            np.testing.assert_array_equal(clip, good)  # the bit is in no picture
    assert num_errors


def test_the_checksums_of_mkv_and_of_ac3_find_each_flipped_bit(media_files):
    rng = np.random.default_rng(8)
    for name, decoder in (("mkv", sw.video(4)), ("sound.ac3", sw.audio())):
        if name == "mkv":
            data = media_files.read(name)
        else:
            data = media_files.sound(name, "-c:a ac3").read_bytes()
        decoder(data)
        for at in rng.integers(len(data) // 8, len(data) - 900, 12).tolist():
            damaged = bytearray(data)
            damaged[at] ^= 1 << int(rng.integers(8))
            with pytest.raises(DataError):
                decoder(bytes(damaged))


def test_parts_of_an_mkv_that_changed_places_are_an_error(media_files):
    data = media_files.read("vp9")  # a webm, without checksums
    cluster = data.index(b"\x1f\x43\xb6\x75")
    moved = data[:cluster] + data[cluster + 1500 :] + data[cluster : cluster + 1500]
    with pytest.raises(DataError, match="do not follow one another"):
        sw.video(4)(moved)


@pytest.mark.parametrize("name", ["vp9", "edit_mkv", "avi", "ts"])
def test_a_frame_whose_place_in_the_container_is_damaged_is_not_left_out(media_files, name):
    data = media_files.read(name)
    columns = index_media(BytesReader(data)).first("video").columns
    at = int(columns.offset[20])
    if name == "ts":
        at = data.index(b"\x47", len(data) // 2 // 188 * 188)
    # What stands before the payload, or the mark of a packet.
    damaged = (
        data[: at - 8] + bytes(8) + data[at:]
        if name != "ts"
        else (data[:at] + bytes(200) + data[at + 200 :])
    )
    sw.video(4)(data)
    with pytest.raises(DataError, match=r"follow one another|begin with 0x47|CRC-32"):
        sw.video(4)(damaged)


def test_an_avi_whose_writer_pads_no_chunk_is_read(media_files):
    data = media_files.read("avi")
    movi = data.index(b"movi")
    (length,) = struct.unpack_from("<I", data, movi - 4)
    at, end, chunks = movi + 4, movi - 4 + 4 + length, b"movi"
    while at < end:
        (size,) = struct.unpack_from("<I", data, at + 4)
        chunks += data[at : at + 8 + size]
        at += 8 + size + size % 2
    assert len(chunks) < length
    chunks += bytes(len(chunks) % 2)
    head = bytearray(data[:movi])
    struct.pack_into("<I", head, movi - 4, len(chunks))
    tight = head + chunks + data[end:]
    struct.pack_into("<I", tight, 4, len(tight) - 8)
    expected = sw.media()(data).frames(range(20))
    np.testing.assert_array_equal(sw.media()(bytes(tight)).frames(range(20)), expected)


@pytest.mark.parametrize("name", ["b_frames", "hevc", "vp9_mp4", "mpeg4"])
def test_zeros_in_place_of_a_part_of_a_picture_are_an_error(media_files, name):
    data = media_files.read(name)
    columns = index_media(BytesReader(data)).first("video").columns
    number = int(columns.size.argmax())
    at = int(columns.offset[number]) + int(columns.size[number]) // 2
    decoder = sw.video(len(columns.size))
    decoder(data)
    with pytest.raises(DataError, match="zeros lie in place") as caught:
        decoder(data[:at] + bytes(40) + data[at + 40 :])
    assert caught.value.offset == columns.offset[number]


def test_a_stream_that_its_header_lacks_is_an_error(media_files, monkeypatch):
    opened = demux._open_container

    class Container:
        def __init__(self, container):
            self.streams = container.streams

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def demux(self, _):
            raise IndexError("list index out of range")  # as PyAV does

    monkeypatch.setattr(demux, "_open_container", lambda *args, **options: Container(opened(*args)))
    with pytest.raises(DataError, match="begins in the middle"):
        sw.video(4)(media_files.read("ts"))
