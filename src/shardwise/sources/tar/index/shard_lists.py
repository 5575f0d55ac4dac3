"""Shard lists in JSON that other tools write, so that a dataset can be opened by them.

Their content shows which tool wrote them:

- wids 1: `{"wids_version": 1, "shardlist": [{"url": ..., "nsamples": ..., "filesize": ...}]}`;
- open_clip's `sizes.json`: `{"00000.tar": 1000, ...}`;
- timm's `_info.json` or `info.json`: `{"splits": {"train": {"filenames": [...],
  "shard_lengths": [...], "num_samples": ...}}}`.

These files are not trusted: a count is a claim that `check_counts` compares with the shard itself,
and a name can't lead out of the list's directory by `..` or `~`. Absolute paths are taken from wids
lists only, whose `url` is a path by definition; the other two hold names beside the list. A remote
list can't name files of this machine. Commands (`pipe:`) are refused in all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.sources.manifest import Shard
from shardwise.storage import StorageOptions, is_local, local_path, read_whole
from shardwise.storage.urls import scheme_of

_WIDS_KIND = "wids-shard-index-v1"
_TAR_NAME = re.compile(r".*\.(tar|tar\.\w+|tgz)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ListedShard:
    """A shard as a list states it: its path or URL, and its counts, None where it has none."""

    url: str
    num_samples: int | None
    num_bytes: int | None


def is_shard_list(url: str) -> bool:
    """Whether a URL names a shard list: `*.json`, or `*.json#split` for one split of timm's."""
    return _split_fragment(url)[0].endswith(".json")


def read_shard_list(url: str, *, options: StorageOptions | None = None) -> list[ListedShard]:
    """Read the shards that a JSON file of wids, open_clip or timm ("info.json#split") lists."""
    path, split = _split_fragment(url)
    path = local_path(path) if is_local(path) else path
    listed = _parse(_read_json(path, options), path, split)
    if not listed:
        raise DataError("the shard list is empty", url=path)
    return listed


def check_counts(listed: Sequence[ListedShard], actual: Sequence[Shard]) -> None:
    """Compare a list's counts with the shards themselves, one by one in order."""
    for claim, shard in zip(listed, actual, strict=True):
        for what, stated, actual_count in (
            ("samples", claim.num_samples, shard.num_samples),
            ("bytes", claim.num_bytes, shard.num_bytes),
        ):
            if stated not in (None, actual_count):
                raise DataError(
                    f"the shard list says {stated} {what}, the shard has {actual_count}: it was "
                    "changed or cut after the list was made, or the list is wrong; make the list "
                    "anew, or name the shards without it",
                    url=shard.url,
                )


def _split_fragment(url: str) -> tuple[str, str | None]:
    """Split `info.json#train`; a '#' elsewhere belongs to the name."""
    path, mark, fragment = url.rpartition("#")
    if mark and path.endswith(".json") and "/" not in fragment and "." not in fragment:
        return path, fragment
    return url, None


def _read_json(path: str, options: StorageOptions | None) -> Any:
    data = read_whole(path, options=options, once=True)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not a JSON file: {error}", url=path) from error


def _parse(content: Any, path: str, split: str | None) -> list[ListedShard]:
    """Recognise the tool by its keys, and read its list."""
    if isinstance(content, dict):
        if "splits" in content:
            return _parse_timm(content["splits"], path, split)
        if split is not None:
            raise ValueError(f"split={split!r}: the shard list {shown(path)!r} has no splits")
        if {"__kind__", "wids_version", "shardlist"} & content.keys():
            return _parse_wids(content, path)
        if content and all(_TAR_NAME.fullmatch(name) for name in content):
            return [
                ListedShard(_beside(path, name), _count(count, name, path), None)
                for name, count in content.items()
            ]
    raise DataError(
        "not a shard list: neither of wids ('shardlist'), nor of open_clip (tar names with "
        "counts), nor of timm ('splits')",
        url=path,
    )


def _parse_wids(content: dict[str, Any], path: str) -> list[ListedShard]:
    kind = content.get("__kind__", _WIDS_KIND)
    version = content.get("wids_version", 1)
    if kind != _WIDS_KIND or version != 1:
        raise DataError(
            f"a wids list of kind {kind!r}, version {version!r}; {_WIDS_KIND!r}, version 1 is read",
            url=path,
        )
    shards = list(_expect(content.get("shardlist", []), list, "shardlist", path))
    for part in _expect(content.get("datasets", []), list, "datasets", path):
        part = _expect(part, dict, "an entry of datasets", path)
        if "shardlist" not in part:
            raise DataError(
                f"the list refers to another list, {part.get('source_url')!r}: give that one",
                url=path,
            )
        shards += _expect(part["shardlist"], list, "shardlist", path)
    listed = []
    for number, shard in enumerate(shards):
        name = f"shard {number}"
        shard = _expect(shard, dict, name, path)
        url = _expect(shard.get("url"), str, f"the url of {name}", path)
        num_samples = shard.get("nsamples")
        num_bytes = shard.get("filesize")
        listed.append(
            ListedShard(
                place_of(url, path),
                None if num_samples is None else _count(num_samples, url, path),
                None if num_bytes is None else _count(num_bytes, url, path),
            )
        )
    return listed


def _parse_timm(splits: Any, path: str, split: str | None) -> list[ListedShard]:
    splits = _expect(splits, dict, "splits", path)
    names = ", ".join(map(repr, splits))
    if split is None and len(splits) != 1:
        raise ValueError(
            f"{shown(path)!r} has the splits {names}: name one, as in 'info.json#train'"
        )
    if split is not None and split not in splits:
        raise ValueError(f"split={split!r}: {shown(path)!r} has the splits {names}")
    name = next(iter(splits)) if split is None else split
    info = _expect(splits[name], dict, f"the split {name!r}", path)
    files = _expect(info.get("filenames"), list, f"filenames of the split {name!r}", path)
    lengths = _expect(info.get("shard_lengths"), list, f"shard_lengths of the split {name!r}", path)
    if len(files) != len(lengths):
        raise DataError(
            f"the split {name!r} has {len(files)} filenames and {len(lengths)} shard_lengths",
            url=path,
        )
    listed = []
    for file, length in zip(files, lengths, strict=True):
        file = _expect(file, str, f"a filename of the split {name!r}", path)
        listed.append(ListedShard(_beside(path, file), _count(length, file, path), None))
    total = sum(shard.num_samples or 0 for shard in listed)
    if "num_samples" in info and _count(info["num_samples"], name, path) != total:
        raise DataError(
            f"the split {name!r} has num_samples {info['num_samples']}, its shard_lengths sum up "
            f"to {total}",
            url=path,
        )
    return listed


def _expect(value: Any, kind: type, what: str, path: str) -> Any:
    if not isinstance(value, kind):
        raise DataError(f"{what} must be a {kind.__name__}, not {value!r:.80}", url=path)
    return value


def _count(value: Any, name: str, path: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise DataError(
            f"the count of {name!r} must be a whole number, not {value!r:.80}", url=path
        )
    return value


def _beside(path: str, name: str) -> str:
    if name.startswith("/") or scheme_of(name):
        raise DataError(f"the name {name!r} must be relative to the list's directory", url=path)
    return place_of(name, path)


def place_of(url: str, path: str) -> str:
    """The location of a shard in the list at `path`: relative to the list, absolute, or a URL."""
    scheme = scheme_of(url)
    if not url or scheme == "pipe" or "\0" in url:
        raise DataError(f"the name {url!r} is no file's: commands are not run", url=path)
    try:
        os.fsencode(url)
    except UnicodeEncodeError:
        raise DataError(
            f"the name {url!r} holds a lone surrogate: no file has such a name", url=path
        ) from None
    if scheme not in ("", "file"):
        return url
    name = local_path(url) if scheme else url
    if not is_local(path) and (scheme or name.startswith("/")):
        raise DataError(
            f"a remote list names {url!r}, a file of this machine: such names are refused", url=path
        )
    if ".." in name.split("/") or name.startswith("~"):
        raise DataError(
            f"the name {url!r} leads out of the list's directory by '..' or '~'", url=path
        )
    return name if name.startswith("/") else path[: path.rfind("/") + 1] + name
