"""Builds into an object store: whole objects, no leftovers, and the state in the store."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import shardwise as sw
from shardwise.extensions.remote.remote_file import RemoteFile
from shardwise.storage import StorageOptions, read_whole
from tests.extensions.build.program import run
from tests.support.servers import S3Server
from tests.support.waiting import wait_for

GUARD_S = 120
PROGRAM = """
import json, sys
from tests.extensions.build.program import run
if __name__ == "__main__":
    run(sys.argv[1], 2, storage=json.loads(sys.argv[2]))
"""


def names_in(s3: S3Server, prefix: str) -> set[str]:
    file = RemoteFile(s3.url(prefix), StorageOptions(config=s3.config))
    names = file.names(f"{prefix}/", delimiter=False)
    return {name.removeprefix(f"{prefix}/") for name in names if not name.endswith("/")}


def shards_in(s3: S3Server, prefix: str) -> dict[str, bytes]:
    options = StorageOptions(config=s3.config)
    return {
        name: read_whole(s3.url(f"{prefix}/{name}"), options=options)
        for name in sorted(names_in(s3, prefix))
        if name.endswith(".tar")
    }


def kill_when(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: process.poll() is not None or condition(), every_s=0.03)
    process.kill()
    process.wait()


def test_a_build_into_a_store_makes_the_bytes_of_a_local_one_and_leaves_nothing(s3, tmp_path):
    local = tmp_path / "local"
    run(f"{local}/{{shard:03d}}.tar", 0)
    report = run(s3.url("whole/{shard:03d}.tar"), 2, storage=s3.config)
    assert shards_in(s3, "whole") == {p.name: p.read_bytes() for p in sorted(local.glob("*.tar"))}
    assert names_in(s3, "whole") == {path.name for path in local.iterdir()}
    assert report["manifest"] == s3.url("whole/manifest.swm")
    ds = sw.tar(report["manifest"], storage=s3.config)
    assert list(ds) == list(sw.tar(f"{local}/manifest.swm"))
    again = run(s3.url("whole/{shard:03d}.tar"), 0, storage=s3.config)
    assert {**again, "seconds": 0} == {**report, "seconds": 0}
    with pytest.raises(sw.StateError, match="holds the output of another build"):
        sw.build(range(3), s3.url("whole/{shard:03d}.tar"), storage=s3.config, num_workers=0)


def test_a_build_into_a_store_that_was_killed_ends_in_the_same_bytes(s3, tmp_path):
    local = tmp_path / "local"
    run(f"{local}/{{shard:03d}}.tar", 0)
    rng, pattern = random.Random(1), s3.url("killed/{shard:03d}.tar")
    goal = rng.randint(1, 30)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, pattern, json.dumps(s3.config)])
    kill_when(lambda: len(names_in(s3, "killed")) >= goal, process)
    run(pattern, 0, storage=s3.config)
    assert shards_in(s3, "killed") == {
        path.name: path.read_bytes() for path in sorted(local.glob("*.tar"))
    }
    assert names_in(s3, "killed") == {path.name for path in local.iterdir()}


ANOTHER: list[Callable[[], object]] = []


def numbered(item: int) -> dict[str, int]:
    """A sample; one of them is made while another builder runs."""
    if item == 25 and ANOTHER:
        ANOTHER.pop()()
    return {"cls": item}


def test_two_builders_of_a_store_at_once_write_the_same_bytes(s3, tmp_path):
    def build(pattern: str) -> dict[str, Any]:
        options = {"samples_per_shard": 10, "num_workers": 0, "storage": s3.config}
        return {**sw.build(range(40), pattern, map=numbered, **options), "seconds": 0}

    local = tmp_path / "local"
    build(f"{local}/{{shard:03d}}.tar")
    # The second one begins after two shards of the first and ends before its third.
    reports = []
    ANOTHER.append(lambda: reports.append(build(s3.url("both/{shard:03d}.tar"))))
    reports.append(build(s3.url("both/{shard:03d}.tar")))
    assert len(reports) == 2
    assert reports[0] == reports[1]
    assert shards_in(s3, "both") == {p.name: p.read_bytes() for p in local.glob("*.tar")}
    assert names_in(s3, "both") == {path.name for path in local.iterdir()}


LARGE = """
import json, sys
import shardwise as sw
def large(item):
    return {"bin": bytes([item % 251]) * (1 << 20)}
sw.build(range(30), sys.argv[1], map=large, samples_per_shard=10, num_workers=0,
         storage=json.loads(sys.argv[2]))
"""


@pytest.mark.long
def test_a_kill_leaves_no_parts_of_large_shards_since_each_is_one_request(s3):
    pattern = s3.url("large/{shard}.tar")
    command = [sys.executable, "-c", LARGE, pattern, json.dumps(s3.config)]
    kill_when(lambda: "0.tar" in names_in(s3, "large"), subprocess.Popen(command))
    subprocess.run(command, check=True, timeout=GUARD_S)
    shards = {f"{number}.tar" for number in range(3)}
    indexes = {f"{name}.swi" for name in shards}
    assert names_in(s3, "large") == shards | indexes | {"build.json", "manifest.swm"}
    puts = [seen["path"] for seen in s3.requests() if "/large/" in seen["path"]]
    assert not [path for path in puts if "upload" in path.lower()]


def test_parquet_shards_and_errors_go_into_a_store(s3):
    pattern = s3.url("tables/{shard}.parquet")
    report = sw.build(
        [{"n": n} for n in range(9)],
        pattern,
        map=lambda item: {"n": 10 // item["n"]},
        samples_per_shard=4,
        num_workers=0,
        on_error="record",
        storage=s3.config,
    )
    assert report["failed"] == {"ZeroDivisionError": 1}
    assert names_in(s3, "tables") == {
        "0.parquet", "1.parquet", "2.parquet", "build.json", "errors.jsonl"
    }  # fmt: skip
    assert len(sw.parquet(s3.url("tables/"), storage=s3.config)) == 8
