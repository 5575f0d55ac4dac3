"""The media sidecar as the core sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shardwise.extensions.media.tar.access import TarMedia, TarPictures
from shardwise.extensions.media.tar.build import (
    build_sidecar,
    publish_sidecar,
    require_media_field,
    sample_blocks,
)
from shardwise.extensions.media.tar.check import media_problems

if TYPE_CHECKING:
    from shardwise.sources.tar.index.index_store import IndexStore
    from shardwise.sources.tar.read.shards import ShardSet
    from shardwise.storage import FilePool


class MediaSidecar:
    """The locations of frames of videos and sound; see `shardwise.sources.tar.sidecar.Sidecar`."""

    encode_sample = staticmethod(sample_blocks)
    publish = staticmethod(publish_sidecar)
    build = staticmethod(build_sidecar)
    find_problems = staticmethod(media_problems)

    def open_files(
        self, field: str, shards: Callable[[], ShardSet], *, store: IndexStore, pool: FilePool
    ) -> TarMedia | TarPictures:
        if "%" in field:
            return TarPictures(shards, pool=pool, field=field)
        require_media_field(field)
        return TarMedia(shards, store=store, pool=pool, field=field)


MEDIA = MediaSidecar()
