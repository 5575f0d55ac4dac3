"""A writer of one shard that also takes samples as they stand in other shards."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.sources.tar.write.stored import StoredRun
from shardwise.sources.tar.write.writer import TarWriter

__all__ = ["CopyingWriter"]


class CopyingWriter(TarWriter):
    """As `TarWriter`, for samples that are encoded already. Keys are the caller's to check."""

    def blocks_of(self, key: str, members: Sequence[tuple[str, bytes]]) -> dict[str, bytes] | None:
        """What the sidecar says of what `encode_sample` returned; None without a sidecar.

        Raises:
            DataError: a media file can't be used.
        """
        return self._blocks_of(key, members)

    def write_members(
        self, key: str, members: Sequence[tuple[str, bytes]], blocks: dict[str, bytes] | None
    ) -> None:
        """Write what `encode_sample` and `blocks_of` returned."""
        self._write_members(key, members, blocks)

    def write_stored(self, run: StoredRun) -> None:
        """Write the samples of a run, in the bytes that they have."""
        self._append(run.data, run.members, run.keys, run.fields)
