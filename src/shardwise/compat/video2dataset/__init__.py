"""The data loader of video2dataset 1.3.0 on this library's decoders, shards and ranks.

    from shardwise.compat.video2dataset.dataloader import get_video_dataset

Names, arguments and the keys of batches are video2dataset's. What is different is what it gets
wrong: see the page on moving from video2dataset. Its downloader is not part of this.
"""

from __future__ import annotations

from typing import Any

from shardwise.compat.finder import VERSIONS
from shardwise.compat.video2dataset.dataloader import get_video_dataset

__all__ = ["get_video_dataset"]

__version__ = VERSIONS["video2dataset"]


def __getattr__(name: str) -> Any:
    if name == "video2dataset":
        raise AttributeError(
            "the downloader video2dataset() is not part of shardwise.compat.video2dataset, only "
            "the data loader is: download in a program that does not call "
            "shardwise.compat.install()"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
