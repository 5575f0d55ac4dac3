"""Listings of stores: the files of a remote directory, and those that match a glob.

Keeps a part of I6: a pattern without a match is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwise.base.errors import MissingShardError
from shardwise.storage.open import remote_storage
from shardwise.storage.options import StorageOptions

MAGIC = re.compile(r"[*?\[]")
INDEX = ".swi"
WEB = ("http://", "https://")


def is_remote_pattern(url: str) -> bool:
    """Whether a remote URL, without braces, names more than one file: a directory or a glob.

    >>> is_remote_pattern("s3://bucket/train/"), is_remote_pattern("https://host/a.tar?key=*")
    (True, False)
    """
    _, slashes, rest = url.partition("://")
    if not slashes:
        # A command (`pipe:`), which only the WebDataset API opens.
        return False
    path = rest.partition("/")[2]
    if url.lower().startswith(WEB) and "?" in path:
        # A query is not part of the name.
        path = path.partition("?")[0]
        return bool(MAGIC.search(path))
    return not path or path.endswith("/") or bool(MAGIC.search(path))


def list_remote(
    url: str, *, suffixes: tuple[str, ...], ignored: str | tuple[str, ...], options: StorageOptions
) -> list[str]:
    """The URLs that a remote directory or a glob stands for, sorted by name; see `expand`.

    With an index suffix among `suffixes`, a glob also matches the indexes of its matches.
    """
    return remote_storage(url).list_files(url, suffixes=suffixes, ignored=ignored, options=options)


def shards_among(names: Sequence[str], url: str, suffixes: tuple[str, ...]) -> list[str]:
    """The names in the directory at `url` that end in one of `suffixes`, hidden ones left out."""
    matches = [name for name in names if name.endswith(suffixes) and not name.startswith(".")]
    if matches:
        return matches
    patterns = ", ".join(f"*{suffix}" for suffix in suffixes if not suffix.endswith(INDEX))
    examples = f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"
    if "index.json" in names:
        raise MissingShardError(
            f"no {patterns} in the directory, which has an index.json (it holds {examples}): "
            "sw.mds reads that of MosaicML Streaming, sw.litdata and sw.tokens those of LitData",
            url=url,
        )
    raise MissingShardError(
        f"no {patterns} in the directory ({f'it holds {examples}' if names else 'it is empty'}); "
        f"subdirectories are not searched: give a glob such as 'DIR/**/*{suffixes[0]}' for them",
        url=url,
    )
