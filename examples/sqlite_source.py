"""A new source in one file, the rows of an SQLite table: python examples/sqlite_source.py.

A source has four members: `manifest`, `fields`, `default_shuffle` and `read`. This one has `traits`
as well: text and numbers are values, and blobs are stored bytes, which decoders read.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import shardwise as sw
from shardwise.base.columns import BytesColumn, Column, Columns
from shardwise.sources import Manifest, PerProcess, Shard, SourceTraits
from shardwise.testing import check_source

# What a column of this declared type and NOT NULL holds: an array in every batch.
DTYPES = {"INTEGER": np.dtype(np.int64), "REAL": np.dtype(np.float64)}


class SqliteSource:
    """Rows of a table, in the order of their rowids; the key is "table:rowid".

    Args:
        path: the database, which must not change while it is read.
        table: a table that has rowids.

    Raises:
        MissingShardError: there is no such file.
    """

    # An index leads to any row in a few steps, so no order of the rows is quicker than another.
    default_shuffle: Literal["full"] = "full"

    def __init__(self, path: str | Path, table: str) -> None:
        self.path, self.table = Path(path).resolve(), table
        if not self.path.is_file():
            raise sw.MissingShardError("no such database", url=str(path))
        self._threads: PerProcess[threading.local] = PerProcess()
        columns = self._query(
            f"SELECT name, upper(type), \"notnull\" FROM pragma_table_info('{table}')"
        )
        self.fields = tuple(name for name, _, _ in columns)
        self.traits = SourceTraits(
            value_fields={name for name, kind, _ in columns if kind != "BLOB"},
            layouts={
                name: ((), DTYPES[kind])
                for name, kind, whole in columns
                if whole and kind in DTYPES
            },
        )
        # 8 bytes a row: rows may have been deleted, so row i need not have the rowid i + 1.
        rowids = self._query(f'SELECT rowid FROM "{table}" ORDER BY rowid')
        self._rowids = np.array(rowids, np.int64).reshape(-1)
        shard = Shard(f"{self.path}#{table}", len(rowids), self.path.stat().st_size)
        self.manifest = Manifest("sqlite", [shard])

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        """Read rows by one query; any thread may call this, in any process."""
        self.manifest.check(ids)
        names = self.fields if fields is None else fields
        rowids: list[int] = self._rowids[ids].tolist()
        columns = ", ".join(["rowid", *(f'"{name}"' for name in names)])
        query = (
            f'SELECT {columns} FROM "{self.table}" WHERE rowid IN (SELECT value FROM json_each(?))'
        )
        rows = {rowid: values for rowid, *values in self._query(query, json.dumps(rowids))}
        found: dict[str, Column] = {}
        for number, name in enumerate(names):
            values = [rows[rowid][number] for rowid in rowids]
            if name in self.traits.layouts:
                found[name] = np.array(values, self.traits.layouts[name][1])
            else:
                found[name] = values if name in self.traits.value_fields else BytesColumn.of(values)
        return Columns(ids, [f"{self.table}:{rowid}" for rowid in rowids], found)

    def _query(self, query: str, *arguments: Any) -> list[Any]:
        # SQLite's connections survive no fork, and each serves one thread at a time.
        thread = self._threads.get(threading.local)
        if not hasattr(thread, "connection"):
            thread.connection = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)
        rows: list[Any] = thread.connection.execute(query, arguments).fetchall()
        return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "words.sqlite"
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE words (text TEXT, label INTEGER NOT NULL, vector BLOB)")
            rows = [(f"word {i}", i % 10, np.full(4, i, "<f4").tobytes()) for i in range(200)]
            database.executemany("INSERT INTO words VALUES (?, ?, ?)", [*rows, (None, 0, None)])
            database.execute("DELETE FROM words WHERE rowid = 100")

        source = SqliteSource(path, "words")
        check_source(source)
        print("check_source: the source keeps the protocol")

        data = sw.Dataset(source).subset(range(199)).decode(vector=sw.array("float32", 4))
        with sw.DataLoader(
            data, batch_size=32, shuffle=True, remainder="uneven", num_workers=2, output="numpy"
        ) as loader:
            batches = list(loader)
        print(f"{len(batches)} batches of {batches[0]['vector'].shape}, by two processes")
        for batch in batches:
            assert batch["label"].tolist() == [int(text.split()[1]) % 10 for text in batch["text"]]


if __name__ == "__main__":
    main()
