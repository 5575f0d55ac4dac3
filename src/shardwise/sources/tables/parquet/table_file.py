"""The protocol of a table's file, whatever its format, and the facts in its footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardwise.storage import FileStat

__all__ = ["FileInfo", "TableFile"]


@dataclass(frozen=True)
class FileInfo:
    """The facts in a file's footer.

    Attributes:
        url: where it lies.
        stat: which version of it this is.
        schema: its Arrow schema.
        rows: int64 `[groups]`, rows a row group.
        sizes: int64 `[groups]`, its bytes before compression, all columns together.
    """

    url: str
    stat: FileStat
    schema: pa.Schema
    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]


class TableFile(Protocol):
    """An open file of a table; any thread may read from it."""

    def info(self) -> FileInfo:
        """The facts in the footer."""
        ...

    def read(self, group: int, names: Sequence[str]) -> tuple[pa.Table | pa.RecordBatch, int]:
        """A row group with these fields (of structs, "a.b"), and the bytes read for it."""
        ...
