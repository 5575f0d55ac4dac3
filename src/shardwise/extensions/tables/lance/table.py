"""One version of a Lance table, open in this process: all that this library asks of Lance.

Lance's threads do not survive a fork, and a forked child that continues with them hangs or crashes
now and then: the rest of the package asks `is_usable_here`. Rows are read by their position among
the live rows of the version, ascending: Lance skips deleted ones. Lance's errors become ours (I6).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, MissingShardError, StorageError, imports_of
from shardwise.base.foreign_bytes import is_signal
from shardwise.extensions.tables.lance.selection import Description

with imports_of("lance", "Lance tables need pylance, which is not there"):
    import lance
    import pyarrow as pa

# The process in which Lance was loaded by this module: its threads live here and nowhere else.
_HOME_PID = os.getpid()
_BLOB_METADATA = b"lance-encoding:blob"
_BLOB_EXTENSION = "lance.blob.v2"
# The position in Lance's source where it raised an error.
_PLACE = re.compile(r", /\S+\.rs:\d+:\d+")
# Errors of storage; all others are the data's, against which no retry helps.
_IO_ERRORS = ("LanceError(IO): Generic", "LanceError(IO): Execution")
_CUT_SHORT = "failed to fill whole buffer"


def is_usable_here() -> bool:
    """Whether Lance may be used in this process: not in a fork of the one that loaded it."""
    return os.getpid() == _HOME_PID


class LanceTable:
    """A version of a table, by its number or tag (None: the latest); names are Lance's."""

    def __init__(self, uri: str, version: int | str | None, settings: Mapping[str, str]) -> None:
        self.uri = uri
        self._settings = dict(settings) or None
        try:
            with _as_ours(uri):
                self._dataset = lance.dataset(uri, version, storage_options=self._settings)
        except (DataError, StorageError) as error:
            if uri.lower().endswith((".parquet", ".parq", ".pq", ".arrow")):
                raise MissingShardError(
                    "no Lance table but, by its name, a Parquet or Arrow file: sw.parquet reads it",
                    url=uri,
                ) from error
            if isinstance(error, StorageError):
                raise
            versions = self.versions()
            if versions is None:
                raise MissingShardError(f"no Lance table: {error.reason}", url=uri) from error
            if version is None or version in versions:
                raise
            gone = _version_is_gone(version, versions)
            if isinstance(version, str):
                gone += f"; {self._tags()}"
            raise MissingShardError(gone, url=uri) from error

    def versions(self) -> list[int] | None:
        """The numbers of all versions that exist now; None without a table."""
        try:
            with _as_ours(self.uri):
                latest = lance.dataset(self.uri, storage_options=self._settings)
                return [int(each["version"]) for each in latest.version_refs()]
        except (DataError, StorageError):
            return None

    def _tags(self) -> str:
        with _as_ours(self.uri):
            tags = lance.dataset(self.uri, storage_options=self._settings).tags.list()
        return f"its tags are {', '.join(map(repr, sorted(tags)))}" if tags else "it has no tags"

    def description(self) -> Description:
        """The content of the version; O(fragments), reads no data."""
        dataset = self._dataset
        digest = hashlib.sha256()
        rows: list[tuple[int, int, int]] = []
        with _as_ours(self.uri):
            for fragment in dataset.get_fragments():
                about = fragment.metadata
                paths = sorted(str(file.path) for file in about.files)
                num_bytes = sum(file.file_size_bytes or 0 for file in about.files)
                digest.update("\0".join([str(about.id), *paths, ""]).encode())
                rows.append((about.id, about.num_rows, num_bytes))
            schema, blobs = _plain_schema(dataset.schema)
            table = np.array(rows, dtype=np.int64).reshape(-1, 3)
            return Description(
                version=dataset.version,
                schema=schema,
                blobs=blobs,
                fragments=table[:, 0].copy(),
                sizes=table[:, 1].copy(),
                num_bytes=table[:, 2].copy(),
                digest=digest.hexdigest()[:16],
            )

    def select(self, condition: str) -> NDArray[np.int64]:
        """The positions of the live rows for which a condition in SQL holds: int64, ascending."""
        places = [np.empty(0, dtype=np.int64)]
        try:
            with _as_ours(self.uri):
                scanner = self._dataset.scanner(columns=["_rowoffset"], filter=condition)
                places += [
                    batch.column(0).to_numpy().astype(np.int64) for batch in scanner.to_batches()
                ]
        except DataError as error:
            columns = ", ".join(map(repr, self._dataset.schema.names))
            raise DataError(
                f"filter={condition!r}: {error.reason}; the columns are {columns}", url=self.uri
            ) from error
        # An index of the table returns rows in its own order.
        return np.sort(np.concatenate(places), kind="stable")

    def take(self, places: NDArray[np.int64], columns: Sequence[str]) -> pa.RecordBatch:
        """Rows by position, one or more, ascending, without repeats; of structs "a.b" is a part."""
        with self._reading():
            # A list: an Arrow array would be taken apart item by item.
            table = self._dataset.take(places.tolist(), columns=list(columns))
            batch = pa.concat_batches(table.to_batches())
        self._check_count(len(batch), len(places))
        return batch

    def blobs(self, places: NDArray[np.int64], column: str) -> list[bytes | None]:
        """Blobs by position, one or more, ascending, without repeats, in one planned read."""
        with self._reading():
            blobs = self._dataset.read_blobs(column, indices=places.tolist(), preserve_order=True)
        self._check_count(len(blobs), len(places))
        return [payload for _, payload in blobs]

    def _check_count(self, num_rows: int, num_places: int) -> None:
        if num_rows != num_places:
            raise DataError(f"Lance gave {num_rows} rows for {num_places} places", url=self.uri)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Distinguish a version that was cleaned up from a missing file."""
        try:
            with _as_ours(self.uri):
                yield
        except MissingShardError as error:
            version, versions = self._dataset.version, self.versions()
            if versions is None or version not in versions:
                raise StorageError(
                    f"{self.uri}: {_version_is_gone(version, versions or [])}; it was cleaned up "
                    "while it was being read: keep the version that a training run reads (a tag "
                    f"does), or start again without version={version}"
                ) from error
            raise


def _version_is_gone(version: int | str, versions: Sequence[int]) -> str:
    if not versions:
        return f"version {version} of the table is gone, and so are all others"
    shown = ", ".join(map(str, versions if len(versions) <= 20 else versions[-20:]))
    less = "" if len(versions) <= 20 else f"{len(versions) - 20} older ones and "
    return f"there is no version {version} of the table: there are {less}{shown}"


def _plain_schema(schema: pa.Schema) -> tuple[pa.Schema, frozenset[str]]:
    blobs: set[str] = set()

    def plain(field: pa.Field, name: str) -> pa.Field:
        metadata = field.metadata or {}
        kind = field.type
        if (
            metadata.get(_BLOB_METADATA) == b"true"
            or getattr(kind, "extension_name", None) == _BLOB_EXTENSION
        ):
            blobs.add(name)
            kind = pa.large_binary()
        elif pa.types.is_struct(kind):
            kind = pa.struct([plain(part, f"{name}.{part.name}") for part in kind])
        return pa.field(field.name, kind)

    return pa.schema([plain(field, field.name) for field in schema]), frozenset(blobs)


@contextmanager
def _as_ours(uri: str) -> Iterator[None]:
    """Raise Lance's errors as this library's own."""
    try:
        yield
    except BaseException as error:
        if is_signal(error):
            raise
        if not isinstance(error, Exception):
            raise DataError(f"Lance panicked: {error}", url=uri) from error
        raise _ours(uri, str(error)) from None


def _ours(uri: str, text: str) -> DataError | StorageError:
    message = _PLACE.sub("", text)
    if "Not found: " in message:
        return MissingShardError(message, url=uri)
    if message.startswith(_IO_ERRORS) and _CUT_SHORT not in message:
        return StorageError(f"{uri}: {message}")
    return DataError(message, url=uri)
