"""Sound by sample numbers: no lag, and a part is what it is in the whole."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.index_format import index_from_bytes, index_to_bytes
from shardwise.extensions.media.files.media_index import index_media
from shardwise.extensions.media.files.sound import PacketSound
from shardwise.extensions.media.files.sound_window import open_sound, read_window
from tests.support.media import CountingReader
from tests.support.properties import examples

KINDS = {
    "n.flac": "",
    "n.ogg": "-c:a libvorbis",
    "n.mp3": "-b:a 128k",
    "n.m4a": "-b:a 128k",
    "n.opus": "-b:a 96k",
    "n.mka": "-c:a libopus",
}


@pytest.fixture
def reference(media_files):
    """The samples before encoding: float32 `[1, samples]`."""
    return soundfile.read(media_files.sound("n.wav"), dtype="float32", always_2d=True)[0].T


def lag(sound, reference):
    """By how many samples a sound lies behind another one."""
    length = min(len(sound), len(reference))
    part = sound[3000 : length - 3000]
    return min(
        range(-1500, 1501),
        key=lambda k: -float(part @ reference[3000 - k : length - 3000 - k]),
    )


def test_flac_is_read_by_pyav_where_soundfile_is_missing(media_files, monkeypatch):
    data = media_files.sound("n.flac").read_bytes()
    whole = sw.audio()(data)
    monkeypatch.setattr("shardwise.extensions.media.files.sound._has_soundfile", lambda: False)
    np.testing.assert_array_equal(sw.audio()(data), whole)


@pytest.mark.parametrize("name", KINDS)
def test_no_format_lags(media_files, reference, name):
    sound = open_sound(BytesReader(media_files.sound(name, KINDS[name]).read_bytes()))
    if sound.rate != 44100:
        reference = soxr.resample(reference.T, 44100, 48000).T
    whole = sound.read(0, sound.num_samples)
    assert lag(whole[0], reference[0]) == 0
    assert abs(sound.num_samples - reference.shape[1]) <= 48  # mkv says a millisecond


@pytest.mark.parametrize("name", KINDS)
def test_a_part_is_what_it_is_in_the_whole(media_files, name):
    sound = open_sound(BytesReader(media_files.sound(name, KINDS[name]).read_bytes()))
    whole = sound.read(0, sound.num_samples)
    for start, stop in ((0, 10), (44100, 66150), (100_001, 100_003), (130_000, 132_000)):
        np.testing.assert_allclose(sound.read(start, stop), whole[:, start:stop], atol=1e-4)


@pytest.mark.parametrize("name", ["n.flac"])
def test_lossless_sound_is_exact_to_the_bit_for_both_packages(media_files, reference, name):
    data = media_files.sound(f"s16_{name}", "-sample_fmt s16").read_bytes()
    np.testing.assert_array_equal(sw.audio()(data), reference)
    packets = PacketSound(BytesReader(data), index_media(BytesReader(data)))
    np.testing.assert_array_equal(packets.read(50_000, 60_000), reference[:, 50_000:60_000])


@pytest.mark.parametrize(
    ("name", "options"),
    [("far.mp3", "-b:a 192k"), ("far.m4a", "-c:a aac -b:a 192k"), ("far.opus", "-b:a 192k")],
)
def test_a_far_sound_is_read_by_its_packets(media_files, name, options):
    data = media_files.sound(name, options, seconds=40).read_bytes()
    index = index_from_bytes(index_to_bytes(index_media(BytesReader(data))))
    track = index.first("audio")
    assert len(index_to_bytes(index)) <= 3.5 * track.num_frames + 400

    reader = CountingReader(data)
    sound = PacketSound(reader, index)
    part = sound.read(20 * sound.rate, 25 * sound.rate)
    pts = (track.columns.pts - track.columns.pts[0]) * track.time_base[0] / track.time_base[1]
    segment = int(track.columns.size[(pts >= 20) & (pts < 25)].sum())
    assert segment + (256 << 10) < len(data) // 2
    assert segment <= reader.total <= segment + (256 << 10)
    np.testing.assert_allclose(part, sw.audio(seconds=5, start=20.0)(data), atol=1e-4)


def as_wav(sound, rate):
    stream = io.BytesIO()
    soundfile.write(stream, sound, rate, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def level_db(frequency, rate, target):
    """The level of a tone of level 0 at another rate."""
    time = np.arange(2 * rate) / rate
    tone = np.sin(2 * np.pi * frequency * time).astype(np.float32)
    out = sw.audio(rate=target)(as_wav(tone, rate))[0]
    middle = out[target // 2 : -target // 2].astype(np.float64)
    return 10 * np.log10(2 * np.mean(middle**2) + 1e-30)


@pytest.mark.parametrize("rate", [48000, 44100])
def test_another_rate_has_the_quality_of_soxr_hq(rate):
    assert abs(level_db(1000, rate, 16000)) < 0.01
    assert abs(level_db(7000, rate, 16000)) < 0.05
    assert abs(level_db(7500, rate, 16000)) < 0.5
    for alias in (8100, 9000, 12000):
        assert level_db(alias, rate, 16000) < -100


def test_another_rate_keeps_the_place_of_a_tone():
    tone = np.sin(2 * np.pi * 997 * np.arange(44100) / 44100).astype(np.float32)
    out = sw.audio(rate=16000)(as_wav(tone, 44100))[0]
    expected = np.sin(2 * np.pi * 997 * np.arange(16000) / 16000)
    np.testing.assert_allclose(out[500:-500], expected[500:-500], atol=1e-4)


NOISE = np.random.default_rng(3).standard_normal((70_001, 2)).astype(np.float32)


@settings(max_examples=examples(25))
@given(
    st.sampled_from([(44100, 16000), (48000, 16000), (16000, 48000), (22050, 44100), (8000, 7919)]),
    st.integers(0, 1 << 20),
    st.integers(1, 1 << 20),
)
def test_a_part_at_another_rate_is_to_the_bit_what_it_is_in_the_whole(rates, start, count):
    rate, target = rates
    data = as_wav(NOISE, rate)
    whole = sw.audio(rate=target)(data)
    start %= whole.shape[1]
    count = 1 + count % (whole.shape[1] - start)
    sound = open_sound(BytesReader(data))
    part = read_window(sound, start, count, rate=target, channels=None)
    np.testing.assert_array_equal(part, whole[:, start : start + count])


def test_another_rate_is_that_of_soxr_itself():
    data = as_wav(NOISE, 44100)
    expected = soxr.resample(NOISE, 44100, 16000, "HQ").T
    found = sw.audio(rate=16000)(data)
    # At its edges ours has silence around, soxr a transient of a few samples.
    np.testing.assert_allclose(found[:, 50:-50], expected[:, 50 : found.shape[1] - 50], atol=5e-6)


def test_another_rate_without_soxr_names_the_extra(media_files, monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(sw.MissingExtraError, match=r"needs soxr.*shardwise\[audio\]"):
        sw.audio(rate=8000)(media_files.sound("n.wav").read_bytes())


def test_sound_of_a_video_is_had(media_files):
    data = media_files.read("sound")
    sound = sw.audio(seconds=1, start=0.5)(data)
    spectrum = abs(np.fft.rfft(sound[0]))
    assert int(spectrum.argmax()) == 440


def test_shapes_shorts_and_channels(media_files, reference):
    data = media_files.sound("n.wav").read_bytes()
    masked = sw.audio(seconds=4)(data)
    assert masked.shape == (1, 4 * 44100)
    np.testing.assert_array_equal(masked[:, 132_300:], 0)
    again = sw.audio(seconds=4, short="repeat")(data)
    np.testing.assert_array_equal(again[:, 132_300:], reference[:, :44_100])
    with pytest.raises(sw.DataError, match="lasts 3 s"):
        sw.audio(seconds=4, short="error")(data)
    with pytest.raises(sw.DataError, match="lasts 3 s"):
        sw.audio(start=3.5)(data)
    with pytest.raises(ValueError, match=r"start='random'.*Add seconds="):
        sw.audio(start="random")
    assert sw.audio(channels=2)(data).shape[0] == 2
    centre = sw.audio(seconds=1, start="center")(data)
    np.testing.assert_array_equal(centre, reference[:, 44_100:88_200])
    drawn = [sw.audio(seconds=1, start="random")(data, rng=np.random.default_rng(7)) for _ in "ab"]
    np.testing.assert_array_equal(*drawn)
    other = sw.audio(seconds=1, start="random")(data, rng=np.random.default_rng(8))
    assert (other != drawn[0]).any()


def test_a_cut_wav_is_an_error(media_files):
    data = media_files.sound("n.wav").read_bytes()
    with pytest.raises(sw.DataError, match="cut"):
        sw.audio(seconds=1)(data[:-1000])


def test_sound_of_any_rate_is_padded_only_where_its_decoder_makes_no_mask(media_files, tmp_path):
    with sw.TarWriter(tmp_path / "a.tar") as writer:
        for rate in (8000, 16000):
            data = media_files.sound(f"n{rate}.wav", rate=rate).read_bytes()
            writer.write({"__key__": f"{rate}", "wav": data})
    options = {"ragged": "pad", "rank": 0, "world_size": 1, "output": "numpy"}

    def batch_of(**kind):
        data = sw.tar(tmp_path / "a.tar").decode(wav=sw.audio(seconds=1, **kind))
        with sw.DataLoader(data, 2, **options) as loader:
            return next(iter(loader))

    with pytest.raises(sw.DataError, match=r"adds 'wav.mask'.*audio\(rate=, channels=\)"):
        batch_of()
    batch = batch_of(short="error")
    assert batch["wav"].shape == (2, 1, 16000)
    assert batch["wav.mask"].sum(axis=-1).tolist() == [[8000], [16000]]
    assert batch_of(rate=8000, channels=1)["wav.mask"].shape == (2, 8000)
