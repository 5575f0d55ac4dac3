"""Windows of series: equal to clamped indices, read by one call, exact on any ranks."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.columns import Columns
from shardwise.base.errors import DataError
from shardwise.extensions.series.series import cut_series, find_rate, row_offsets
from shardwise.sources.protocol import SourceTraits
from shardwise.testing import check_source
from tests.support.memory_source import MemorySource
from tests.support.properties import examples

FPS = 10


def run_of(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


def samples(lengths):
    """Rows of series: `x` is the row's number, `v` an array, `t` its seconds, `name` a text."""
    runs = run_of(lengths)
    firsts = np.concatenate([[0], np.cumsum(lengths)])[runs]
    return [
        {"run": int(run), "x": n, "v": np.array([n, -n], np.float32), "name": f"row {n}",
         "timestamp": np.float32((n - first) / FPS)}
        for n, (run, first) in enumerate(zip(runs, firsts, strict=True))
    ]  # fmt: skip


def windowed(lengths, deltas, **options):
    return sw.windows(sw.wrap(samples(lengths)), by="run", deltas=deltas, **options)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6),
       st.lists(st.integers(-12, 12), min_size=1, max_size=5))  # fmt: skip
def test_a_window_is_the_rows_at_clamped_indices(lengths, offsets):
    ds = windowed(lengths, {"x": offsets, "v": [0]}, fps=1)
    runs = run_of(lengths)
    assert len(ds) == len(runs)
    for n, sample in enumerate(ds):
        own = np.flatnonzero(runs == runs[n])
        wanted = n + np.array(offsets)
        rows = np.clip(wanted, own[0], own[-1])
        assert sample["x"].tolist() == rows.tolist()
        assert sample["x.mask"].tolist() == (rows == wanted).tolist()
        assert sample["v"].tolist() == [[n, -n]]
        assert sample["name"] == f"row {n}"


def test_seconds_become_rows_by_the_times_or_by_the_rate():
    lengths = (5, 1, 40_000)
    by_times = windowed((5, 1, 30), {"x": [-0.1, 0, 0.3]})
    by_rate = windowed((5, 1, 30), {"x": [-0.1, 0, 0.3]}, fps=FPS)
    for one, other in zip(by_times, by_rate, strict=True):
        np.testing.assert_equal(dict(one), dict(other))
    assert by_times[6]["x"].tolist() == [6, 6, 9]
    # Times of an hour as float32 are 0.2 ms off, and their mean step is right.
    runs = run_of(lengths)
    times = (np.arange(len(runs)) - np.flatnonzero(np.diff(runs, prepend=-1))[runs]) / 10
    rate = find_rate(cut_series(runs, "run"), times.astype(np.float32), "t")
    assert row_offsets({"x": [1600.3]}, rate)["x"] == [16003]


def test_windows_satisfy_the_protocol_of_sources(tmp_path):
    rows = samples((3, 8, 1, 5))
    columns = {name: [row[name] for row in rows] for name in ("run", "x", "name", "timestamp")}
    values = np.concatenate([row["v"] for row in rows])
    columns["v"] = pa.FixedSizeListArray.from_arrays(pa.array(values), 2)
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4)
    of_table = sw.windows(sw.parquet(tmp_path / "t.parquet"), by="run",
                          deltas={"v": [-0.1, 0], "name": [0, 0.1]})  # fmt: skip
    check_source(of_table.source)
    assert of_table[3]["name"] == ["row 3", "row 4"]
    check_source(windowed((3, 8, 1, 5), {"v": [-0.1, 0], "name": [0, 0.1]}).source)


class Table:
    """A source of arrays that counts its reads."""

    default_shuffle = "full"
    fields = ("run", "timestamp", "action", "state", "other")

    def __init__(self, lengths):
        rows = np.arange(sum(lengths))
        firsts = np.concatenate([[0], np.cumsum(lengths)])[run_of(lengths)]
        self.columns = {"run": run_of(lengths), "timestamp": (rows - firsts) / FPS,
                        "action": rows * 2.0, "state": rows * 3.0, "other": rows}  # fmt: skip
        self.traits = SourceTraits(
            value_fields=self.fields,
            layouts={name: ((), column.dtype) for name, column in self.columns.items()},
        )
        self.manifest = MemorySource([{"a": b""}] * len(rows)).manifest
        self.reads = []

    def read(self, ids, fields=None):
        names = self.fields if fields is None else fields
        self.reads.append((len(ids), names))
        return Columns(ids, [str(i) for i in ids], {n: self.columns[n][ids] for n in names})


def test_a_batch_is_one_read_of_each_row_once():
    source = Table((40, 60))
    ds = sw.windows(sw.Dataset(source), by="run",
                    deltas={"action": [i / FPS for i in range(8)], "state": [-0.1, 0]})  # fmt: skip
    source.reads.clear()
    with sw.DataLoader(ds, batch_size=50, num_workers=0, num_threads=2, output="numpy") as loader:
        batches = list(loader)
    assert len(source.reads) == 2
    # The first batch: 10 rows of the second series, and 7 after them.
    assert source.reads[0][0] == 57
    for n in range(100):
        batch = {name: column[n % 50] for name, column in batches[n // 50].items()}
        low, high = (0, 39) if n < 40 else (40, 99)
        assert batch["action"].tolist() == [2 * min(n + i, high) for i in range(8)]
        assert batch["state"].tolist() == [3 * max(n - 1, low), 3 * n]
        assert batch["other"] == n


def test_decoders_run_for_the_rows_of_their_own_deltas():
    seen = []

    def number(data):
        seen.append(int(bytes(data)))
        return seen[-1]

    rows = [{"run": b"0", "n": str(n).encode(), "m": str(n).encode()} for n in range(20)]
    ds = sw.Dataset(MemorySource(rows)).decode(run=int, n=number, m=int)
    window = sw.windows(ds, by="run", deltas={"n": [0, 1], "m": list(range(9))}, fps=1)
    with sw.DataLoader(window, batch_size=5, num_threads=0, output="numpy") as loader:
        batches = list(loader)
    assert batches[1]["n"].tolist() == [[n, n + 1] for n in range(5, 10)]
    # Each batch of five decodes six rows, and not the thirteen that "m" needs.
    assert len(seen) == 6 * 3 + 5


def test_a_subset_is_rows_too():
    part = sw.wrap(samples((6, 6))).subset([8, 9, 10, 1, 2])
    window = sw.windows(part, by="run", deltas={"x": [-1, 0, 1]}, fps=1)
    assert [sample["x"].tolist() for sample in window] == [
        [8, 8, 9], [8, 9, 10], [9, 10, 10], [1, 1, 2], [1, 2, 2],
    ]  # fmt: skip
    assert window[0]["x.mask"].tolist() == [False, True, True]
    window = window.map(lambda sample: {"run": sample["run"], "y": sample["x"] * 10})
    assert window[1]["y"].tolist() == [80, 90, 100]
    with pytest.raises(ValueError, match=r"windows\(\) after map\(\)"):
        sw.windows(part.map(dict), by="run", deltas={"x": [0]}, fps=1)


def test_keyed_decoders_follow_the_row_and_the_epoch():
    def noisy(value, rng):
        return int(rng.integers(1 << 40))

    ds = sw.wrap(samples((4, 4))).decode(x=noisy)
    window = sw.windows(ds, by="run", deltas={"x": [0, 1]}, fps=1)
    ids = np.arange(8)
    epochs = [np.stack(window.load(ids, epoch=epoch, seed=3)["x"]) for epoch in (0, 1)]
    assert epochs[0][0, 1] == epochs[0][1, 0]
    assert (epochs[0] != epochs[1]).all()


def test_what_is_no_array_is_a_list_and_what_is_lacking_stays_so():
    rows = [{"run": 0, "n": [n] * n, "text": "abc"[n]} for n in range(3)]
    rows[2] |= {"n": None}
    window = sw.windows(sw.wrap(rows), by="run", deltas={"n": [0, 1], "text": [0, 1]}, fps=1)
    assert window[0]["n"] == [[], [1]]
    assert window[0]["text"] == ["a", "b"]
    assert "n" not in window[1]


def test_an_error_names_the_row():
    source = MemorySource([{"run": b"0", "n": str(n).encode()} for n in range(10)])
    ds = sw.Dataset(source).decode(run=int, n=int)
    window = sw.windows(ds, by="run", deltas={"n": [0, 2]}, fps=1)
    source.fail_at(6)
    with pytest.raises(DataError, match="damaged") as caught:
        window.load(np.array([1, 4, 5]))
    assert (caught.value.key, caught.value.index) == ("000006", 6)
    with sw.DataLoader(
        window, batch_size=10, on_error="skip", num_threads=0, output="numpy"
    ) as loader:
        [batch] = loader
        assert batch["__index__"].tolist() == [0, 1, 2, 3, 5, 7, 8, 9]


def test_a_run_resumes_on_other_ranks():
    ds = windowed((7, 1, 13, 9), {"x": [-1, 0, 4]}, fps=1)
    seen, state = [], None
    for world_size, num_batches in ((2, 3), (3, 99)):
        states = []
        for rank in range(world_size):
            with sw.DataLoader(ds, batch_size=2, shuffle=True, seed=5, rank=rank, num_threads=0,
                               world_size=world_size, remainder="uneven") as loader:  # fmt: skip
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                for number, batch in enumerate(loader, 1):
                    seen += batch["__index__"].tolist()
                    if number == num_batches:
                        break
                states.append(loader.state_dict())
        state = states[0]
    assert sorted(seen) == list(range(30))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"by": "nothing"}, ValueError, "no field 'nothing'"),
        ({"deltas": {"y": [0]}}, ValueError, "deltas: no field 'y'"),
        ({"deltas": {"x": []}}, ValueError, "a list of seconds"),
        ({"deltas": {"x": 0.1}}, ValueError, "a list of seconds"),
        ({"deltas": {"x": [float("nan")]}}, ValueError, "a list of seconds"),
        ({"deltas": {"x": [1e300]}}, ValueError, "a list of seconds"),
        ({"deltas": {"x": [0, 0.15]}}, ValueError, "0.15 s lies between two rows"),
        ({"deltas": ["x"]}, TypeError, "a dict"),
        ({"fps": 0}, ValueError, "fps=0"),
        ({"fps": "time"}, ValueError, "no field 'time'.*rows per second"),
        ({"fps": "x"}, ValueError, "lies between"),
        ({"fps": "run"}, ValueError, "not a constant time"),
        ({"fps": "name"}, ValueError, "fps='name'.*not a constant time"),
    ],
)
def test_wrong_arguments_are_named(options, error, words):
    ds = sw.wrap(samples((4, 3)))
    with pytest.raises(error, match=words):
        sw.windows(ds, **({"by": "run", "deltas": {"x": [0, 0.1]}} | options))


def test_rows_of_a_series_that_are_apart_are_refused():
    rows = sw.wrap([{"run": run, "x": 0} for run in (0, 0, 1, 0)])
    with pytest.raises(ValueError, match=r"by='run'.*rows of 0 are not neighbours"):
        sw.windows(rows, by="run", deltas={"x": [0]}, fps=1)
    two = sw.concat([sw.wrap(samples((2, 2)))] * 2)
    with pytest.raises(ValueError, match=r"concat\(\) windows"):
        sw.windows(two, by="run", deltas={"x": [0]})
    both = sw.concat([windowed((2, 2), {"x": [0, 0.1]})] * 2)
    assert [sample["x"].tolist() for sample in both][3:5] == [[3, 3], [0, 1]]


def test_kept_columns_are_of_their_own_deltas(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pq.write_table(pa.table({"run": [0] * 5, "x": list(range(5))}), tmp_path / "t.parquet")
    rows = sw.parquet(tmp_path / "t.parquet")
    for delta in (1, 2, 1):
        ds = sw.windows(rows, by="run", deltas={"x": [0, delta]}, fps=1)
        last = ds.column("last", lambda sample: int(sample["x"][-1]))
        assert last.tolist() == [min(n + delta, 4) for n in range(5)]


def test_values_that_rows_lack_are_masked_in_windows_too():
    rows = sw.wrap([{"run": 0, "x": b"\1"}, {"run": 0, "x": None}, {"run": 0, "x": b"\2"}])
    rows = rows.decode(x=sw.optional(sw.array("u1", (1,))))
    window = sw.windows(rows, by="run", deltas={"x": [-1, 0]}, fps=1)
    with sw.DataLoader(window, batch_size=3, num_threads=0, output="numpy") as loader:
        (batch,) = loader
    assert batch["x"].tolist() == [[[1], [1]], [[1], [0]], [[0], [2]]]
    assert batch["x.mask"].tolist() == [[False, True], [True, False], [False, True]]


def test_a_mask_may_not_hide_a_field():
    with pytest.raises(ValueError, match=r"'x\.mask'"):
        sw.windows(sw.wrap([{"run": 0, "x": 1, "x.mask": 2}]), by="run", deltas={"x": [0]}, fps=1)
    with pytest.raises(TypeError, match="mix"):
        sw.windows(sw.mix({"a": (sw.wrap([{"x": 1}]), 1)}), by="x", deltas={"x": [0]}, fps=1)


def test_no_rows_have_no_windows():
    empty = sw.wrap(samples((2,))).subset([])
    window = sw.windows(empty, by="run", deltas={"x": [0]}, fps=1)
    assert len(window) == 0
    with pytest.raises(ValueError, match="not a constant time"):
        sw.windows(empty, by="run", deltas={"x": [0]})
