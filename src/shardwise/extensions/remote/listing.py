"""Listings of stores: the keys of a directory, and those that match a glob."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.base.process_group import made_once
from shardwise.extensions.remote.remote_file import RemoteFile
from shardwise.extensions.remote.stores.connect import location_of, url_of
from shardwise.storage.listing import INDEX, MAGIC, WEB, shards_among
from shardwise.storage.options import StorageOptions


def list_files(
    url: str, *, suffixes: tuple[str, ...], ignored: str | tuple[str, ...], options: StorageOptions
) -> list[str]:
    """List the URLs that a directory or a glob stands for; see `shardwise.storage.listing`.

    The ranks of a process group list once.
    """
    if url.lower().startswith(WEB):
        raise StorageError(
            f"can't list {url!r}: web servers have no listing that programs can rely on; name the "
            "files by a brace pattern, such as https://HOST/train-{000..123}.tar"
        )

    def make() -> bytes:
        return json.dumps(_list(url, suffixes, ignored, options)).encode()

    names: list[str] = json.loads(made_once(f"shardwise/list {url} {suffixes} {ignored}", make))
    return names


def _list(
    url: str, suffixes: tuple[str, ...], ignored: str | tuple[str, ...], options: StorageOptions
) -> list[str]:
    location = location_of(url)
    key = location.key
    if key.endswith("/") or not key:
        names = [name[len(key) :] for name in _keys(url, key, options, delimiter=True)]
        matches = [key + name for name in shards_among(names, url, suffixes)]
    else:
        start = MAGIC.split(key, maxsplit=1)[0]
        is_flat = "/" not in key[len(start) :]
        patterns = [key.split("/")]
        if any(suffix.endswith(INDEX) for suffix in suffixes):
            patterns.append(f"{key}{INDEX}".split("/"))
        matches = [
            name
            for name in _keys(url, start, options, delimiter=is_flat)
            if name == key
            or (
                not name.endswith(ignored)
                and any(_matches(name.split("/"), parts) for parts in patterns)
            )
        ]
        if not matches:
            raise MissingShardError("no file in the store matches the pattern", url=url)
    return [url_of(location, name) for name in sorted(matches)]


def _keys(url: str, prefix: str, options: StorageOptions, *, delimiter: bool) -> list[str]:
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
