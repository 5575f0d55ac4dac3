"""The two stored formats: their bytes mean what they meant, and are written as they were."""

from __future__ import annotations

import base64
from dataclasses import fields, replace

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.media.files.index_format import (
    bad_block,
    index_from_bytes,
    index_to_bytes,
)
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.track import Track, TrackColumns
from shardwise.extensions.media.tar.sidecar import (
    MediaSidecar,
    SidecarHeader,
    encode_sidecar,
)

INDEX = (
    "U1dNAsf1DguGAAAAePmFs46+rdO7EYAgEEVRxXYI9odCUc7YgEXYsSMJCywGjmQkBOc+LjfVIQmeY9X8Hiz9WIwiWMUqYV8n"
    "3EJaN5Co5bmCDwN2jG/s7OlNnQ11Ov3wd+wHK86CCeb2RRA6TTI0ESEUUOKArWl+qjVVVs1IR1bSWYmeaL4pHhyPcnbLDVFz"
    "yxR42mNg+M/AwMDCzsIAAAgvAQ942mNgYGCoYAESjAAC7wB+eNp7EBEQwaDExACCDAxMABuvAgt42ktgYDjBAAQsDAAJSgEt"
    "eNpjYmFhYQMAADkAFQEAAAD/////eNpbyMDAwcAAAAPkAKp42mNgYOBkYAAAACEACnjac3JxYWZmBgAECADUeNpjY2MDAAAn"
    "ABM="
)
SIDECAR = (
    "CAEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJzaGFyZHdpc2UtbWVkaWEiLCJ2ZXJzaW9uIjoiMiIsIm"
    "51bV9ieXRlcyI6IjEwMjQwIiwibnVtX3NhbXBsZXMiOiIyIiwiZmllbGRzIjoiW1wibXA0XCIsIFwibXAzXCJdIiwi"
    "bGF5b3V0IjoiMzczNTkyODU1OSJ9LCJlbmRzIjp7ImR0eXBlIjoiVTgiLCJzaGFwZSI6WzRdLCJkYXRhX29mZnNldH"
    "MiOlswLDRdfSwiY2hlY2tzdW0iOnsiZHR5cGUiOiJVOCIsInNoYXBlIjpbNF0sImRhdGFfb2Zmc2V0cyI6WzQsOF19"
    "fSADAwcLoZw/n29uZSFjdXRmb3Vy"
)
HEADER = SidecarHeader(10240, 2, ("mp4", "mp3"), 0xDEADBEEF)
BLOCKS = [b"one", b"", bad_block("cut"), b"four"]


def index() -> MediaIndex:
    """Five coded frames with a B-frame, one before an edit; and three packets of sound."""
    video = Track(
        kind="video", codec="h264", config=b"\1\2\3", time_base=(1, 12800),
        parameters={"colorspace": "1", "codec_tag": "875967048"},
        columns=TrackColumns(
            pts=np.array([0, 1024, 512, 1536, 2048]),
            duration=np.array([512, 512, 512, 512, 700]),
            size=np.array([70_000, 300, 40, 300, 65_536]),
            offset=np.array([48, 70_048, 70_348, 71_000, 71_300]),
            key=np.array([True, False, False, False, True]),
            shown=np.array([False, True, True, True, True]),
        ),
        height=480, width=854, rotation=90,
        checksums=np.array([1, 0xFFFFFFFF], np.uint32),
    )  # fmt: skip
    sound = Track(
        kind="audio", codec="mp3", config=b"", time_base=(1, 44100),
        columns=TrackColumns(
            pts=np.array([-1105, 47, 1199]),
            duration=np.array([1152, 1152, 1152]),
            size=np.array([417, 418, 418]),
            offset=np.array([-1, -1, -1]),
            key=np.ones(3, bool),
            shown=np.ones(3, bool),
        ),
        rate=44100, num_channels=2, origin=0, lead=1105, length=2351,
    )  # fmt: skip
    return MediaIndex(200_000, (video, sound))


def test_a_stored_index_of_version_2_is_read():
    found, expected = index_from_bytes(base64.b64decode(INDEX)), index()
    assert found.num_bytes == expected.num_bytes
    assert len(found.tracks) == len(expected.tracks)
    for mine, theirs in zip(found.tracks, expected.tracks, strict=True):
        for part, its in ((mine, theirs), (mine.columns, theirs.columns)):
            for each in fields(part):
                one, other = getattr(part, each.name), getattr(its, each.name)
                if isinstance(other, np.ndarray):
                    np.testing.assert_array_equal(one, other)
                elif each.name != "columns":
                    assert one == other, each.name


def test_a_stored_index_of_version_1_is_refused_with_the_command_that_makes_it_again():
    """It lacks what the container tells the decoder."""
    with pytest.raises(DataError, match="shardwise index --media --force"):
        index_from_bytes(b"SWM\1" + base64.b64decode(INDEX)[4:])


def test_an_index_names_no_other_options_of_decoders():
    track = replace(index().tracks[0], parameters={"threads": "1000"})
    with pytest.raises(DataError, match="threads"):
        index_from_bytes(index_to_bytes(MediaIndex(1, (track,))))


def test_a_sidecar_of_version_2_has_these_bytes():
    data = encode_sidecar(HEADER, BLOCKS)
    assert data == base64.b64decode(SIDECAR)
    sidecar = MediaSidecar(lambda start, stop: data[start:stop], path="v.tar.media")
    assert sidecar.header == HEADER
    blocks = [sidecar.block(row, field) for row in range(2) for field in HEADER.fields]
    assert blocks == BLOCKS


def test_a_sidecar_of_version_1_is_refused_with_the_command_that_makes_it_again():
    data = b"shardwise-media\1" + bytes(100)
    with pytest.raises(sw.DataError, match="make it again with `shardwise index --media`"):
        MediaSidecar(lambda start, stop: data[start:stop], path="v.tar.media")
