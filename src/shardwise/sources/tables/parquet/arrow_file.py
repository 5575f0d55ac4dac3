"""An Arrow file on this machine, as Hugging Face datasets write it: mapped, not read.

Both of Arrow's layouts, the stream and the file. A record batch is a row group, whose columns are
views of the mapped file: taking rows reads the pages that they lie on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shardwise.errors import DataError
from shardwise.sources.tables.parquet.parquet_file import FileInfo, check_version
from shardwise.storage import File, FileStat, local_path

__all__ = ["ArrowFile"]

_MAGIC = b"ARROW1"


class ArrowFile:
    """One file, mapped at the first use; `stat` is as for `open_table`.

    Raises:
        StorageError: it is not a local file.
    """

    def __init__(self, file: File, stat: FileStat | None = None) -> None:
        self._path = local_path(file.url)
        self._file = file
        self._stat = file.stat() if stat is None else stat
        self._batches: list[pa.RecordBatch] | None = None
        self._schema: pa.Schema | None = None

    def info(self) -> FileInfo:
        """The facts in the batches' headers.

        Raises:
            DataError: it is not an Arrow file, or is damaged.
        """
        batches = self._mapped()
        return FileInfo(
            self._file.url,
            self._stat,
            self._schema,
            np.array([batch.num_rows for batch in batches], dtype=np.int64),
            np.array([batch.nbytes for batch in batches], dtype=np.int64),
        )

    def read(self, group: int, names: Sequence[str]) -> tuple[pa.RecordBatch, int]:  # noqa: ARG002
        """A record batch, with all its columns: nothing is read before it is looked at.

        Raises:
            DataError: the file is damaged.
            StaleIndexError: it is not the one that was opened.
        """
        check_version(self._file, self._stat)
        batch = self._mapped()[group]
        return batch, 0

    def _mapped(self) -> list[pa.RecordBatch]:
        if self._batches is None:
            try:
                with pa.memory_map(self._path) as source:
                    is_file = source.read(len(_MAGIC)) == _MAGIC
                    source.seek(0)
                    if is_file:
                        reader = pa.ipc.open_file(source)
                        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
                    else:
                        reader = pa.ipc.open_stream(source)
                        batches = list(reader)
                    self._schema = reader.schema
            except (pa.ArrowException, OSError, EOFError, ValueError) as error:
                raise DataError(
                    f"it is not an Arrow file, or damaged: {error}", url=self._file.url
                ) from error
            self._batches = batches
        return self._batches
