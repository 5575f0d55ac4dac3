"""Several runs of coded frames in one decoder of torchcodec: which, how often, and never wrong."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torchcodec.decoders

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.references import is_refresh, length_bytes
from tests.support import media
from tests.support.media import H264, numbers_in, zeroed

# name -> key frames 12 apart; of closed groups, so that each is an IDR.
CLOSED = {
    "closed.mp4": H264 + "-g 12",
    "closed.ts": H264 + "-g 12",
    "closed_hevc.mp4": "-c:v libx265 -preset ultrafast -pix_fmt yuv420p -tag:v hvc1 -x265-params "
    "keyint=12:min-keyint=12:scenecut=0:open-gop=0:bframes=3:log-level=none",
}
# In five groups of twelve, and twice right behind one another.
FRAMES = np.array([3, 7, 14, 23, 24, 33, 51, 60])


@pytest.fixture
def opened(monkeypatch):
    """Counts the decoders that are opened."""
    calls = []
    real = torchcodec.decoders.VideoDecoder

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(torchcodec.decoders, "VideoDecoder", counted)
    return calls


decode = partial(media.decode, backend="torchcodec")


@pytest.mark.parametrize("name", CLOSED)
def test_runs_that_begin_with_a_refresh_share_one_decoder(media_files, opened, name):
    data = media_files.make(name, CLOSED[name]).read_bytes()
    clip = decode(data, FRAMES)
    assert len(opened) == 1
    assert numbers_in(clip) == FRAMES.tolist()
    for order in (FRAMES[::-1], np.array([60, 3, 60, 33, 3])):
        assert numbers_in(decode(data, order)) == order.tolist()
    assert numbers_in(decode(data, FRAMES, size=(60, 80))) == FRAMES.tolist()
    # The same pixels as from a decoder of its own each.
    alone = np.concatenate([decode(data, [number]) for number in FRAMES.tolist()])
    np.testing.assert_array_equal(clip, alone)


def test_frames_are_asked_for_in_parts_that_bound_the_copy(media_files, opened, monkeypatch):
    monkeypatch.setattr(
        "shardwise.extensions.media.files.torchcodec_backend._CALL_BYTES", 2 * 3 * 160 * 120
    )
    data = media_files.make("closed.mp4", CLOSED["closed.mp4"]).read_bytes()
    assert numbers_in(decode(data, FRAMES)) == FRAMES.tolist()
    assert len(opened) == 1


def test_open_groups_and_other_codecs_have_a_decoder_a_run(media_files, opened):
    for name in ("hevc", "vp9_mp4"):
        opened.clear()
        data = media_files.read(name)
        track = index_media(BytesReader(data)).first("video")
        assert numbers_in(decode(data, FRAMES)) == FRAMES.tolist()
        assert len(opened) == len(track.segments(FRAMES)) > 1


def refreshes(data):
    """The place of the first slice of each refresh of a file."""
    track = index_media(BytesReader(data)).first("video")
    columns, num_length_bytes = track.columns, length_bytes(track)
    for begin, size in zip(columns.offset.tolist(), columns.size.tolist(), strict=True):
        if not is_refresh(track, data[begin : begin + size]):
            continue
        at = begin
        while data[at + num_length_bytes] >> 1 & 63 not in (19, 20):
            at += num_length_bytes
            at += int.from_bytes(data[at - num_length_bytes : at], "big")
        yield at + num_length_bytes


def test_a_refresh_that_forbids_what_lies_before_it_costs_no_frame(media_files, opened):
    data = bytearray(media_files.make("closed_hevc.mp4", CLOSED["closed_hevc.mp4"]).read_bytes())
    places = list(refreshes(bytes(data)))
    assert len(places) == 7
    for place in places:
        data[place + 2] |= 0x40  # no_output_of_prior_pics_flag
    # Frames that are in the decoder still when the refresh comes.
    frames = np.array([10, 11, 30, 35, 37])
    assert numbers_in(decode(bytes(data), frames)) == frames.tolist()
    assert len(opened) > 1


def test_a_damaged_run_is_the_one_that_the_error_names(media_files):
    data = media_files.make("closed.mp4", CLOSED["closed.mp4"]).read_bytes()
    for number in range(48, 60):
        data = zeroed(data, number, keep=5)
    with pytest.raises(DataError, match="coded frames 48 to "):
        decode(data, FRAMES)
