"""The stored form of a media index: a header and deflated columns, 2 to 3 bytes per frame.

    4 bytes  "SWM" and the version, 2
    4 bytes  CRC-32 of all that follows
    4 bytes  length of the header, little-endian
    header   deflated: 4 bytes of length, JSON (the file, its tracks, the form of each column), and
             the codecs' configurations; `_DICTIONARY` saves the names
    columns  deflated one by one

A column is stored as differences from what the neighbours let expect, folded to unsigned numbers of
the smallest width; first all low bytes, then all second ones: sizes have little else in common.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, message_of
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.container_facts import PARAMETERS
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS
from shardwise.extensions.media.files.media_index import MediaIndex, index_media, with_checksums
from shardwise.extensions.media.files.track import Track, TrackColumns

_MAGIC = b"SWM\2"
_PLAIN = (
    "kind", "codec", "height", "width", "rotation", "rate", "num_channels", "origin", "lead",
    "length",
)  # fmt: skip
# Text that headers have in common. Another text is another version of the format.
_DICTIONARY = (
    b"\1d\0\x1f\xff\xe1\0"
    b'{"num_bytes":1,"tracks":[{"kind":"audio","codec":"aac","kind":"video","codec":"h264",'
    b'"height":480,"width":854,"rotation":0,"rate":0,"num_channels":0,"origin":0,"lead":0,'
    b'"length":0,"time_base":[1,15360],"parameters":{"codec_tag":"828601953","color_range":"1",'
    b'"color_primaries":"1","color_trc":"1","colorspace":"1"},"config":40,"num_coded":300,'
    b'"columns":{"delay":[2,30],"duration":[2,16],"size":[2,600],"gap":[2,16],"flags":[1,16]},'
    b'"num_checksums":null}]}'
)
_MAX_HEADER_BYTES = 16 << 20
# A file that can't be used has the reason in place of its index.
BAD = b"!"


def media_block(data: bytes | memoryview) -> bytes:
    """The stored index of one media file, with checksums."""
    reader = BytesReader(data)
    index = index_media(reader)
    if not any(track.num_frames for track in index.tracks):
        raise DataError("the file has neither pictures nor sound")
    return index_to_bytes(with_checksums(index, reader))


def bad_block(reason: str) -> bytes:
    """The block of a file that can't be used."""
    return BAD + reason.encode("utf-8", "replace")


def index_to_bytes(index: MediaIndex) -> bytes:
    """The index as bytes: equal indexes give equal bytes.

    Examples:
        >>> len(index_to_bytes(MediaIndex(0, ())))
        35
    """
    header: dict[str, Any] = {"num_bytes": index.num_bytes, "tracks": []}
    body = blobs = b""
    for track in index.tracks:
        described: dict[str, Any] = {name: getattr(track, name) for name in _PLAIN}
        described["time_base"] = list(track.time_base)
        described["parameters"] = dict(track.parameters)
        described["config"] = len(track.config)
        blobs += track.config
        described["num_coded"] = len(track.columns.pts)
        described["columns"] = {}
        for name, values in _differences(track.columns).items():
            width, data = _pack_numbers(values)
            described["columns"][name] = [width, len(data)]
            body += data
        described["num_checksums"] = None if track.checksums is None else len(track.checksums)
        if track.checksums is not None:
            body += track.checksums.astype("<u4").tobytes()
        header["tracks"].append(described)
    deflater = zlib.compressobj(9, zdict=_DICTIONARY)
    plain = json.dumps(header, separators=(",", ":")).encode()
    text = deflater.compress(struct.pack("<I", len(plain)) + plain + blobs) + deflater.flush()
    rest = struct.pack("<I", len(text)) + text + body
    return _MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest


def index_from_bytes(data: bytes | memoryview) -> MediaIndex:
    """Decode an index; the reverse of `index_to_bytes`. DataError has the reason of a bad block."""
    data = bytes(data)
    if data[:1] == BAD:
        raise DataError(data[1:].decode("utf-8", "replace"))
    if data[:4] != _MAGIC:
        raise _unusable(f"it begins with {data[:4]!r}, not {_MAGIC!r}")
    if len(data) < 12 or struct.unpack_from("<I", data, 4)[0] != zlib.crc32(data[8:]):
        raise _unusable("its checksum does not hold")
    try:
        (length,) = struct.unpack_from("<I", data, 8)
        text = _inflate_part(data[12 : 12 + length], _MAX_HEADER_BYTES, _DICTIONARY)
        (plain,) = struct.unpack_from("<I", text)
        header = json.loads(text[4 : 4 + plain])
        at, tracks, blobs = 12 + length, [], io.BytesIO(text[4 + plain :])
        for described in header["tracks"]:
            track, at = _track(described, data, at, blobs)
            tracks.append(track)
        return MediaIndex(int(header["num_bytes"]), tuple(tracks))
    except DataError:
        raise
    except Exception as error:
        raise _unusable(message_of(error)) from error


def _track(described: dict[str, Any], data: bytes, at: int, blobs: io.BytesIO) -> tuple[Track, int]:
    count = int(described["num_coded"])
    DEFAULT_LIMITS.check_frames(count, "frames")
    columns = {}
    for name, (width, length) in described["columns"].items():
        columns[name] = _unpack_numbers(data[at : at + length], count, width)
        at += length
    checksums = None
    if described["num_checksums"] is not None:
        checksums = np.frombuffer(data, "<u4", described["num_checksums"], at).astype(np.uint32)
        at += checksums.nbytes
    numerator, denominator = map(int, described["time_base"])
    config = blobs.read(int(described["config"]))
    parameters = {str(name): str(value) for name, value in described["parameters"].items()}
    if not PARAMETERS.issuperset(parameters):
        raise ValueError(f"parameters {sorted(parameters)}")
    track = Track(
        **{name: described[name] for name in _PLAIN},
        config=config,
        parameters=parameters,
        time_base=(numerator, denominator),
        columns=_columns(columns),
        checksums=checksums,
    )
    return track, at


def _differences(columns: TrackColumns) -> dict[str, NDArray[np.int64]]:
    """Columns as differences from their neighbours: most numbers are 0."""
    duration, size = columns.duration, columns.size
    ends = np.cumsum(duration) - duration
    delays = columns.pts - ends  # of decoding before showing: few values in turn
    scattered = bool((columns.offset < 0).any())
    gaps = columns.offset - np.append(0, (columns.offset + size)[:-1])
    flags = columns.key.astype(np.int64) + 2 * columns.shown.astype(np.int64)
    return {
        "delay": np.diff(delays, prepend=0),
        "duration": np.diff(duration, prepend=0),
        "size": size,
        **({} if scattered else {"gap": gaps[: len(size)]}),
        "flags": flags,
    }


def _columns(values: dict[str, NDArray[np.int64]]) -> TrackColumns:
    duration, size = np.cumsum(values["duration"]), values["size"]
    pts = np.cumsum(values["delay"]) + np.cumsum(duration) - duration
    if "gap" in values:
        offset = np.cumsum(values["gap"] + size) - size
    else:
        offset = np.full(len(size), -1, np.int64)
    flags = values["flags"]
    return TrackColumns(pts, duration, size, offset, (flags & 1) > 0, (flags & 2) > 0)


def _pack_numbers(values: NDArray[np.int64]) -> tuple[int, bytes]:
    """Bytes per number, and the deflated byte planes."""
    folded = ((values << 1) ^ (values >> 63)).view(np.uint64)
    top = int(folded.max(initial=0))
    width = max(1, (top.bit_length() + 7) // 8)
    planes = folded.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    return width, zlib.compress(np.ascontiguousarray(planes.T).tobytes(), 9)


def _unpack_numbers(data: bytes, count: int, width: int) -> NDArray[np.int64]:
    if not 1 <= width <= 8:
        raise ValueError(f"a column of {width} bytes a number")
    planes = np.frombuffer(_inflate_part(data, count * width), np.uint8)
    wide = np.zeros((count, 8), np.uint8)
    wide[:, :width] = planes.reshape(width, count).T
    folded = wide.view("<u8").reshape(-1)
    half: NDArray[np.int64] = (folded >> np.uint64(1)).view(np.int64)
    return half ^ -(folded & np.uint64(1)).view(np.int64)


def _inflate_part(data: bytes, limit: int, dictionary: bytes = b"") -> bytes:
    """Inflate at most `limit` bytes: the length is known, and a bomb has more."""
    inflater = zlib.decompressobj(zdict=dictionary)
    text = inflater.decompress(data, limit + 1)
    if len(text) > limit or not inflater.eof:
        raise ValueError("a part is longer than it says, or is cut")
    return text


def _unusable(reason: str) -> DataError:
    return DataError(
        f"the media index can't be used: {reason}; make it again with "
        "`shardwise index --media --force`"
    )


assert {each.name for each in fields(Track)} == {
    *_PLAIN, "config", "parameters", "time_base", "columns", "checksums"
}  # fmt: skip
