"""From what a user writes to the files of one table: directories are searched, layouts known.

Keeps a part of I6: a directory that holds several tables (the splits of a Hugging Face dataset) is
an error, never their sum.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardwise.arguments import path_text
from shardwise.errors import DataError, MissingShardError
from shardwise.shown import base_name
from shardwise.storage import StorageOptions, expand, is_local, local_path

__all__ = ["SUFFIXES", "find_tables"]

SUFFIXES = (".parquet", ".parq", ".pq", ".arrow")
# The hub's names: train-00000-of-00002.parquet, with a hash behind it at times.
_SPLIT = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.\w+")


def find_tables(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    options: StorageOptions | None = None,
) -> list[str]:
    """The files of a table, in order.

    A local directory stands for all files of tables under it, sorted by path, but for hidden ones
    and those whose names begin with "_". What `save_to_disk` of Hugging Face datasets wrote is the
    files that it lists, in its order. Everything else is as `shardwise.storage.expand` has it:
    a remote directory stands for the files in it, without those below.

    Args:
        urls: files, patterns, directories.
        options: how stores are listed; None for the defaults.

    Raises:
        MissingShardError: nothing is there under a name.
        DataError: a directory holds the splits of a dataset, which are tables of their own.
        ValueError: nothing was named, or one file twice.
        TypeError: it is a table in memory.
    """
    if hasattr(urls, "columns"):
        package = type(urls).__module__.partition(".")[0]
        raise TypeError(
            f"urls is a {package} table in memory, not files: write it to a file, or give its "
            "rows as dicts to sw.wrap"
        )
    is_many = isinstance(urls, Sequence) and not isinstance(urls, str)
    items: list[Any] = [*urls] if is_many else [urls]  # type: ignore[misc]
    named: list[str | os.PathLike[str]] = []
    for item in items:
        text = path_text("each of urls", item)
        # os.path: a name that is too long is no directory, and no OSError.
        if text and is_local(text) and os.path.isdir(local_path(text)):  # noqa: PTH112
            named += _in_directory(Path(local_path(text)))
        elif not is_local(text) and text.endswith("/"):
            listed = expand(text, suffixes=SUFFIXES, options=options)
            _refuse_splits(listed, text)
            named += listed
        else:
            named.append(item)
    return expand(named, suffixes=SUFFIXES, options=options)


def _in_directory(path: Path) -> list[str]:
    if (path / "dataset_dict.json").is_file():
        splits = [str(split) for split in _read_json(path / "dataset_dict.json").get("splits", ())]
        raise DataError(
            f"the directory holds a dataset of the splits {', '.join(splits)}: name one of them, "
            f"such as {str(path / (splits or ['train'])[0])!r}",
            url=str(path),
        )
    if (path / "state.json").is_file():
        return _saved_files(path)
    files = sorted(_walk(path))
    if not files:
        patterns = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise MissingShardError(f"no {patterns} in the directory or under it", url=str(path))
    _refuse_splits(files, str(path))
    return files


def _refuse_splits(urls: Sequence[str], directory: str) -> None:
    """Refuse the splits of a dataset as one table."""
    matches = [_SPLIT.fullmatch(base_name(url)) for url in urls]
    splits = sorted({match["split"] for match in matches if match})
    if len(splits) > 1:
        raise DataError(
            f"the directory holds the splits {', '.join(splits)}: name the files of one of them, "
            f"such as '**/{splits[-1]}-*.parquet'",
            url=directory,
        )


def _walk(path: Path) -> Iterator[str]:
    for directory, below, names in os.walk(path):
        below[:] = [name for name in below if not name.startswith((".", "_"))]
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith((".", "_")):
                yield os.path.join(directory, name)  # noqa: PTH118 - text, as the walk has it


def _saved_files(path: Path) -> list[str]:
    """The files that `save_to_disk` wrote; a name that leaves the directory is refused."""
    listed = _read_json(path / "state.json").get("_data_files", ())
    names: list[str] = []
    for entry in listed if isinstance(listed, list) else ():
        name = entry.get("filename") if isinstance(entry, dict) else entry
        if not isinstance(name, str) or Path(name).name != name:
            raise DataError(
                f"state.json lists the file {name!r}, which is no name of a file beside it",
                url=str(path / "state.json"),
            )
        names.append(name)
    if not names:
        raise DataError("state.json lists no data files", url=str(path / "state.json"))
    return [str(path / name) for name in names]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"it is no JSON: {error}", url=str(path)) from error
    if not isinstance(value, dict):
        raise DataError(f"it holds {type(value).__name__}, not an object", url=str(path))
    return value
