"""wids' indexes in JSON: read, put together, made absolute.

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": ..., "base": ...,
     "shardlist": [{"url": "000.tar", "nsamples": 1000, "filesize": ..., "md5sum": ...}],
     "datasets": [{"source_url": "other.json"}, {"shardlist": [...], "base": ..., "name": ...}]}

A shard's URL is taken from, in this order: `base=` of the call, the index's own "base", the
directory of the index. These files come from elsewhere: what they say is held against the shards
when these are opened.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from contextlib import nullcontext
from typing import IO, Any, cast
from urllib.parse import urlsplit, urlunsplit

from shardwise.base.errors import DataError
from shardwise.compat.wids.gone import finder
from shardwise.extensions.remote.streams import open_stream
from shardwise.storage.urls import scheme_of

__getattr__ = finder(__name__)

KIND = "wids-shard-index-v1"


def urldir(url: str) -> str:
    """The directory of a path or URL, without a trailing slash; "" for a bare name.

    >>> urldir("https://host/data/index.json?v=2"), urldir("index.json")
    ('https://host/data', '')
    """
    if not scheme_of(url):
        return posixpath.dirname(url)
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, posixpath.dirname(parts.path), "", ""))


def urlmerge(base: str, url: str) -> str:
    """The path or URL of a shard that is named relative to `base`.

    A whole URL stays, an absolute path keeps the host of `base`, anything else lies under it.

    >>> urlmerge("s3://bucket/data", "train/000.tar"), urlmerge("data", "/mnt/000.tar")
    ('s3://bucket/data/train/000.tar', '/mnt/000.tar')
    """
    if scheme_of(url):
        return url
    if not scheme_of(base):
        return posixpath.normpath(posixpath.join(base, url))
    parts = urlsplit(base)
    rest = urlsplit(url)
    path = posixpath.normpath(posixpath.join(parts.path or "/", rest.path))
    return urlunsplit((parts.scheme, parts.netloc, path, rest.query, ""))


def check_shards(shards: Any) -> list[dict[str, Any]]:
    if not isinstance(shards, list):
        raise DataError(f"a list of shards must be a list, not {shards!r:.80}")
    for number, shard in enumerate(shards):
        if not isinstance(shard, dict) or not isinstance(shard.get("url"), str):
            raise DataError(f"shard {number} must be a dict with a 'url', not {shard!r:.80}")
        count = shard.get("nsamples")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 2**63:
            raise DataError(
                f"shard {number}, {shard['url']!r}: 'nsamples' must be a whole number, not "
                f"{count!r}"
            )
    return cast(list[dict[str, Any]], shards)


def load_remote_dsdesc_raw(source: str | IO[Any]) -> dict[str, Any]:
    url = source if isinstance(source, str) else getattr(source, "name", None)
    # A stream works in forked processes, too.
    with open_stream(source) if isinstance(source, str) else nullcontext(source) as stream:
        text = stream.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not a JSON file: {error}", url=url) from error
    if not isinstance(content, dict):
        raise DataError(f"an index is a JSON object, not {content!r:.80}", url=url)
    return content


def rebase_shardlist(shardlist: list[dict[str, Any]], base: str | None) -> list[dict[str, Any]]:
    if base is None:
        return [dict(shard) for shard in shardlist]
    return [{**shard, "url": urlmerge(base, shard["url"])} for shard in shardlist]


def resolve_dsdesc(
    dsdesc: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
    base: str | None = None,
    directory: str | None = None,
) -> dict[str, Any]:
    """An index whose "shardlist" names all shards, also those of the indexes that it refers to."""
    index = {**dsdesc, **(options or {})}
    if index.get("wids_version") != 1:
        raise DataError(f"wids_version is {index.get('wids_version')!r}: version 1 is read")
    root = base if base is not None else index.get("base") or directory
    own = {"weight": index.get("weight"), "name": index.get("name")}
    shards = _part(index.get("shardlist", []), root, own)
    for component in index.get("datasets", []):
        source_url = component.get("source_url")
        more = {"weight": component.get("weight"), "source_url": source_url}
        under = component.get("base") or root
        if source_url is not None:
            source_url = more["source_url"] = urlmerge(root, source_url) if root else source_url
            component = load_remote_dsdesc_raw(source_url)
            under = component.get("base") or urldir(source_url)
            if any("source_url" in part for part in component.get("datasets", [])):
                raise DataError("it refers to an index that refers to others", url=source_url)
        more["dataset"] = component.get("name")
        shards += _part(component.get("shardlist"), under, more)
    if not shards:
        raise DataError("the index names no shards")
    return {**index, "shardlist": shards}


def _part(shardlist: Any, base: str | None, more: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [without_none(more) | shard for shard in rebase_shardlist(check_shards(shardlist), base)]


def without_none(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value is not None}


def load_dsdesc_and_resolve(
    source: str | IO[Any], *, options: Mapping[str, Any] | None = None, base: str | None = None
) -> dict[str, Any]:
    """Read an index and resolve it; relative shards lie beside it unless a base is given."""
    directory = urldir(source) if isinstance(source, str) else None
    return resolve_dsdesc(
        load_remote_dsdesc_raw(source), options=options, base=base, directory=directory
    )
