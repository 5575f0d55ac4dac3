"""URL patterns expanded to the URLs of files: braces, globs, directories and lists of them.

Keeps a part of I6: a pattern without a match, or a file named twice, is an error and never a
shorter or longer epoch. Lists local directories, and stores for remote patterns; opens no file.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from shardwise.base.arguments import path_text
from shardwise.base.errors import DataError, MissingShardError, StorageError
from shardwise.base.shown import shown, without_query
from shardwise.storage.listing import INDEX, is_remote_pattern, list_remote, shards_among
from shardwise.storage.local import in_directory
from shardwise.storage.missing import near_names
from shardwise.storage.options import StorageOptions
from shardwise.storage.urls import scheme_of, strip_file_scheme

# URLs are text: a Path would rewrite the user's text ("./a" as "a"), and is slower.
# ruff: noqa: PTH100, PTH109, PTH110, PTH111, PTH112, PTH116, PTH117, PTH118, PTH207, PTH208


# Index and manifest files lie beside their shards, so `data/*` would find them too.
_BESIDE_SHARDS = (INDEX, ".swm")
_JSON_LINES = (".jsonl", ".ndjson")
# Ten thousand plain names must not cost a `stat` on a network file system each.
_LOOKED_AT = 1000


def expand(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    suffixes: tuple[str, ...] = (".tar",),
    options: StorageOptions | None = None,
) -> list[str]:
    """Expand braces, globs and directories into the URLs of files, in order.

    A directory, a remote one with a slash at its end, stands for its files that end in one of
    `suffixes`. Matches are sorted by name; directories, hidden files, `.swi` and `.swm` are left
    out, unless a suffix ends so. A path that exists is that file, whatever pattern it could be; one
    that is named without a pattern need not exist yet.

    >>> expand("s3://bucket/train-{000..001}.tar")
    ['s3://bucket/train-000.tar', 's3://bucket/train-001.tar']
    """
    items: Any = [urls] if isinstance(urls, str | os.PathLike) else urls
    if isinstance(items, bytes) or not isinstance(items, Sequence):
        raise TypeError(f"urls must be a str, a path or a list of these, not {type(urls).__name__}")
    if not items:
        raise ValueError("no shards: urls is an empty list")
    expanded: list[str] = []
    is_listed = False
    for item in items:
        found, is_pattern = _expand_one(item, suffixes, options)
        expanded += found
        is_listed |= is_pattern
    refuse_repeats(expanded, by_file=is_listed or len(expanded) <= _LOOKED_AT)
    if ".jsonl" not in suffixes:
        for url in expanded:
            refuse_json_lines(url)
    return expanded


def refuse_json_lines(url: str) -> None:
    """Raise `DataError` if a name is that of JSON lines, which have their own opener."""
    name = without_query(url).lower().removesuffix(".gz").removesuffix(".zst")
    if name.endswith(_JSON_LINES):
        raise DataError("JSON lines by its name: sw.jsonl opens it", url=url)


def _expand_one(
    item: str | os.PathLike[str], suffixes: tuple[str, ...], options: StorageOptions | None
) -> tuple[list[str], bool]:
    """The files of an item, and whether local ones were listed."""
    text = path_text("each of urls", item)
    if not text:
        raise ValueError("a URL in urls is empty")
    if scheme_of(text) not in ("", "file"):
        names = expand_braces(text)
        return [url for name in names for url in _match_remote(name, suffixes, options)], False
    path = path_text("each of urls", os.path.expanduser(strip_file_scheme(text)))
    if not os.path.isabs(path):
        _require_current_directory(path)
    if os.path.exists(path):
        return (_list_directory(path, suffixes), True) if os.path.isdir(path) else ([path], False)
    names = expand_braces(path)
    found = [url for name in names for url in _match(name, suffixes)]
    return found, found != names


def _require_current_directory(path: str) -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise StorageError(
            f"the current directory was removed, and {path!r} is relative to it: change into one "
            "that exists, or give an absolute path"
        ) from None


def _match_remote(
    name: str, suffixes: tuple[str, ...], options: StorageOptions | None
) -> list[str]:
    if not is_remote_pattern(name):
        return [name]
    ignored, options = _list_ignored(name, *suffixes), options or StorageOptions()
    return list_remote(name, suffixes=suffixes, ignored=ignored, options=options)


def _list_ignored(*wanted: str) -> tuple[str, ...]:
    """The ends of names that a glob leaves out."""
    return tuple(end for end in _BESIDE_SHARDS if not any(w.endswith(end) for w in wanted))


def _match(name: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files of one name without braces: a glob, a directory or a file."""
    magic = glob.has_magic(name)
    if not magic and name.endswith(suffixes):
        return [name]
    if os.path.isdir(name):
        return _list_directory(name, suffixes)
    if not magic or os.path.exists(name):
        return [name]
    ignored = _list_ignored(name, *suffixes)
    has_indexes = any(suffix.endswith(INDEX) for suffix in suffixes)
    found = {*glob.glob(name, recursive=True)}
    found.update(glob.glob(name + INDEX, recursive=True) if has_indexes else ())
    matches = sorted(
        path for path in found if not path.endswith(ignored) and not os.path.isdir(path)
    )
    if not matches:
        raise MissingShardError(
            f"no file matches the pattern{in_directory(name)}{near_names(name)}", url=name
        )
    return matches


def _list_directory(path: str, suffixes: tuple[str, ...]) -> list[str]:
    names = shards_among(sorted(os.listdir(path)), path, suffixes)
    return [os.path.join(path, name) for name in names]


def refuse_repeats(urls: Iterable[str], *, by_file: bool = True, in_index: bool = False) -> None:
    """Refuse the same file twice: in two spellings, or `by_file` by a symbolic or a hard link.

    Remote names `in_index` are paths, so "a//b" is "a/b"; elsewhere they may be two keys.
    """
    seen: dict[str | tuple[int, int], str] = {}
    for url in urls:
        is_remote = scheme_of(url) not in ("", "file")
        if is_remote:
            path = posixpath.normpath(url) if in_index else re.sub(r"/(\./)+", "/", url)
        else:
            path = os.path.abspath(strip_file_scheme(url))
        names: list[str | tuple[int, int]] = [path]
        if by_file and not is_remote:
            # Opening a file that is not there reports the error.
            with suppress(OSError, ValueError):
                stat = os.stat(path)
                names.append((stat.st_dev, stat.st_ino))
        for name in names:
            if (other := seen.get(name)) is not None:
                other_name = "" if other == url else f", once as {shown(other)!r}"
                raise ValueError(
                    f"the shard {shown(url)!r} is named twice{other_name}: its samples would be "
                    "read twice an epoch; remove one of the names"
                )
        seen.update(dict.fromkeys(names, url))


# A guard against {0..999999999999}: more names than any dataset has shards.
MAX_NAMES = 10_000_000
_MAX_DEPTH = 50
# Escaped characters, and what stands for itself or opens and closes a group.
_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
_STEP_0 = re.compile(r"\{[^{},.]+\.\.[^{},.]+\.\.-?0+}")
# Beyond 64 bits bracex takes a range for a text.
_ENDLESS = re.compile(r"\{-?\d+\.\.-?\d{19,}")


def expand_braces(text: str) -> list[str]:
    r"""Expand a brace pattern into names, in the order that they are written.

    A number range keeps zero padding (`{08..10}` is 08, 09, 10), may count down and may have a
    step. Braces without a comma and a range, such as `{x}`, stay as they are, and so do escaped
    ones, `\{a,b\}`, without their backslashes.

    >>> expand_braces("part-{08..10}.tar")
    ['part-08.tar', 'part-09.tar', 'part-10.tar']
    >>> expand_braces("{train,val-{a..c}}.tar")
    ['train.tar', 'val-a.tar', 'val-b.tar', 'val-c.tar']
    """
    if "{" not in text and "}" not in text:
        return [text]
    import bracex

    problem = _problem(text)
    if problem is None:
        try:
            return bracex.expand(text, limit=MAX_NAMES, return_empty=True)
        except (bracex.ExpansionLimitException, RecursionError):
            problem = f"more than {MAX_NAMES:,} names"
    raise ValueError(f"{problem} in the pattern {shown(text)!r:.200}")


def _problem(text: str) -> str | None:
    depth = 0
    for brace in _TOKEN.findall(text):
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return "unbalanced '}'"
        if depth > _MAX_DEPTH:
            return f"braces are more than {_MAX_DEPTH} deep"
    if depth:
        return "unbalanced '{'"
    if _STEP_0.search(text):
        return "the step of a range is 0"
    return f"more than {MAX_NAMES:,} names" if _ENDLESS.search(text) else None
