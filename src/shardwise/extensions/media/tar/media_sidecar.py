"""The media sidecar as the core sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from shardwise.base.errors import DataError
from shardwise.extensions.media.tar.access import TarMedia, TarPictures
from shardwise.extensions.media.tar.build import (
    build_sidecar,
    media_fields,
    publish_sidecar,
    require_media_field,
    sample_blocks,
)
from shardwise.sources.tar.index.shard_index import ShardIndex

if TYPE_CHECKING:
    from shardwise.sources.tar.check.problems import Problem
    from shardwise.sources.tar.index.index_store import IndexStore
    from shardwise.sources.tar.read.shards import ShardSet
    from shardwise.storage import FilePool


class MediaSidecar:
    """Where the frames of videos and sound lie."""

    def encode_sample(self, key: str, members: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
        """Index the media files of a sample."""
        return sample_blocks(key, members)

    def publish(
        self,
        url: str,
        index: ShardIndex,
        samples: Sequence[Mapping[str, bytes]],
        *,
        store: IndexStore,
    ) -> str | None:
        """Write the sidecar beside the shard's index."""
        fields = media_fields(index)
        blocks = [sample.get(name, b"") for sample in samples for name in fields]
        return publish_sidecar(url, index, blocks, store=store)

    def build(self, url: str, *, store: IndexStore) -> tuple[str | None, list[DataError]]:
        """Index the media files of a shard."""
        return build_sidecar(url, store=store)

    def find_problems(self, url: str, *, store: IndexStore) -> Iterator[Problem]:
        """Compare media files with their checksums, and decode them."""
        from shardwise.extensions.media.tar.check import media_problems

        return media_problems(url, store=store)

    def open_files(
        self, field: str, shards: Callable[[], ShardSet], *, store: IndexStore, pool: FilePool
    ) -> TarMedia | TarPictures:
        """Open the media files of a field, or its numbered pictures."""
        if "%" in field:
            return TarPictures(shards, pool=pool, pattern=field)
        require_media_field(field)
        return TarMedia(shards, store=store, pool=pool, field=field)


MEDIA = MediaSidecar()
