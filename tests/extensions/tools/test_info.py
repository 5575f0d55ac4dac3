"""`shardwise info`: counts, sizes and the state of the index; it writes nothing."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import document, run
from tests.support.tars import make_shards, write_tar


def test_counts_and_sizes_are_those_of_the_data(tmp_path):
    write_tar(tmp_path / "a.tar", [("1.txt", b"x"), ("1.cls", b"12"), ("2.txt", b"xxxxx")])
    write_tar(tmp_path / "b.tar", [("3.txt", b""), ("4.txt", b"xx")])
    found = document("info", tmp_path)
    assert (found["num_shards"], found["num_samples"]) == (2, 4)
    assert found["num_bytes"] == sum(p.stat().st_size for p in tmp_path.glob("*.tar"))
    assert found["fields"] == [
        {"name": "txt", "num_samples": 4, "min_bytes": 0, "median_bytes": 1.5, "max_bytes": 5,
         "num_bytes": 8},
        {"name": "cls", "num_samples": 1, "min_bytes": 2, "median_bytes": 2.0, "max_bytes": 2,
         "num_bytes": 2},
    ]  # fmt: skip


def test_a_look_writes_nothing(tmp_path):
    paths = make_shards(tmp_path, [3, 2])
    run("info", tmp_path, "--shards")
    assert sorted(map(str, tmp_path.iterdir())) == paths


def test_the_state_of_each_index_is_told(tmp_path):
    paths = make_shards(tmp_path, [1, 2, 3, 4])
    run("index", *paths[1:])
    with open(paths[2], "ab") as file:
        file.write(bytes(512))
    Path(paths[3] + ".swi").write_bytes(b"no index")
    found = document("info", tmp_path, exit_code=1)
    states = [shard["index_state"] for shard in found["shards"]]
    assert states == ["missing", "fresh", "stale", "damaged"]
    assert [shard["num_samples"] for shard in found["shards"]] == [1, 2, 3, 4]
    written = run("info", tmp_path, exit_code=1).stdout
    assert "beside the shards: 1 missing, 1 fresh, 1 stale, 1 damaged" in written
    assert "2 indexes do not fit, and reading refuses that" in written
    run("doctor", tmp_path, exit_code=1)
    run("info", paths[0], paths[1])
    run("doctor", paths[0], paths[1])
    assert "1 index to make" in written


def test_indexes_elsewhere_are_found_where_they_are(tmp_path):
    make_shards(tmp_path / "data", [2])
    run("index", tmp_path / "data", "--index", tmp_path / "made", "--digests")
    assert document("info", tmp_path / "data")["index"]["states"] == {"missing": 1}
    result = run("info", tmp_path / "data", "--index", tmp_path / "made")
    assert f"in {tmp_path / 'made'}: 1 fresh, 1 with digests" in result.stdout


def test_members_that_are_no_fields_are_counted(tmp_path):
    write_tar(tmp_path / "a.tar", [("README", b"x"), ("1.txt", b"x")])
    found = document("info", tmp_path)
    assert sum(found["ignored_members"].values()) == 1
    assert "left out" in run("info", tmp_path).stdout


def test_shards_without_samples_have_no_fields_and_are_no_error(tmp_path):
    make_shards(tmp_path, [0])
    found = document("info", tmp_path)
    assert found["num_samples"] == 0
    assert found["fields"] == []
    assert "0" in run("info", tmp_path).stdout


def test_a_missing_shard_is_an_error_that_names_it(tmp_path):
    result = run("info", tmp_path / "gone.tar", exit_code=1)
    assert str(tmp_path / "gone.tar") in result.stderr
    assert result.stdout == ""


def test_the_sizes_of_fields_are_drawn(tmp_path):
    members = [(f"{n}.{field}", bytes(size)) for n in range(30)
               for field, size in (("txt", n + 1), ("jpg", 10 ** (n % 5)))]  # fmt: skip
    write_tar(tmp_path / "a.tar", members)
    run("info", tmp_path, "--plot", tmp_path / "sizes.svg")
    drawn = (tmp_path / "sizes.svg").read_text()
    assert "<svg" in drawn
    run("info", tmp_path, "--plot", tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")
    write_tar(tmp_path / "empty.tar", [])
    run("info", tmp_path / "empty.tar", "--plot", tmp_path / "none.png")
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n')
    for data, target, message in (
        (tmp_path, "x.doc", "the name must end in one of"),
        (tmp_path, "nowhere/x.png", "there is no directory"),
        (tmp_path / "rows.jsonl", "x.png", "only tar shards"),
    ):
        said = run("info", data, "--plot", tmp_path / target, exit_code=2).stderr
        assert message in " ".join(said.replace("│", " ").split())
