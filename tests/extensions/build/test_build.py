"""`sw.build`: what a shard holds, and what a directory says of itself."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.extensions.build.place import Place
from shardwise.storage.write import upload
from tests.extensions.build.test_kills import shards_of
from tests.support.tars import make_shards


def items(count: int) -> list[dict[str, object]]:
    return [{"__key__": f"{n:05d}", "cls": n} for n in range(count)]


def numbers_of(directory: Path) -> list[int]:
    return [sample["cls"] for sample in sw.tar(f"{directory}/manifest.swm").decode(cls=int)]


def keep_even(sample: dict[str, object]) -> bool:
    return int(sample["cls"]) % 2 == 0


def build(
    directory: Path, source: object = None, suffix: str = ".tar", **options: object
) -> dict[str, object]:
    options = {"samples_per_shard": 8, "num_workers": 0, **options}
    source = items(50) if source is None else source
    return sw.build(source, directory / f"{{shard:02d}}{suffix}", **options)


def test_shards_hold_runs_of_the_order_and_a_filter_moves_no_sample_to_another_shard(tmp_path):
    build(tmp_path / "all", order="full", seed=3)
    report = build(tmp_path / "even", order="full", seed=3, filter=keep_even)
    assert (report["in"], report["out"], report["filtered"]) == (50, 25, 25)
    every = sw.tar(f"{tmp_path}/all/manifest.swm").decode(cls=int)
    assert every.shard_sizes.tolist() == [8] * 6 + [2]
    assert sorted(numbers_of(tmp_path / "all")) == list(range(50))
    assert numbers_of(tmp_path / "all") != list(range(50))
    for path in sorted((tmp_path / "even").glob("*.tar")):
        whole = [s["cls"] for s in sw.tar(str(tmp_path / "all" / path.name)).decode(cls=int)]
        there = [s["cls"] for s in sw.tar(str(path)).decode(cls=int)]
        assert there == [number for number in whole if number % 2 == 0]


@pytest.mark.parametrize(
    "order", [*(pytest.param(each, marks=pytest.mark.long) for each in (None, "window")), "full"]
)
def test_every_order_holds_each_sample_once_and_is_the_same_with_processes(tmp_path, order):
    build(tmp_path / "a", order=order, seed=1)
    build(tmp_path / "b", order=order, seed=1, num_workers=2)
    assert shards_of(tmp_path / "a") == shards_of(tmp_path / "b")
    assert sorted(numbers_of(tmp_path / "a")) == list(range(50))
    assert (numbers_of(tmp_path / "a") == list(range(50))) == (order is None)


def test_a_map_gives_one_sample_or_none_or_several(tmp_path):
    def fan(sample):
        number = sample["cls"]
        return [None, {"cls": number}, [{"cls": number}, {"cls": -number}], []][number % 4]

    report = build(tmp_path, map=fan)
    assert (report["out"], report["filtered"]) == (13 + 2 * 12, 13 + 12)
    keys = [sample["__key__"] for sample in sw.tar(f"{tmp_path}/manifest.swm")]
    assert keys[:4] == ["00001", "00002-000", "00002-001", "00005"]


def test_a_shard_of_which_nothing_is_left_is_not_written(tmp_path):
    report = build(tmp_path, filter=lambda sample: sample["cls"] >= 16)
    assert report["shards"] == 5
    assert sorted(path.name for path in tmp_path.glob("*.tar"))[0] == "02.tar"
    assert len(sw.tar(f"{tmp_path}/manifest.swm")) == 34
    assert build(tmp_path / "none", filter=lambda sample: False)["manifest"] is None


def test_a_generator_belongs_to_its_input_whatever_the_order(tmp_path):
    def noisy(sample, rng):
        return {"bin": rng.bytes(8)}

    build(tmp_path / "a", map=noisy)
    build(tmp_path / "b", map=noisy, order="full")
    a, b = (
        {s["__key__"]: s["bin"] for s in sw.tar(f"{tmp_path}/{each}/manifest.swm")}
        for each in ("a", "b")
    )
    assert a == b
    assert len(set(a.values())) == 50


def test_a_dataset_is_written_as_it_is_stored(tmp_path):
    urls = make_shards(tmp_path / "in", [7, 0, 9])
    report = build(tmp_path / "out", sw.tar(urls), samples_per_shard=5)
    assert report["out"] == 16
    assert list(sw.tar(f"{tmp_path}/out/manifest.swm")) == list(sw.tar(urls))


def test_sizes_by_bytes_follow_the_mean_of_the_inputs(tmp_path):
    urls = make_shards(tmp_path / "in", [40])
    size = Path(urls[0]).stat().st_size
    report = build(
        tmp_path / "out", sw.tar(urls), samples_per_shard=None, bytes_per_shard=size // 4
    )
    assert 4 <= report["shards"] <= 5
    with pytest.raises(ValueError, match="give samples_per_shard"):
        build(tmp_path / "x", samples_per_shard=None, bytes_per_shard=1000)


def test_what_is_there_is_kept_and_what_is_gone_is_made_again(tmp_path):
    build(tmp_path)
    before = shards_of(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.tar")}
    (tmp_path / "03.tar").unlink()
    (tmp_path / "05.tar.swi").unlink()
    build(tmp_path)
    assert shards_of(tmp_path) == before
    changed = {path.name for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert changed == {"03.tar", "05.tar"}
    assert numbers_of(tmp_path) == list(range(50))


def test_a_file_of_another_program_that_goes_meanwhile_is_no_error(tmp_path, monkeypatch):
    build(tmp_path)
    scandir = os.scandir

    @contextmanager
    def listed(path):
        with scandir(path) as entries:
            found = list(entries)
        (tmp_path / "other").unlink()
        yield found

    (tmp_path / "other").touch()
    monkeypatch.setattr(os, "scandir", listed)
    assert {"00.tar", "build.json"} < Place(str(tmp_path), None).sizes().keys()


@pytest.mark.parametrize("suffix", [".tar", ".parquet"])
def test_a_shard_that_was_cut_is_named_with_both_sizes(tmp_path, suffix):
    build(tmp_path, suffix=suffix)
    shard = tmp_path / f"03{suffix}"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    text = rf"03{suffix}' has {len(whole) - 100} bytes, and the build wrote {len(whole)}: remove it"
    with pytest.raises(sw.StateError, match=text):
        build(tmp_path, suffix=suffix)
    shard.unlink()
    for _ in range(2):
        build(tmp_path, suffix=suffix)
        assert shard.read_bytes() == whole


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"map": lambda sample: {"cls": 1}}, "functions: '"),
        ({"seed": 1, "order": "full"}, "order: None there, 'full' now"),
        ({"samples_per_shard": 9}, "samples_per_shard: 8 there, 9 now"),
        ({"source": items(49)}, "num_inputs: 50 there, 49 now"),
        ({"source": [*items(49), {"__key__": "x", "cls": 1}]}, "input: '"),
    ],
)
def test_another_recipe_or_input_over_old_output_is_refused_with_both_named(
    tmp_path, options, named
):
    build(tmp_path)
    before = shards_of(tmp_path)
    with pytest.raises(sw.StateError, match="holds the output of another build") as caught:
        build(tmp_path, **options)
    assert named in str(caught.value)
    assert shards_of(tmp_path) == before


def test_a_list_of_other_paths_is_another_input(tmp_path):
    def named(path):
        return {"txt": path.name}

    build(tmp_path, source=[Path("a"), Path("b")], map=named)
    with pytest.raises(sw.StateError, match="input: '"):
        build(tmp_path, source=[Path("a"), Path("c")], map=named)


def test_shards_that_no_build_made_are_not_overwritten(tmp_path):
    with sw.TarWriter(tmp_path / "00.tar") as writer:
        writer.write({"__key__": "mine", "txt": "1"})
    with pytest.raises(sw.StateError, match=r"no build\.json says"):
        build(tmp_path)
    assert len(sw.tar(tmp_path / "00.tar")) == 1


def failing(sample):
    if sample["cls"] % 10 == 7:
        raise KeyError("caption")
    return {"cls": sample["cls"]}


def test_corrected_functions_go_on_in_a_directory_where_nothing_was_made(tmp_path):
    with pytest.raises(sw.DataError, match="caption"):
        build(tmp_path, map=failing, samples_per_shard=50)
    build(tmp_path, map=lambda sample: {"cls": sample["cls"]}, samples_per_shard=50)
    assert numbers_of(tmp_path) == list(range(50))
    with pytest.raises(sw.DataError, match="caption"):
        build(tmp_path / "other", map=failing, samples_per_shard=7)
    with pytest.raises(sw.StateError, match="another build"):
        build(tmp_path / "other", samples_per_shard=7)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_names_the_key_the_function_and_the_users_line(tmp_path, num_workers):
    with pytest.raises(sw.DataError, match="failing raised KeyError: 'caption'") as caught:
        build(tmp_path, map=failing, num_workers=num_workers)
    assert caught.value.key in {"00007", "00017", "00027", "00037", "00047"}
    assert "test_build.py:" in str(caught.value)
    assert "in failing" in str(caught.value)


def test_recorded_errors_are_listed_and_counted_and_can_be_retried(tmp_path):
    report = build(tmp_path, map=failing, on_error="record")
    assert report["failed"] == {"KeyError": 5}
    rows = pq.read_table(report["errors"]).to_pylist()
    assert [row["key"] for row in rows] == ["00007", "00017", "00027", "00037", "00047"]
    assert rows[0]["reason"] == "KeyError: 'caption'"
    assert "in failing" in rows[0]["where"]
    before = shards_of(tmp_path)

    def better(sample):
        if sample["cls"] == 47:
            raise OSError("still not there")
        return {"cls": sample["cls"]}

    report = build(tmp_path, map=better, retry_errors=True)
    assert (report["in"], report["out"], report["failed"]) == (50, 49, {"OSError": 1})
    assert before.items() <= shards_of(tmp_path).items()
    assert sorted(set(shards_of(tmp_path)) - set(before)) == [
        "00-r1.tar", "02-r1.tar", "03-r1.tar", "04-r1.tar"
    ]  # fmt: skip
    report = build(tmp_path, map=keep_all, retry_errors=True)
    assert (report["out"], report["failed"], report["errors"]) == (50, {}, None)
    assert sorted(numbers_of(tmp_path)) == list(range(50))
    assert not (tmp_path / "errors.parquet").exists()
    assert not (tmp_path / ".build").exists()
    # Nothing is left to retry.
    assert build(tmp_path, map=keep_all, retry_errors=True)["out"] == 50


def keep_all(sample):
    return {"cls": sample["cls"]}


def test_a_damaged_input_is_an_error_of_its_own(tmp_path):
    (url,) = make_shards(tmp_path / "in", [6])
    damaged = sw.tar(url).decode(cls=lambda data: 1 // (int(data) % 3))
    with pytest.raises(sw.DataError, match=url):
        build(tmp_path / "raised", damaged)
    report = build(tmp_path / "recorded", damaged, on_error="record")
    assert (report["out"], report["failed"]) == (4, {"DataError": 2})
    assert pq.read_table(report["errors"]).column("url").to_pylist() == [url, url]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"cls": 1j}, "can't write a complex"),
        ({"__key__": "00001", "cls": 0}, "is in this shard already"),
        (3, "returned what is a int, no sample"),
        ({}, "has no field"),
    ],
)
def test_what_is_no_sample_fails_alone(tmp_path, sample, reason):
    def odd(each):
        return sample if each["cls"] == 5 else {"cls": each["cls"]}

    report = build(tmp_path / "recorded", map=odd, on_error="record")
    assert report["out"] == 49
    (row,) = pq.read_table(report["errors"]).to_pylist()
    assert (row["index"], reason in row["reason"]) == (5, True), row
    with pytest.raises(sw.DataError, match=reason):
        build(tmp_path / "raised", map=odd)


def test_parquet_shards_hold_values_and_keep_their_types(tmp_path):
    def row(sample):
        number = sample["cls"]
        return {"n": number, "x": number / 2, "name": f"é{number}", "v": np.arange(3), "b": b"\0"}

    pattern = f"{tmp_path}/{{shard}}.parquet"
    report = sw.build(items(20), pattern, map=row, samples_per_shard=6, num_workers=0)
    assert report["shards"] == 4
    ds = sw.parquet(str(tmp_path))
    assert len(ds) == 20
    sample = ds[7]
    assert (sample["n"], sample["x"], sample["name"], sample["b"]) == (7, 3.5, "é7", b"\0")
    assert list(sample["v"]) == [0, 1, 2]
    assert sorted(os.listdir(tmp_path)) == [*(f"{n}.parquet" for n in range(4)), "build.json"]


def test_a_table_for_a_store_has_no_name_here_so_that_a_kill_leaves_nothing(tmp_path, monkeypatch):
    names = []

    def uploaded(url, source, *, options):
        names.append(os.listdir(tmp_path))
        upload(url, source, options=options)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("shardwise.extensions.build.shard.upload", uploaded)
    report = sw.build(items(9), "memory://tables/{shard}.parquet", num_workers=0)
    assert (names, report["shards"]) == ([[]], 1)
    assert len(sw.parquet("memory://tables/0.parquet")) == 9


def test_the_report_is_kept_in_build_json(tmp_path):
    report = build(tmp_path)
    kept = json.loads((tmp_path / "build.json").read_text())
    assert kept["is_complete"] is True
    assert {**report, "seconds": None} == {**kept["report"], "seconds": None}
    assert {**build(tmp_path), "seconds": None} == {**report, "seconds": None}


@pytest.mark.parametrize(
    ("pattern", "options", "error", "message"),
    [
        ("x/{shard}.zip", {}, ValueError, "must end in '.tar' or '.parquet'"),
        ("x/one.tar", {}, ValueError, "must have the shard's number"),
        ("{shard}/a.tar", {}, ValueError, "in its name"),
        ("x/{number}.tar", {}, ValueError, "no other braces"),
        ("x/{shard}.tar", {"order": "random"}, ValueError, "order='random'"),
        ("x/{shard}.tar", {"on_error": "skip"}, ValueError, "on_error='skip'"),
        ("x/{shard}.tar", {"samples_per_shard": 0}, ValueError, "samples_per_shard"),
        ("x/{shard}.tar", {"num_workers": -1}, ValueError, "num_workers"),
        ("x/{shard}.tar", {"map": 3}, TypeError, "map=3"),
        ("x/{shard}.tar", {"source": iter([])}, TypeError, "make a list"),
        ("x/{shard}.tar", {"source": "train"}, TypeError, "give a dataset"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(tmp_path, monkeypatch, pattern, options, error, message):
    monkeypatch.chdir(tmp_path)
    options = {"source": items(3), "num_workers": 0, **options}
    with pytest.raises(error, match=message):
        sw.build(options.pop("source"), pattern, **options)
    assert not list(tmp_path.iterdir())


def test_an_output_directory_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(sw.StorageError, match=r"output directory '.*file/out': Not a directory"):
        sw.build(items(3), f"{tmp_path}/file/out/{{shard}}.tar", num_workers=0)


def test_shards_among_those_that_they_are_made_of_are_refused(tmp_path, monkeypatch):
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(ValueError, match="would read each sample twice"):
        sw.build(sw.tar("manifest.swm"), f"{tmp_path}/new-{{shard}}.tar", num_workers=0)
    assert set(tmp_path.iterdir()) == before
    sw.build(sw.tar("manifest.swm"), "new/{shard}.tar", num_workers=0)


def test_a_function_that_no_process_can_get_is_refused_by_name(tmp_path):
    file = (tmp_path / "x").open("wb")
    with file, pytest.raises(TypeError, match="can't be sent to worker processes"):
        build(tmp_path / "out", map=lambda sample: file, num_workers=1)
