"""Find the files of one table by a user's URLs: directories are searched, layouts known.

Keeps a part of I6: a directory that holds several tables (the splits of a Hugging Face dataset) is
an error, never their sum. Of partitioned directories, `year=2024/month=01/part-0.parquet`, the
names are columns.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import path_text
from shardwise.base.columns import Column
from shardwise.base.errors import DataError, MissingShardError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import base_name, without_query
from shardwise.storage import StorageOptions, expand, is_local, local_path
from shardwise.storage.urls import beside

SUFFIXES = (".parquet", ".parq", ".pq", ".arrow")
# The hub's names: train-00000-of-00002.parquet, at times with a hash at the end.
_SPLIT = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.\w+")


def find_tables(
    urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    options: StorageOptions | None = None,
) -> list[str]:
    """The files of a table, in order.

    A local directory stands for all files of tables under it, sorted by path, but for hidden ones
    and those whose names start with "_". What `save_to_disk` of Hugging Face datasets wrote is the
    files that it lists, in its order. Everything else is as `shardwise.storage.expand` has it:
    a remote directory stands for the files in it, without those below.
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
        # os.path: a name that is too long is not a directory, and raises no OSError.
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
    with as_data_error("state.json can't be used", url=str(path / "state.json")):
        return [beside(str(path / "state.json"), name) for name in names]


def _read_json(path: Path) -> dict[str, Any]:
    with as_data_error("it is no JSON", url=str(path)):
        value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise DataError(f"it holds {type(value).__name__}, not an object", url=str(path))
    return value


_PART = re.compile(r"(?P<name>[^=/]+)=(?P<value>[^/]*)")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
# Hive's name for a null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Partition:
    """A column of directories' names: a value per file, and the dtype of numbers."""

    name: str
    values: tuple[Any, ...]
    dtype: np.dtype[Any] | None = None

    def take(self, files: NDArray[np.int64]) -> Column:
        """The values for rows of some files: an array if they are numbers without nulls."""
        values = [self.values[i] for i in files.tolist()]
        return values if self.dtype is None or None in values else np.array(values, self.dtype)


def partitions_of(urls: Sequence[str]) -> list[Partition]:
    """The columns in the directories of some files, which must have the same ones.

    Values that are all whole numbers, written as Python writes them, are ints; "01" is not.

    >>> partitions_of(["a/year=2024/x.parquet", "a/year=2025/x.parquet"])
    [Partition(name='year', values=(2024, 2025), dtype=None)]
    """
    columns = [
        {
            unquote(match["name"]): unquote(match["value"])
            for part in without_query(url).split("/")[:-1]
            if (match := _PART.fullmatch(part))
        }
        for url in urls
    ]
    for url, parts in zip(urls, columns, strict=True):
        if list(parts) != list(columns[0]):
            raise DataError(
                f"its directories have the columns {list(parts)}, those of {urls[0]!r} have "
                f"{list(columns[0])}: the files of a table lie under the same columns",
                url=url,
            )
    names = columns[0] if columns else ()
    return [Partition(name, _parse_values([parts[name] for parts in columns])) for name in names]


def _parse_values(texts: Sequence[str]) -> tuple[int | str | None, ...]:
    values = tuple(None if text == _NULL else text for text in texts)
    if all(text is None or _WHOLE.fullmatch(text) for text in values):
        return tuple(None if text is None else int(text) for text in values)
    return values
