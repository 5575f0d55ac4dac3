"""The positions of a TFRecord file's records: found by one scan, kept in a file beside it.

    record: length uint64 | masked CRC-32C of the length | data | masked CRC-32C of the data

The index file (`<file>.tfi`) is a `KeptIndex` with the records' lengths.

Source: RFC 3720 (CRC-32C, by google-crc32c: about 22 GB/s per core), and TensorFlow's mask of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google_crc32c import value
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.formats.records.scanned import Found, KeptIndex
from shardwise.sources.manifest import narrow
from shardwise.storage import File, FileStat
from shardwise.storage.known_formats import HEAD_BYTES, known_format

# Before the data of a record, and in all.
_HEAD_BYTES, FRAME_BYTES = 12, 16
_SCAN_BYTES, _HEADS_BYTES = 8 << 20, 4 << 10
# First bytes of files that TensorFlow compressed as a whole.
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def masked_crc32c(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The CRC-32C of each string, rotated and shifted as record files have it."""
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    crc = np.array([value(buffer[start:stop]) for start, stop in bounds], np.uint32)
    turned = crc >> np.uint32(15) | crc << np.uint32(17)
    return turned + np.uint32(0xA282EAD8)


def find_records(file: File, index_dir: str | None, known: Found | None = None) -> Found:
    """The records of a file, which is pinned: from an index that fits, else by a scan.

    Their places are the data's ends and lengths, int64 `[2, records]`.
    """
    stat = known.stat if known else file.stat()
    file.pin(stat)
    index = KeptIndex("tfrecord", ".tfi", file.url, stat, index_dir)
    records = _place_records(index.load().get("lengths"), stat)
    if records is None:
        records = known.places if known and known.places.size else _scan(file, stat.num_bytes)
        index.save({"lengths": narrow(records[1])})
    return Found(stat, None, records)


def _scan(file: File, num_bytes: int) -> NDArray[np.int64]:
    ends: list[int] = []
    lengths: list[int] = []
    heads = bytearray()
    at = first = 0
    window = b""
    # Shorter records are read along: that costs less than a read of each head.
    skip_bytes = (512 if file.is_remote else 64) << 10
    while at < num_bytes:
        if not first <= at <= first + len(window) - _HEAD_BYTES:
            # Long records are stepped over: only their heads are read.
            first = at
            is_short = sum(lengths[-8:]) <= 8 * skip_bytes
            window = file.read(at, min(_SCAN_BYTES if is_short else _HEADS_BYTES, num_bytes - at))
        head = window[at - first : at - first + _HEAD_BYTES]
        is_whole = len(head) == _HEAD_BYTES
        if at == 0 and is_whole and len(_wrong_heads(head)):
            raise _foreign(file, num_bytes)
        length = int.from_bytes(head[:8], "little")
        end = at + _HEAD_BYTES + length
        if end + 4 > num_bytes:
            if is_whole and len(_wrong_heads(head)):
                raise _make_damage_error(file.url, at)
            raise DataError(
                f"the file ends at byte {num_bytes}, in the middle of a record: was it cut?",
                url=file.url,
                offset=at,
            )
        heads += head
        ends.append(end)
        lengths.append(length)
        at = end + 4
    wrong = _wrong_heads(heads)
    if len(wrong):
        raise _make_damage_error(file.url, ends[wrong[0]] - lengths[wrong[0]] - _HEAD_BYTES)
    return np.array([ends, lengths], np.int64).reshape(2, len(ends))


def _wrong_heads(heads: bytes | bytearray) -> NDArray[np.int64]:
    """The numbers of the heads whose lengths have other checksums than theirs."""
    rows = np.frombuffer(heads, np.uint8).reshape(-1, _HEAD_BYTES)
    starts = np.arange(len(rows), dtype=np.int64) * _HEAD_BYTES
    found = masked_crc32c(rows.reshape(-1), starts, np.full(len(rows), 8, np.int64))
    stored = np.ascontiguousarray(rows[:, 8:]).view("<u4")[:, 0]
    return np.flatnonzero(found != stored)


def _foreign(file: File, num_bytes: int) -> DataError:
    head = file.read(0, min(num_bytes, HEAD_BYTES))
    found = known_format(head, num_bytes=num_bytes)
    if head.startswith(_ZLIB):
        found = "zlib: decompress it, so that each record can be read by itself"
    reason = f"but {found}" if found else "the checksum of its first length differs"
    return DataError(f"no TFRecord file, {reason}", url=file.url, offset=0)


def _make_damage_error(url: str, at: int) -> DataError:
    return DataError("the length of a record is damaged: its checksum differs", url=url, offset=at)


def _place_records(lengths: NDArray[Any] | None, stat: FileStat) -> NDArray[np.int64] | None:
    """Ends and lengths by the lengths of an index; None if they do not fill the file."""
    if lengths is None:
        return None
    lengths = lengths.astype(np.int64)
    if (lengths < 0).any() or (lengths > stat.num_bytes).any():
        return None
    # Records follow one another.
    ends = np.cumsum(lengths + FRAME_BYTES)
    return np.array([ends - 4, lengths]) if ends[-1:].sum() == stat.num_bytes else None
