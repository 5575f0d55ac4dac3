"""Sound by its own headers: wav of any order and length, damaged pages of Ogg, packets."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.opus_vorbis import opus_samples
from tests.support.media import CountingReader
from tests.support.properties import examples
from tests.support.sounds import make_sound

TONE = (0.5 * np.sin(np.arange(16000) / 9) * 32767).astype("<i2")


def wave(sound=TONE, *, mark=b"RIFF", riff_size=None, data_size=None, code=1, before=b""):
    """A wav of one channel at 16 kHz."""
    order = ">" if mark == b"RIFX" else "<"
    data = sound.astype(sound.dtype.newbyteorder(order)).tobytes()
    width = sound.dtype.itemsize
    form = struct.pack(f"{order}HHIIHH", code, 1, 16000, 16000 * width, width, 8 * width)
    chunks = b"WAVE" + before + b"fmt " + struct.pack(f"{order}I", len(form)) + form
    chunks += b"data" + struct.pack(f"{order}I", len(data) if data_size is None else data_size)
    size = len(chunks) + len(data) if riff_size is None else riff_size
    return mark + struct.pack(f"{order}I", size) + chunks + data


@pytest.mark.parametrize(
    "options",
    [{}, {"mark": b"RIFX"}, {"riff_size": 0, "data_size": 0}, {"data_size": 0},
     {"riff_size": 2**32 - 1, "data_size": 2**32 - 1},
     {"before": b"LIST" + struct.pack("<I", 9001) + bytes(9002)}],
    ids=["plain", "big-endian", "no sizes", "no size of data", "a stream", "a long chunk before"],
)  # fmt: skip
@pytest.mark.parametrize("read", [sw.audio(), lambda data: sw.media()(data).audio()])
def test_a_wav_is_read_whatever_its_order_and_its_sizes(options, read):
    found = read(wave(**options))
    np.testing.assert_array_equal(found[0], TONE / np.float32(32768))


@pytest.mark.parametrize(("dtype", "code"), [("u1", 1), ("<i4", 1), ("<f4", 3), ("<f8", 3)])
def test_a_wav_of_each_kind_of_number_is_read(dtype, code):
    scale = {"u1": 1 << 7, "<i4": 1 << 31}.get(dtype, 1)
    wide = np.round(np.sin(np.arange(99)) * (scale - 1)) if scale > 1 else np.sin(np.arange(99))
    sound = (wide + (128 if dtype == "u1" else 0)).astype(dtype)
    found = sw.audio()(wave(sound, code=code))
    np.testing.assert_allclose(found[0], wide / scale, atol=1e-7)


@pytest.mark.parametrize(
    ("data", "match"),
    [(wave()[:-500], "it was cut"), (wave()[:40], "no chunk b'data'"), (wave()[:30], "fmt|data"),
     (wave().replace(b"\1\0\1\0\x80>", b"\1\0\0\0\x80>"), "0 channels")],
)  # fmt: skip
def test_a_damaged_wav_is_an_error_that_says_why(data, match):
    with pytest.raises(sw.DataError, match=match):
        sw.audio()(data)


def test_the_index_of_a_long_wav_reads_its_header_alone():
    reader = CountingReader(wave(np.zeros(1 << 20, "<i2")))
    index_media(reader)
    assert reader.total <= 4096 + 12


@pytest.mark.parametrize(
    "name", ["libvorbis_2c48000.ogg", "libopus_2c48000.opus", "flac_2c48000.oga"]
)
def test_a_flipped_bit_of_ogg_is_an_error(media_files, name):
    data = make_sound(media_files.folder, name)
    rng = random.Random(name)
    for _ in range(40):
        bit = rng.randrange(8 * len(data))
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(sw.DataError, match=r"(page|stream) of Ogg"):
            sw.audio(seconds=0.3, start=0.5)(bytes(damaged))


def test_an_ogg_without_its_last_page_was_cut(media_files):
    data = make_sound(media_files.folder, "libopus_2c48000.opus")
    with pytest.raises(sw.DataError, match="no last page"):
        sw.audio()(data[: data.rindex(b"OggS")])


@settings(max_examples=examples(50))
@given(st.binary(max_size=4))
def test_the_samples_of_a_packet_of_opus_are_within_the_format(packet):
    # A frame has 2.5 to 60 ms; an invalid packet may promise 63 of them.
    assert 0 <= opus_samples(packet) <= 63 * 2880


@pytest.mark.parametrize("codec", ["aac_aac_pns_0_8c44100.m4a", "libopus_8c48000.opus"])
def test_eight_channels_do_not_end_the_process(media_files, codec):
    data = make_sound(media_files.folder, codec)
    found = sw.audio(seconds=0.5)(data)
    assert found.shape[0] == 8
    assert np.isfinite(found).all()
    (track,) = index_media(BytesReader(data)).tracks
    assert track.num_channels == 8


def labelled(container, labels):
    """Two samples of a sound whose channels have labels of CoreAudio."""
    places = struct.pack(">3I", 0, 0, len(labels))
    places += b"".join(struct.pack(">5I", label, 0, 0, 0, 0) for label in labels)
    sound = np.arange(2 * len(labels), dtype=">i2").tobytes()
    if container == "caf":
        form = struct.pack(">d4s5I", 16000, b"lpcm", 0, 2 * len(labels), 1, len(labels), 16)
        chunks = {b"desc": form, b"chan": places, b"data": bytes(4) + sound}
        return b"caff\0\1\0\0" + b"".join(
            name + struct.pack(">q", len(chunk)) + chunk for name, chunk in chunks.items()
        )
    form = struct.pack(">hIhHQ", len(labels), 2, 16, 0x400C, 0xFA << 56)  # 16 kHz in 80 bits
    chunks = {b"COMM": form, b"CHAN": places, b"SSND": bytes(8) + sound}
    body = b"AIFF" + b"".join(
        name + struct.pack(">I", len(chunk)) + chunk for name, chunk in chunks.items()
    )
    return b"FORM" + struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("container", ["caf", "aiff"])
def test_channels_whose_labels_are_in_no_order_of_ours_are_refused(container):
    for labels in ([3], [1, 2], [1, 2, 3, 4, 5, 6], [65536, 65537]):
        assert sw.audio()(labelled(container, labels)).shape == (len(labels), 2)
    # PyAV would end the process.
    for labels in ([2, 1], [1, 2, 3, 4, 33, 34], [1, 65536]):
        with pytest.raises(sw.DataError, match="channels lie in the order 0"):
            sw.audio()(labelled(container, labels))
