"""The sidecar of a shard, `<shard>.media`: the media index of each sample behind a table.

    16 bytes  "shardwise-media" and the version, 1
    4 bytes   length of the header, little-endian
    4 bytes   CRC-32 of header and table
    header    JSON: the shard's size, its samples, the fields
    table     uint64 [samples * fields + 1], little-endian: where each block begins in the file
    blocks    a stored media index (see `media_files.index_format`), none where the sample lacks
              the field; or "!" and a message in UTF-8, for a file that can't be used

A reader takes the header and the table once, and then a block a sample. A block has a checksum of
its own.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.index_format import index_from_bytes
from shardwise.extensions.media.files.media_index import MediaIndex

_MAGIC = b"shardwise-media\1"
_FIXED = len(_MAGIC) + 8
_MAX_HEADER_BYTES = 1 << 20
_BAD = b"!"


def sidecar_path(index_path: str) -> str:
    """Where a sidecar lies: beside the shard's index, with another ending.

    Examples:
        >>> sidecar_path("a/b.tar.swi"), sidecar_path("http://x/b.tar.swi?version=3")
        ('a/b.tar.media', 'http://x/b.tar.media?version=3')
    """
    head, _, tail = index_path.rpartition(".swi")
    return f"{head}.media{tail}"


def bad_block(reason: str) -> bytes:
    """The block of a file that can't be used."""
    return _BAD + reason.encode("utf-8", "replace")


@dataclass(frozen=True)
class SidecarHeader:
    """What a sidecar says of its shard.

    `fields` are those that have media, in the order of the table; `layout` is a CRC-32 of where
    they lie: another shard of the same size has another one.
    """

    num_bytes: int
    num_samples: int
    fields: tuple[str, ...]
    layout: int


def encode_sidecar(header: SidecarHeader, blocks: Sequence[bytes]) -> bytes:
    """A sidecar's bytes; the blocks are by sample, and of each sample by field."""
    assert len(blocks) == header.num_samples * len(header.fields)
    text = json.dumps(vars(header), separators=(",", ":")).encode()
    begin = _FIXED + len(text) + 8 * (len(blocks) + 1)
    table = np.full(len(blocks) + 1, begin, "<u8")
    table[1:] += np.cumsum([len(block) for block in blocks], dtype=np.uint64)
    head = text + table.tobytes()
    fixed = _MAGIC + struct.pack("<II", len(text), zlib.crc32(head))
    return b"".join([fixed, head, *blocks])


class MediaSidecar:
    """A sidecar that is read: header and table at once, a block when it is asked for.

    `read(start, stop)` gives bytes of the sidecar; `path` is for messages.

    Attributes:
        header: what it says of its shard.
        identity: bytes that are others for another shard, or other media in it.

    Raises:
        DataError: it is damaged or of another version.
    """

    def __init__(self, read: Callable[[int, int], bytes], *, path: str) -> None:
        self._read = read
        self._path = path
        fixed = read(0, _FIXED)
        if len(fixed) < _FIXED or fixed[: len(_MAGIC)] != _MAGIC:
            raise self._unusable(f"it begins with {fixed[:16]!r}")
        length, digest = struct.unpack_from("<II", fixed, len(_MAGIC))
        if length > _MAX_HEADER_BYTES:
            raise self._unusable(f"its header says {length} bytes")
        text = read(_FIXED, _FIXED + length)
        try:
            described = json.loads(text)
            self.header = SidecarHeader(
                int(described["num_bytes"]),
                int(described["num_samples"]),
                tuple(map(str, described["fields"])),
                int(described["layout"]),
            )
            count = self.header.num_samples * len(self.header.fields) + 1
            table = read(_FIXED + length, _FIXED + length + 8 * count)
            self._table: NDArray[np.uint64] = np.frombuffer(table, "<u8", count)
        except Exception as error:
            raise self._unusable(f"its header can't be read ({error})") from error
        if zlib.crc32(text + table) != digest:
            raise self._unusable("its checksum does not hold")
        self.identity = fixed + text

    def block(self, row: int, field: str) -> bytes:
        """The stored index of one sample; empty where it lacks the field."""
        at = row * len(self.header.fields) + self.header.fields.index(field)
        return self._read(int(self._table[at]), int(self._table[at + 1]))

    def index(self, row: int, field: str) -> MediaIndex | None:
        """The media index of one sample; None where it lacks the field.

        Raises:
            DataError: the media file can't be used, or the block is damaged.
        """
        block = self.block(row, field)
        if not block:
            return None
        if block.startswith(_BAD):
            raise DataError(block[1:].decode("utf-8", "replace"), field=field)
        try:
            return index_from_bytes(block)
        except DataError as error:
            raise self._unusable(error.reason) from error

    def _unusable(self, reason: str) -> DataError:
        return DataError(
            f"the media sidecar can't be used: {reason}; make it again with "
            "`shardwise index --media`",
            url=self._path,
        )
