"""A family of sounds: any request gives the samples of a plain decode, or a refusal listed here."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import soundfile

import shardwise as sw
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.container_ends import check_end
from shardwise.extensions.media.files.demux import demux
from shardwise.extensions.media.files.index_format import index_from_bytes, index_to_bytes
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.sound import PacketSound
from tests.support.sounds import FAMILY, make_sound, plain_decode, samples_of

# PyAV frees the layout of such channels twice; a plain decode ends the process.
REFUSED = {name: "channels lie in the order" for name in FAMILY
           if name in ("pcm_s16le_8c48000.mov", "pcm_s16le_8c48000.caf",
                       "aac_aac_pns_0_7c44100.mov")} | {
    # FFmpeg's header of a copied part counts the samples of the whole.
    "flac_2c48000_ss_0.53.flac": "was the file cut",
    "flac_2c48000_t_0.71.flac": "was the file cut",
    # FFmpeg writes a packet 45 samples early.
    "libmp3lame_1c8000.mp4": "leave a gap",
}  # fmt: skip
# FFmpeg takes the delay of Opus for one at 16 kHz, and leaves in 208 samples.
LATE = {"libopus_frame_duration_60_1c16000.webm": 208,
        "libopus_application_voip_ba_12k_1c16000.webm": 208}  # fmt: skip
# One page: FFmpeg counts samples for the first packet, which has none, and loses the last 128.
LONGER = {"libvorbis_2c48000_t_0.71.ogg": 128}
# The end of an edit lies inside a packet, which FFmpeg gives whole.
_EDITED = ("m4a", "mp4", "mov")
_MAX_PACKET = 1152
# Of AAC, where the container does not tell it.
_AAC_DELAY = 1024
# Decoders by which a part differs from the whole in the last bits, or rounds to 16 bits.
_WITHIN = {"mp2": 2.0**-14, "libopus": 1e-6}


def _named(names, every=12):
    """Every so-manieth by default, the others with the long tests."""
    return [
        pytest.param(name, marks=[] if number % every == 0 else [pytest.mark.long])
        for number, name in enumerate(names)
    ]


@pytest.mark.parametrize("name", _named([*REFUSED, *sorted(FAMILY.keys() - REFUSED)], 12))
def test_any_part_of_a_sound_is_that_of_its_plain_decode(media_files, name):
    kind, data = FAMILY[name], make_sound(media_files.folder, name)
    if name in REFUSED:
        with pytest.raises(sw.DataError, match=REFUSED[name]):
            sw.audio()(data)
        return
    whole = sw.audio()(data)
    plain, rate = plain_decode(data)
    plain = plain[:, LATE.get(name, 0) :]
    missing = plain.shape[1] - whole.shape[1]
    if kind.extension in _EDITED:
        assert 0 <= missing <= _MAX_PACKET
    else:
        assert missing == -LONGER.get(name, 0)
    within = _WITHIN.get(kind.codec.split()[0], 0)
    shared = min(plain.shape[1], whole.shape[1])
    np.testing.assert_allclose(whole[:, :shared], plain[:, :shared], rtol=0, atol=within)

    rng, length = random.Random(name), whole.shape[1]
    index = index_from_bytes(index_to_bytes(index_media(BytesReader(data))))
    stored = PacketSound(BytesReader(data), index)
    for count, start in ((1, 0), (1, length - 1), (rng.randrange(1, length // 3), None)):
        begin = rng.randrange(length - count) if start is None else start
        expected = whole[:, begin : begin + count]
        part = sw.audio(seconds=count / rate, start=begin / rate, short="error")(data)
        np.testing.assert_allclose(part, expected, rtol=0, atol=within)
        far = stored.read(begin, begin + count)
        np.testing.assert_allclose(far, expected, rtol=0, atol=within)


@pytest.mark.parametrize(("container", "codec"), [("WAV", "GSM610"), ("AU", "G721_32")])
def test_any_part_of_what_libsndfile_codes_is_that_of_its_plain_decode(container, codec):
    stream = io.BytesIO()
    soundfile.write(stream, samples_of(1, 8000).T, 8000, format=container, subtype=codec)
    plain, _ = plain_decode(stream.getvalue())
    np.testing.assert_array_equal(sw.audio()(stream.getvalue()), plain)
    part = sw.audio(seconds=0.1, start=1.15)(stream.getvalue())
    np.testing.assert_array_equal(part, plain[:, 9200:10000])


def test_the_family_is_large_and_each_listed_file_is_in_it():
    assert len(FAMILY) >= 150
    assert {*REFUSED, *LATE, *LONGER} <= FAMILY.keys()


_OWN = [name for name in FAMILY if name.endswith((".mp3", ".opus", ".ogg")) and "speex" not in name]


@pytest.mark.parametrize("name", _named(_OWN))
def test_own_readers_of_mp3_and_ogg_find_the_packets_that_ffmpeg_finds(media_files, name):
    data = make_sound(media_files.folder, name)
    (mine,) = index_media(BytesReader(data)).tracks
    (theirs,), payloads = demux(data, DEFAULT_LIMITS)
    columns = mine.columns
    assert columns.size.tolist() == [len(payload) for payload in payloads[0]]
    if mine.is_ranged:
        assert [
            data[at : at + size] for at, size in zip(columns.offset, columns.size, strict=True)
        ] == payloads[0]
    assert (mine.codec, mine.rate, mine.num_channels) == (
        theirs.codec, theirs.rate, theirs.num_channels,
    )  # fmt: skip
    assert mine.lead == theirs.lead
    assert mine.length == theirs.length + LONGER.get(name, 0)


CONTAINERS = {
    "wav": "pcm_s16le_2c48000.wav", "rf64": "pcm_s16le_2c48000.rf64.wav",
    "w64": "pcm_s16le_2c48000.w64", "aiff": "pcm_s16be_2c44100.aiff",
    "au": "pcm_s16be_2c44100.au", "caf": "pcm_s16le_2c48000.caf",
    "avi": "pcm_s16le_2c48000.avi", "mka": "libopus_2c48000.mka",
    "m4a": "aac_aac_pns_0_2c44100.m4a", "mp3": "libmp3lame_2c48000.mp3",
    "opus": "libopus_2c48000.opus", "ogg": "libvorbis_2c48000.ogg", "flac": "flac_2c48000.flac",
}  # fmt: skip


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_cut_is_told_of_every_container_that_says_its_length(media_files, container):
    data = make_sound(media_files.folder, CONTAINERS[container])
    for part in (0.4, 0.98):
        with pytest.raises(sw.DataError):
            sw.audio()(data[: int(len(data) * part)])


def test_the_end_of_a_stream_that_is_not_known_is_no_cut(media_files):
    for name in ("pcm_s16le_2c48000.pipe.wav", "flac_2c48000.pipe.flac"):
        data = make_sound(media_files.folder, name)
        assert sw.audio()(data).shape == samples_of(2, 48000).shape
    check_end(b"\0" * 64)


ORDERS = [
    f"{codec}_{channels}c{rate}.{extension}"
    for channels in (6, 8)
    for codec, rate, extensions in (
        ("pcm_s16le", 48000, "wav mka"), ("flac", 48000, "flac oga mka mp4"),
        ("libopus", 48000, "opus webm mp4"), ("libvorbis", 48000, "ogg webm mp4"),
        ("aac_aac_pns_0", 44100, "m4a mka"),
    )
    for extension in extensions.split()
]  # fmt: skip


@pytest.mark.parametrize("name", _named(ORDERS))
def test_channels_have_one_order_in_every_container(media_files, name):
    kind = FAMILY[name]
    found = sw.audio()(make_sound(media_files.folder, name))
    if kind.codec.startswith("aac") and kind.extension == "mka":
        found = found[:, _AAC_DELAY:]
    expected = samples_of(kind.channels, kind.rate)
    length = min(found.shape[1], expected.shape[1])
    likeness = found[:, :length] @ expected[:, :length].T
    likeness[:, 3] = 0  # encoders take the high tones out of the channel of low ones
    assert [each for each in likeness.argmax(axis=1).tolist() if each != 3][:3] == [0, 1, 2]
    rows = [row for row in range(kind.channels) if row != 3]
    assert likeness[rows].argmax(axis=1).tolist() == rows
