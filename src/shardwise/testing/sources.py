"""Conformance of sources: what a new format must keep."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import suggest_names
from shardwise.base.columns import Column
from shardwise.sources.protocol import ReadsRuns, Source, traits_of, value_fields_of

_Row = dict[str, Any]
# A forked child that sends nothing for 120 s hangs.
_PATIENCE_S = 120


@suggest_names
def check_source(
    source: Source, *, expected: Sequence[Mapping[str, Any]] | None = None, seed: int = 0
) -> None:
    """Hold a source to the protocol.

    - The manifest's counts agree with each other, and two looks at it give the same.
    - `read` gives the same for a sample whatever is read with it: all at once, one by one, in any
      order, with repeats, a subset of the fields, from several threads, from a pickled copy, after
      a fork; and an empty column for no ids.
    - `read_run`, where the source has it, gives the same again.
    - A field that a sample lacks is None.
    - `value_fields` and `layouts`, where the source has them, describe the columns.

    Call it under `if __name__ == "__main__":` or in a test: it forks a process where that is
    possible. Best with 10 to 1,000 samples.

    Args:
        source: the source to check.
        expected: each sample's fields and `"__key__"`, in the order of the ids; None to compare
            the source with itself only. Fields that a sample lacks may be left out or None.
        seed: of the random orders.

    Raises:
        AssertionError: the message names the difference and its location.
    """
    assert isinstance(source, Source), f"{type(source).__name__} lacks a part of the protocol"
    assert source.default_shuffle in ("full", "window"), f"default_shuffle {source.default_shuffle}"
    num_samples = _check_manifest(source)
    fields = source.fields
    assert len(set(fields)) == len(fields), f"fields named twice: {fields}"
    rows = _rows(source, np.arange(num_samples), None)
    if expected is not None:
        assert len(expected) == num_samples, f"{num_samples} samples, not {len(expected)}"
        for i, (row, sample) in enumerate(zip(rows, expected, strict=True)):
            whole = dict.fromkeys(fields) | {name: _plain(value) for name, value in sample.items()}
            _same(row, whole, f"sample {i}")
    empty = source.read(np.empty(0, np.int64))
    assert len(empty.keys) == 0, "no ids must give no keys"
    assert all(len(column) == 0 for column in empty.fields.values()), "no ids must give no rows"
    if not num_samples:
        return
    rng = np.random.default_rng(seed)
    _check_reads(source, rows, rng)
    _check_run(source, rows)
    some = rng.integers(0, num_samples, min(64, 2 * num_samples))
    some_rows = [rows[i] for i in some]
    _check_threads(source, rows, rng)
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert copy.manifest.fingerprint == source.manifest.fingerprint, "pickling changes the manifest"
    _all_same(_rows(copy, some, None), some_rows, "a pickled copy")
    if "fork" in multiprocessing.get_all_start_methods():
        _all_same(_rows_of_child(source, some), some_rows, "a forked child")
        _all_same(_rows(source, some, None), some_rows, "the parent after a fork")


def _check_manifest(source: Source) -> int:
    manifest = source.manifest
    sizes = [shard.num_samples for shard in manifest.shards]
    assert manifest.sizes.tolist() == sizes, f"sizes {manifest.sizes} of shards with {sizes}"
    assert manifest.num_samples == sum(sizes), f"{manifest.num_samples} samples in {sizes}"
    assert source.manifest.fingerprint == manifest.fingerprint, "two looks, two fingerprints"
    return manifest.num_samples


def _check_reads(source: Source, rows: Sequence[_Row], rng: np.random.Generator) -> None:
    num_samples = len(rows)
    for i in rng.permutation(num_samples)[:100].tolist():
        _same(_rows(source, np.array([i]), None)[0], rows[i], f"sample {i} by itself")
    for name, ids in (
        ("in a random order", rng.permutation(num_samples)),
        ("backwards", np.arange(num_samples)[::-1]),
        ("with repeats", rng.integers(0, num_samples, 3 * num_samples)),
        ("every third", np.arange(0, num_samples, 3)),
    ):
        _all_same(_rows(source, ids, None), [rows[i] for i in ids], f"samples read {name}")
    ids = rng.permutation(num_samples)
    for count in range(len(source.fields) + 1):
        names = tuple(rng.permutation(np.array(source.fields, dtype=object))[:count])
        chosen = [{name: rows[i][name] for name in ("__key__", *names)} for i in ids]
        _all_same(_rows(source, ids, names), chosen, f"the fields {names}")
        _all_same(_rows(source, ids[:1], names), chosen[:1], f"the fields {names} of one sample")


def _check_run(source: Source, rows: Sequence[_Row]) -> None:
    own = having(source, ReadsRuns)
    start, stop = len(rows) // 3, len(rows)
    runs = None if own is None else own.read_run(start, stop, None)
    if runs is None:
        return
    run = [
        {"__key__": columns.keys[i]}
        | {name: _plain(column[i]) for name, column in columns.fields.items()}
        for columns in runs
        for i in range(len(columns.keys))
    ]
    _all_same(run, rows[start:], f"read_run({start}, {stop})")


def _check_threads(source: Source, rows: Sequence[_Row], rng: np.random.Generator) -> None:
    # A fresh copy, so that the threads also meet while it opens.
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    tasks = [rng.integers(0, len(rows), 16) for _ in range(32)]
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda ids: _rows(copy, ids, None), tasks))
    for ids, part in zip(tasks, parts, strict=True):
        _all_same(part, [rows[i] for i in ids], "threads")


def _rows_of_child(source: Source, ids: NDArray[np.int64]) -> list[_Row]:
    context = multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)
    child = context.Process(target=_send_rows, args=(source, ids, other))
    child.start()
    other.close()
    try:
        assert mine.poll(_PATIENCE_S), f"a forked child gave nothing in {_PATIENCE_S} s: it hangs"
        reply: list[_Row] | str = mine.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"a forked child died, exit code {child.exitcode}") from None
    finally:
        mine.close()
        if child.is_alive():
            child.join(1)
        child.kill()
        child.join()
        child.close()
    assert not isinstance(reply, str), f"a forked child failed: {reply}"
    return reply


def _send_rows(source: Source, ids: NDArray[np.int64], pipe: Connection) -> None:
    try:
        reply: list[_Row] | str = _rows(source, ids, None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        reply = f"{type(error).__name__}: {error}"
    pipe.send(reply)


def _rows(source: Source, ids: NDArray[np.int64], names: tuple[str, ...] | None) -> list[_Row]:
    """Read samples and turn the columns, which are checked, into a dict per sample."""
    columns = source.read(ids, names)
    fields = source.fields if names is None else names
    assert columns.ids.tolist() == ids.tolist(), f"ids {columns.ids} were asked for as {ids}"
    assert len(columns.keys) == len(ids), f"{len(columns.keys)} keys for {len(ids)} samples"
    assert set(columns.fields) == set(fields), f"fields {list(columns.fields)}, not {fields}"
    for name, column in columns.fields.items():
        assert len(column) == len(ids), f"{len(column)} rows of {name!r} for {len(ids)} samples"
        _check_form(source, name, column)
    assert columns.num_bytes >= 0, f"num_bytes {columns.num_bytes}"
    return [
        {"__key__": columns.keys[i]}
        | {name: _plain(column[i]) for name, column in columns.fields.items()}
        for i in range(len(ids))
    ]


def _check_form(source: Source, name: str, column: Column) -> None:
    """Check a column against the layout that the source declares for the field."""
    layout = traits_of(source).layouts.get(name)
    if layout is None:
        return
    if all(value is not None for value in column):
        assert isinstance(column, np.ndarray), f"{name!r} has a layout and is no array"
        form = (column.shape[1:], column.dtype)
        assert form == (tuple(layout[0]), layout[1]), f"{name!r} is {form}, not {layout}"
    assert name in value_fields_of(source), f"{name!r} has a layout: it is a value field"


def _plain(value: Any) -> Any:
    """The value as a sample has it: a number of an array's row is Python's own."""
    if isinstance(value, np.int64 | np.float64 | np.bool_):
        return value.item()
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _all_same(rows: Sequence[_Row], expected: Sequence[_Row], what: str) -> None:
    assert len(rows) == len(expected), f"{what}: {len(rows)} rows, not {len(expected)}"
    for i, (row, other) in enumerate(zip(rows, expected, strict=True)):
        _same(row, other, f"{what}, row {i}")


def _same(row: _Row, expected: _Row, what: str) -> None:
    assert set(row) == set(expected), f"{what}: {sorted(row)}, not {sorted(expected)}"
    for name, value in row.items():
        other = expected[name]
        assert type(value) is type(other), f"{what}: {name!r} is {value!r:.80}, not {other!r:.80}"
        assert _equal(value, other), f"{what}: {name!r} is {value!r:.80}, not {other!r:.80}"


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray):
        return value.dtype == other.dtype and np.array_equal(value, other)
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        return all(map(_equal, value, other))
    return type(value) is type(other) and bool(value == other)
