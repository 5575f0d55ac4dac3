"""The sidecar of a shard, `<shard>.media`: the media index of each sample after a table.

    columns   `column_file`: the shard's size, its samples, the fields; and `ends`, the end of each
              block after the columns
    blocks    a stored media index (see `files.index_format`), none where the sample lacks the
              field; or "!" and a message in UTF-8, for a file that can't be used

A reader takes the columns once, and then a block per sample. A block has its own checksum.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.index_format import BAD, index_from_bytes
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.sources.manifest import narrow
from shardwise.storage.column_file import (
    MALFORMED,
    ColumnFileError,
    encode_columns,
    read_columns,
    require_format,
)

_FORMAT, _VERSION = "shardwise-media", "2"


def sidecar_path(index_path: str) -> str:
    """The path of a sidecar: beside the shard's index, with another ending.

    Examples:
        >>> sidecar_path("a/b.tar.swi"), sidecar_path("http://x/b.tar.swi?version=3")
        ('a/b.tar.media', 'http://x/b.tar.media?version=3')
    """
    head, _, tail = index_path.rpartition(".swi")
    return f"{head}.media{tail}"


@dataclass(frozen=True)
class SidecarHeader:
    """The record of a shard in its sidecar.

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
    ends = np.cumsum([len(block) for block in blocks], dtype=np.uint64)
    metadata = {"format": _FORMAT, "version": _VERSION, **vars(header)}
    return b"".join([encode_columns(metadata, {"ends": narrow(ends)}), *blocks])


class MediaSidecar:
    """A sidecar that is read: header and table at once, a block when it is requested.

    `read(start, stop)` gives bytes of the sidecar; `path` is for messages.

    Attributes:
        header: the record of its shard.
        identity: bytes that are others for another shard, or other media in it.
    """

    def __init__(self, read: Callable[[int, int], bytes], *, path: str) -> None:
        self._read = read
        self._path = path
        try:
            metadata, columns, begin = read_columns(read)
            require_format(metadata, _FORMAT, _VERSION)
            self.header = SidecarHeader(
                int(metadata["num_bytes"]),
                int(metadata["num_samples"]),
                tuple(map(str, json.loads(metadata["fields"]))),
                int(metadata["layout"]),
            )
            ends = columns["ends"].astype(np.int64)
            count = self.header.num_samples * len(self.header.fields)
            if len(ends) != count or (np.diff(ends, prepend=0) < 0).any():
                raise ValueError(f"{len(ends)} blocks for {count} files")
        except ColumnFileError as error:
            raise self._unusable(str(error)) from error
        except MALFORMED as error:
            raise self._unusable(f"its header can't be read ({error})") from error
        self._bounds = np.append(begin, begin + ends)
        self.identity = sha256(repr(self.header).encode() + self._bounds.tobytes()).digest()

    def block(self, row: int, field: str) -> bytes:
        """The stored index of one sample; empty where it lacks the field."""
        at = row * len(self.header.fields) + self.header.fields.index(field)
        return self._read(int(self._bounds[at]), int(self._bounds[at + 1]))

    def index(self, row: int, field: str) -> MediaIndex | None:
        """The media index of one sample; None where it lacks the field."""
        block = self.block(row, field)
        if not block:
            return None
        try:
            return index_from_bytes(block)
        except DataError as error:
            if block.startswith(BAD):
                raise
            raise self._unusable(error.reason) from error

    def _unusable(self, reason: str) -> DataError:
        return DataError(
            f"the media sidecar can't be used: {reason}; make it again with "
            "`shardwise index --media`",
            url=self._path,
        )
