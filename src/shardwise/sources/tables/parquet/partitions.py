"""Partitioned directories: `year=2024/month=01/part-0.parquet`, whose names are columns.

Pure: URLs in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Column
from shardwise.errors import DataError
from shardwise.shown import without_query

__all__ = ["Partition", "partitions_of"]

_PART = re.compile(r"(?P<name>[^=/]+)=(?P<value>[^/]*)")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
# What Hive writes for a null.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Partition:
    """A column that the directories' names make.

    Attributes:
        name: its name.
        values: one a file: ints if all are whole numbers, else str; None for a null.
        dtype: of the column, if the values are numbers.
    """

    name: str
    values: tuple[Any, ...]
    dtype: np.dtype[Any] | None = None

    def take(self, files: NDArray[np.int64]) -> Column:
        """The values for rows of these files: an array if they are numbers, and none is null."""
        values = [self.values[i] for i in files.tolist()]
        return values if self.dtype is None or None in values else np.array(values, self.dtype)


def partitions_of(urls: Sequence[str]) -> list[Partition]:
    """The columns in the directories of some files.

    Values that are all whole numbers, written as Python writes them, are ints; "01" is not.

    Raises:
        DataError: the files lie under different columns.

    Examples:
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
    return [Partition(name, _typed([parts[name] for parts in columns])) for name in names]


def _typed(texts: Sequence[str]) -> tuple[int | str | None, ...]:
    values = tuple(None if text == _NULL else text for text in texts)
    if all(text is None or _WHOLE.fullmatch(text) for text in values):
        return tuple(None if text is None else int(text) for text in values)
    return values
