"""Listings of stores: the files of a remote directory, and those that match a glob.

Keeps a part of I6: a pattern without a match is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.storage.options import StorageOptions

_MAGIC = re.compile(r"[*?\[]")
_WEB = ("http://", "https://")


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
    if url.lower().startswith(_WEB) and "?" in path:
        # A query is no part of the name.
        path = path.partition("?")[0]
        return bool(_MAGIC.search(path))
    return not path or path.endswith("/") or bool(_MAGIC.search(path))


def list_remote(
    url: str, *, suffixes: tuple[str, ...], ignored: str | tuple[str, ...], options: StorageOptions
) -> list[str]:
    """The URLs that a remote directory or a glob stands for, sorted by name.

    - `*`, `?` and `[...]` match within one name, `**` any number of directories; hidden files are
      left out, and so are those that end in `ignored`.
    - A directory, written with a slash at its end, stands for the files in it that end in one of
      `suffixes`.
    - A pattern that is the name of a file is that file.

    Raises:
        MissingShardError: no file matches.
        StorageError: the store can't be listed.
    """
    if url.lower().startswith(_WEB):
        raise StorageError(
            f"can't list {url!r}: web servers have no listing that programs can rely on; name the "
            "files by a brace pattern, such as https://HOST/train-{000..123}.tar"
        )
    # Not for local data: it imports asyncio and HTTP.
    from shardwise.storage.stores.connect import location_of, url_of

    location = location_of(url)
    key = location.key
    if key.endswith("/") or not key:
        names = [name[len(key) :] for name in _keys(url, key, options, delimiter=True)]
        matches = [key + name for name in shards_among(names, url, suffixes)]
    else:
        start = _MAGIC.split(key, maxsplit=1)[0]
        is_flat = "/" not in key[len(start) :]
        parts = key.split("/")
        matches = [
            name
            for name in _keys(url, start, options, delimiter=is_flat)
            if name == key or (_matches(name.split("/"), parts) and not name.endswith(ignored))
        ]
        if not matches:
            raise MissingShardError("no file in the store matches the pattern", url=url)
    return [url_of(location, name) for name in sorted(matches)]


def shards_among(names: Sequence[str], url: str, suffixes: tuple[str, ...]) -> list[str]:
    """The names in the directory at `url` that end in one of `suffixes`, hidden ones left out.

    Raises:
        MissingShardError: there is none.
    """
    matches = [name for name in names if name.endswith(suffixes) and not name.startswith(".")]
    if matches:
        return matches
    patterns = ", ".join(f"*{suffix}" for suffix in suffixes)
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


def _keys(url: str, prefix: str, options: StorageOptions, *, delimiter: bool) -> list[str]:
    from shardwise.storage.remote import RemoteFile

    file = RemoteFile(url, options)
    return [name for name in file.names(prefix, delimiter=delimiter) if not name.endswith("/")]


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a key matches a glob, both cut at the slashes."""
    if not parts:
        return not names
    first, others = parts[0], parts[1:]
    if first == "**":
        if not others:
            return bool(names) and not any(name.startswith(".") for name in names)
        # No directory, or one that is not hidden and any more.
        return _matches(names, others) or (
            len(names) > 1 and not names[0].startswith(".") and _matches(names[1:], parts)
        )
    if not names or (names[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatchcase(names[0], first) and _matches(names[1:], others)
