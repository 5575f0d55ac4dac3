"""`column`: one value a sample, made once, kept, and made anew when something changes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

import shardwise as sw
from tests.support.python_code import printed_by, run_code
from tests.support.waiting import wait_for

NUM = 50


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "data")
    return tmp_path / "data"


def write(folder: Path, *, add: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    with sw.TarWriter(str(folder / "{shard}.tar"), max_samples=20, overwrite=True) as writer:
        for i in range(NUM):
            document = {"n": 10 + i + add, "deep": {"text": "x" * (i % 3)}}
            writer.write({"__key__": f"k{i:02d}", "cls": i % 7, "json": document, "bin": b"ab"})


def kept(folder: Path) -> list[Path]:
    return sorted((folder / ".shardwise").glob("*.swc"))


def test_a_field_a_member_of_json_and_the_keys_are_columns(shards):
    ds = sw.tar(shards)
    assert ds.column("cls").tolist() == [i % 7 for i in range(NUM)]
    assert ds.column("cls").dtype == np.int64
    assert ds.decode(cls=float).column("cls").dtype == np.float64
    assert ds.column("json.n").tolist() == list(range(10, 10 + NUM))
    assert ds.column("json.deep.text")[2] == "xx"
    assert ds.column("__key__").tolist() == [f"k{i:02d}" for i in range(NUM)]
    subset = ds.subset([7, 3]).map(lambda s: {"twice": 2 * int(s["cls"])})
    assert subset.column("twice").tolist() == [0, 6]


def test_a_column_is_made_once_and_read_in_the_next_process(shards):
    calls = []

    def size(sample):
        calls.append(sample["__key__"])
        return len(sample["bin"])

    first = sw.tar(shards).select("bin").column("size", size)
    assert (first == 2).all()
    assert not first.flags.writeable
    assert len(kept(shards)) == 1
    calls.clear()
    # The list is a value that the function holds, so it must be as it was at first.
    again = sw.tar(shards).select("bin").column("size", size)
    assert (again == first).all()
    assert not calls
    program = f"import shardwise as sw; print(sw.tar({str(shards)!r}).column('cls').sum())"
    results = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    sums = [process.communicate()[0].strip() for process in results]
    assert sums == [str(sum(i % 7 for i in range(NUM)))] * 2
    assert len(kept(shards)) == 2, "two processes at a time leave one file"


def test_other_data_another_function_and_another_subset_are_other_columns(shards):
    ds = sw.tar(shards)
    assert ds.column("json.n")[0] == 10
    write(shards, add=5)
    assert sw.tar(shards).column("json.n")[0] == 15, "sizes are alike, times are not"
    ds = sw.tar(shards)
    for factor in (2, 3):
        assert ds.column("x", lambda s, factor=factor: len(s["bin"]) * factor)[0] == 2 * factor
        assert ds.column("x", partial(scaled, factor=factor))[0] == 2 * factor
        assert ds.column("x", Scale(factor))[0] == 2 * factor
    assert len(ds.subset([1, 2]).column("json.n")) == 2


def scaled(sample, factor):
    return len(sample["bin"]) * factor


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, sample):
        return len(sample["bin"]) * self.factor


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_file_is_told_of_and_made_anew(shards, caplog, damage):
    expected = sw.tar(shards).column("cls").tolist()
    (path,) = kept(shards)
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[-20] ^= 1
    path.write_bytes(
        {"cut": data[:-9], "flip": bytes(flipped), "empty": b"", "foreign": b"x" * 500}[damage]
    )
    assert sw.tar(shards).column("cls").tolist() == expected
    assert path.name in caplog.text
    assert "made anew" in caplog.text
    assert path.read_bytes() == data


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_shards_keep_their_columns_in_the_users_cache(shards, tmp_path):
    sw.tar(shards).manifest
    shards.chmod(0o555)
    try:
        sw.tar(shards).column("cls")
    finally:
        shards.chmod(0o755)
    assert list((tmp_path / "cache/shardwise/columns").glob("cls-*.swc"))


def test_a_place_that_cannot_be_written_is_replaced_by_the_users_cache(shards, tmp_path, caplog):
    (shards / ".shardwise").write_text("a file where the directory would be")
    expected = sw.tar(shards).column("cls").tolist()
    assert len(list((tmp_path / "cache/shardwise/columns").glob("cls-*.swc"))) == 1
    assert sw.tar(shards).column("cls").tolist() == expected
    # Where nothing can be written at all, the column is had all the same.
    (tmp_path / "cache/shardwise/columns").rename(tmp_path / "cache/shardwise/other")
    (tmp_path / "cache/shardwise/columns").write_text("")
    assert sw.tar(shards).column("cls").tolist() == expected
    assert "can't be kept" in caplog.text


def test_of_a_wrapped_dataset_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for middle in (1, 2):
        items = [{"n": 0}, {"n": middle}, {"n": 0}, {"n": 0}, {"n": 0}]
        assert sw.wrap(items).column("n").tolist() == [0, middle, 0, 0, 0]
    assert not list(tmp_path.rglob("*.swc"))


@pytest.mark.extension
def test_numbers_of_a_table_keep_their_dtype(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"n": pa.array(range(9), pa.int32()), "t": [f"{i}" for i in range(9)]})
    pq.write_table(table, tmp_path / "a.parquet")
    ds = sw.parquet(tmp_path / "a.parquet")
    assert ds.column("n").dtype == np.int32
    assert ds.column("t").tolist() == [f"{i}" for i in range(9)]
    assert len(list((tmp_path / "cache").rglob("*.swc"))) == 2


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda s: None, "no value"),
        (lambda s: np.zeros(3), r"an array of shape \(3,\)"),
        (lambda s: [1], "is a list"),
        (lambda s: 1 / 0 if s["__key__"] == "k30" else 1, "ZeroDivisionError"),
        (lambda s: "a" if s["__key__"] == "k30" else 1, "'a' is str, others int"),
        (lambda s: 2**70, "64 bits"),
        (lambda s: "a\0", "ends in a NUL"),
        (lambda s: s["nope"], "KeyError"),
    ],
)
def test_a_value_that_is_none_of_a_column_names_the_sample(shards, fn, message):
    with pytest.raises(sw.DataError, match=message) as raised:
        sw.tar(shards).column("x", fn)
    assert raised.value.url.endswith(".tar")
    assert raised.value.key in ("k00", "k30")
    assert not kept(shards), "half a column is not kept"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nope", ValueError, "the fields are 'bin', 'cls', 'json'"),
        ("bin", ValueError, "decode the field"),
        ("json", ValueError, "is a dict"),
        ("json.nope", ValueError, "no value"),
        (3, TypeError, "3"),
    ],
)
def test_a_field_that_is_no_column_is_refused(shards, name, error, message):
    with pytest.raises(error, match=message):
        sw.tar(shards).column(name)


def test_a_name_that_no_map_makes_says_what_there_is(shards):
    with pytest.raises(sw.DataError, match="the samples have '__key__', 'a'") as raised:
        sw.tar(shards).map(lambda s: {"a": 1}).column("b")
    assert raised.value.key == "k00"


def test_progress_counts_to_all_samples_and_nothing_is_printed(shards, capfd):
    seen = []
    sw.tar(shards).column("cls", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (NUM, NUM)
    sw.tar(shards).column("json.n")
    assert capfd.readouterr() == ("", "")


def test_processes_make_the_same_column(shards):
    expected = [2 * len(f"k{i:02d}") for i in range(NUM)]
    assert sw.tar(shards).column("k", key_twice, num_workers=2).tolist() == expected
    with pytest.raises(TypeError, match="pickled"):
        sw.tar(shards).column("l", lambda s: 1, num_workers=2)
    with pytest.raises(ValueError, match="num_workers"):
        sw.tar(shards).column("l", key_twice, num_workers=-1)


def key_twice(sample):
    return 2 * len(sample["__key__"])


def test_a_filter_takes_columns(shards):
    ds = sw.tar(shards).decode(cls=int)
    kept_ones = ds.filter(lambda c: c["n"] >= 40, columns={"n": ds.column("json.n")})
    assert [s["__key__"] for s in kept_ones] == [f"k{i}" for i in range(30, 50)]
    mask = np.arange(NUM) >= 30
    assert kept_ones.fingerprint == ds.filter(mask).fingerprint
    with pytest.raises(ValueError, match="'n' has shape"):
        ds.filter(lambda c: c["n"] > 1, columns={"n": np.zeros(3)})


def test_no_samples_make_an_empty_column():
    assert len(sw.wrap([]).column("n", lambda s: 1)) == 0


def test_a_process_that_is_killed_leaves_no_half_column(shards):
    program = f"""
import os, signal, sys
import shardwise as sw
def size(sample):
    if len(sys.argv) > 1 and sample["__key__"] == "k30":
        os.kill(os.getpid(), signal.SIGKILL)
    return len(sample["bin"])
print(sw.tar({str(shards)!r}).column("size", size, progress=False).sum())
"""
    assert run_code(program, "kill").returncode == -9
    assert not kept(shards)
    assert printed_by(program) == str(2 * NUM)


SLOW = """
import sys, time
from pathlib import Path
import shardwise as sw
def slow(sample):
    Path(sys.argv[2], sample["__key__"]).touch()
    time.sleep(600)
if __name__ == "__main__":
    sw.tar(sys.argv[1]).column("slow", slow, num_workers=2, progress=False)
"""


def test_a_killed_program_leaves_no_process_of_a_column(shards, tmp_path):
    script, begun = tmp_path / "slow.py", tmp_path / "begun"
    script.write_text(SLOW)
    begun.mkdir()
    command = [sys.executable, str(script), str(shards), str(begun)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: any(begun.iterdir()), process=process)
        workers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait(60)
    assert workers
    _, alive = psutil.wait_procs(workers, 60)
    for each in alive:
        each.kill()
    assert not alive


@pytest.mark.parametrize(
    "make",
    [
        lambda data: sw.pack(data, length=4, fields="bin"),
        lambda data: sw.pack(data, length=4, fields="cls", limits={}, lengths=[1] * NUM)
        .select("bin"),
        lambda data: sw.windows(data, by="json", deltas={"bin": [0]}, fps=1),
        lambda data: sw.mix({"a": (data, 1)}),
    ],
)  # fmt: skip
@pytest.mark.extension
def test_columns_know_the_decoders_of_what_samples_are_made_of(shards, make):
    def total(sample):
        return int(np.sum([np.sum(value) for value in sample["bin"]]))

    for factor in (1, 5):
        data = sw.tar(str(shards)).decode(
            cls=lambda raw: [int(raw)],
            json=lambda raw: 0,
            bin=lambda raw, factor=factor: [factor] * len(raw),
        )
        made = make(data)
        assert made.column("total", total).tolist() == list(map(total, made))


def test_columns_by_a_function_know_the_selected_fields(shards):
    data = sw.tar(str(shards))
    assert set(data.column("fields", len)) == {4}
    assert set(data.select("cls").column("fields", len)) == {2}


@pytest.mark.extension
def test_columns_of_packs_of_wrapped_documents_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for factor in (1, 5):
        # The fingerprint is of the first, middle and last one.
        rows = [{"tokens": np.ones(4, int) * (factor if i == 2 else 1)} for i in range(20)]
        packs = sw.pack(sw.wrap(rows), length=4)
        assert packs.column("sum", lambda sample: int(sample["tokens"].sum()))[2] == 4 * factor
