"""Making one shard: samples encoded, under another name or without one, then put in place whole."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, imports_of
from shardwise.extensions.build.place import Place
from shardwise.extensions.build.recipe import Failure, Outcome, Recipe
from shardwise.sources.tar.write.encode import encode_sample
from shardwise.sources.tar.write.stored import StoredRun
from shardwise.sources.tar.write.writer import TarWriter
from shardwise.storage import StorageOptions
from shardwise.storage.write import upload

# A key, the members of an encoded sample, and the sidecar's blocks for them.
Encoded = tuple[str, list[tuple[str, bytes]], dict[str, bytes] | None]


class CopyingWriter(TarWriter):
    """Writes one shard, which is replaced if it exists. Keys are the caller's to check."""

    def __init__(self, path: str, *, media: bool, storage: StorageOptions) -> None:
        pattern = path.replace("{", "{{").replace("}", "}}")
        super().__init__(pattern, overwrite=True, media=media, storage=storage)
        self._num_bytes = 0

    def encode(self, sample: dict[str, Any]) -> tuple[str, Encoded]:
        """A sample's key, and what `add` takes; DataError if a media file can't be used."""
        key, members = encode_sample(sample)
        return key, (key, members, self._blocks_of(key, members))

    def add(self, encoded: Encoded) -> None:
        """Write an encoded sample."""
        self._write_members(*encoded)
        self._num_bytes += sum(len(data) for _, data in encoded[1])

    def copy(self, run: StoredRun) -> None:
        """Write the samples of a run, in the bytes that they have."""
        self._append(run.data, run.members, run.keys, run.fields)
        self._num_bytes += run.num_bytes

    def finish(self) -> int:
        """Close the shard; returns the bytes of its payloads."""
        self.close()
        return self._num_bytes


@dataclass(frozen=True)
class Job:
    """A build, as its workers get it; `failed`: a retry's inputs, by the shard without them."""

    recipe: Recipe
    place: Place
    pattern: str
    token: str
    generation: int = 0
    failed: dict[int, list[int]] | None = None

    def shards(self) -> list[int]:
        """The numbers of the shards to make."""
        return list(range(self.recipe.num_shards)) if self.failed is None else sorted(self.failed)

    def name(self, number: int) -> str:
        """The name of a shard's file; for a retry, its number is appended."""
        name = self.pattern.format(shard=number)
        if not self.generation:
            return name
        return f"{name.removesuffix(self.recipe.suffix)}-r{self.generation}{self.recipe.suffix}"

    def note_name(self, number: int) -> str:
        """The name of a shard's note."""
        return f"r{self.generation}-{number}"

    def ids(self, number: int) -> NDArray[np.int64]:
        """The inputs of a shard."""
        if self.failed is None:
            return self.recipe.ids(number)
        return np.array(self.failed[number], np.int64)

    def copies(self) -> bool:
        """Whether the first shard to make starts with samples that are copied as they stand."""
        parts = self.recipe.stored(self.ids(self.shards()[0]))
        return any(run is not None for _, run in islice(parts, 1))


def make_shard(job: Job, number: int) -> Outcome:
    """Make a shard and note what became of its inputs. Equal arguments give equal bytes."""
    name = job.name(number)
    if job.place.is_local:
        with job.place.staging() as directory:
            staged = f"{directory}/{name}"
            outcome = _write(job, number, staged)
            if outcome.num_out:
                _put_in_place(staged, job.place.url(name))
    elif job.recipe.suffix == ".tar":
        outcome = _write(job, number, job.place.url(name))
    else:
        outcome = _write_remote(job, number)
    note = job.place.note(job.note_name(number))
    job.place.write(note, json.dumps(asdict(outcome)).encode())
    return outcome


def _write(job: Job, number: int, path: str) -> Outcome:
    outcome = Outcome()
    writer: CopyingWriter | ParquetShard | None = None
    keys: set[str] = set()
    for ids, run in job.recipe.stored(job.ids(number)):
        if run is not None and keys.isdisjoint(run.keys) and len({*run.keys}) == len(run.keys):
            writer = writer or _writer_of(job, path)
            assert isinstance(writer, CopyingWriter), "only tars are made of stored runs"
            writer.copy(run)
            keys.update(run.keys)
            outcome.num_in += len(run.keys)
            outcome.num_out += len(run.keys)
            continue
        for index, samples in job.recipe.samples(ids, outcome):
            writer = writer or _writer_of(job, path)
            try:
                # All samples of an input are encoded before one is written: it fails as a whole.
                encoded = [writer.encode(sample) for sample in samples]
                _check_keys([key for key, _ in encoded], keys)
            except (ValueError, TypeError, DataError) as error:
                job.recipe.fail(index, str(samples[0]["__key__"]), error, outcome)
                continue
            for key, values in encoded:
                writer.add(values)
                keys.add(key)
                outcome.num_out += 1
    if writer is not None and outcome.num_out:
        outcome.num_bytes = writer.finish()
    return outcome


def _writer_of(job: Job, path: str) -> CopyingWriter | ParquetShard:
    if job.recipe.suffix == ".tar":
        return CopyingWriter(path, media=job.recipe.media, storage=job.place.options)
    return ParquetShard(path)


def _write_remote(job: Job, number: int) -> Outcome:
    """Write a file without a name, which the system removes after a kill, then upload it."""
    with tempfile.TemporaryFile() as file:
        path = f"/proc/self/fd/{file.fileno()}"
        outcome = _write(job, number, path)
        if outcome.num_out:
            upload(job.place.url(job.name(number)), Path(path), options=job.place.options)
    return outcome


def _check_keys(new: list[str], keys: set[str]) -> None:
    for place, key in enumerate(new):
        if key in keys or key in new[:place]:
            raise ValueError(
                f"the key {key!r} is in this shard already: give each sample a '__key__' of its own"
            )


def _put_in_place(staged: str, path: str) -> None:
    """Give a staged shard its name, after its index and sidecar: no shard is without them."""
    for suffix in (".swi", ".media"):
        if Path(staged + suffix).exists():
            os.replace(staged + suffix, path + suffix)  # noqa: PTH105 - texts
    os.replace(staged, path)  # noqa: PTH105 - texts


def outcome_of(note: bytes) -> Outcome:
    """The outcome in a note."""
    document = json.loads(note)
    failures = [Failure(**each) for each in document.pop("failures")]
    return Outcome(**document, failures=failures)


# Rows are flushed as a row group at this many bytes or rows: what a reader loads at a time.
_GROUP_BYTES, _GROUP_ROWS = 16 << 20, 10_000


class ParquetShard:
    """Collects samples into the row groups of one file. Types are those of the first row group.

    Numbers, texts, bytes and one-dimensional arrays of numbers are values of Parquet; what else
    `TarWriter` can encode goes in as bytes.
    """

    def __init__(self, path: str) -> None:
        with imports_of("parquet", "pyarrow is not installed"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        self._pa, self._pq = pa, pq
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._num_bytes = 0
        self._writer: Any = None

    def encode(self, sample: dict[str, Any]) -> tuple[str, Any]:
        """A sample's key, and what `add` takes: the values of a row."""
        key = sample["__key__"]
        if not isinstance(key, str):
            raise TypeError(f"'__key__' must be a str, not {key!r}")
        return key, {name: _value(name, value) for name, value in sample.items()}

    def add(self, encoded: Any) -> None:
        """Append a row."""
        self._rows.append(encoded)
        self._num_bytes += sum(
            len(value) if isinstance(value, bytes | str | list) else 8 for value in encoded.values()
        )
        if self._num_bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> int:
        """Write what is left; the file's bytes."""
        self._flush()
        self._writer.close()
        return Path(self._path).stat().st_size

    def _flush(self) -> None:
        if not self._rows:
            return
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        schema = None if self._writer is None else self._writer.schema
        columns = {name: [row.get(name) for row in self._rows] for name in names}
        if schema is not None and (new := set(names) - set(schema.names)):
            raise ValueError(
                f"{sorted(new)[0]!r} is in no sample of the first row group: give all samples the "
                "same fields"
            )
        if schema is not None:
            columns = {name: columns.get(name, [None] * len(self._rows)) for name in schema.names}
        table = self._pa.table(columns, schema=schema)
        if self._writer is None:
            self._writer = self._pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)
        self._rows, self._num_bytes = [], 0


def _value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | list):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf":
        return value.tolist()
    field = f"{name}.npy" if isinstance(value, np.ndarray) and "." not in name else name
    return encode_sample({"__key__": "k", field.lower(): value})[1][0][1]
