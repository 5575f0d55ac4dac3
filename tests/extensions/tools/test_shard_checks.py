"""Verifying: a sound shard has no problems, and each problem says where it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from shardwise.extensions.tools.shard_checks import verify_shard
from shardwise.sources.tar.index.build import build_index, build_indexes
from shardwise.sources.tar.index.shard_index import ShardIndex, index_path
from tests.support.raw_tars import END, member
from tests.support.tars import make_shards, write_tar


@pytest.mark.parametrize("digests", [False, True, None])
@pytest.mark.parametrize("index", [None, "indexes"])
def test_a_sound_shard_has_no_problems(tmp_path, digests, index):
    urls = make_shards(tmp_path, [5, 0])
    where = None if index is None else tmp_path / index
    if digests is not None:
        build_indexes(urls, digests=digests, index=where)
    assert [verify_shard(url, index=where).problems for url in urls] == [[], []]


def test_an_index_that_says_something_else_is_a_problem(tmp_path):
    here, other = (
        write_tar(tmp_path / f"{i}.tar", [("a.jpg", data), ("b.jpg", b"22")])
        for i, data in enumerate((b"1", b"111"))
    )
    renamed = write_tar(tmp_path / "2.tar", [("a.jpg", b"1"), ("c.jpg", b"22")])
    more = write_tar(tmp_path / "3.tar", [("a.jpg", b"1"), ("a.cls", b"22")])
    stat = os.stat(here)
    for wrong, key, message in (
        (other, "a", r"says 3 bytes at 512, the shard has 1 at 512"),
        (renamed, "b", "sample 1 has the key 'c' in the index and 'b' in the shard"),
        (more, None, r"1 samples with the fields \('jpg', 'cls'\), the shard has 2 with"),
    ):
        index = build_index(wrong)
        header = index.header
        object.__setattr__(header, "mtime_ns", stat.st_mtime_ns)
        object.__setattr__(header, "num_bytes", stat.st_size)
        index.save(index_path(here))
        problem = verify_shard(here).problems[0]
        assert problem.key == key
        assert re.search(message, problem.message)
        assert f"shardwise index --force {here}" in problem.hint


def test_a_damaged_index_is_a_problem_and_the_shard_is_still_checked(tmp_path):
    (url,) = make_shards(tmp_path, [5])
    build_indexes(url)
    Path(index_path(url)).write_bytes(b"damaged")
    (problem,) = verify_shard(url).problems
    assert problem.url == index_path(url)
    assert "index --force" in problem.message
    os.truncate(url, 1600)
    assert [p.url for p in verify_shard(url).problems] == [index_path(url), url]


def test_a_missing_end_is_a_problem_with_a_remedy(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"a.jpg", b"1"))
    (problem,) = verify_shard(str(path)).problems
    assert "no end" in problem.message
    assert f"truncate --size=+1024 {path}" in problem.hint
    path.write_bytes(member(b"a.jpg", b"1") + END)
    assert verify_shard(str(path)).problems == []


def test_all_damaged_payloads_are_found(tmp_path):
    (url,) = make_shards(tmp_path, [30])
    build_indexes(url, digests=True)
    stat = os.stat(url)
    index = ShardIndex.load(index_path(url))
    hit = [(3, "txt"), (3, "bin"), (17, "cls"), (29, "txt")]
    with open(url, "r+b") as file:
        for row, field in hit:
            file.seek(index.locate_one((field,), row)[0][0])
            file.write(b"\xff")
    os.utime(url, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = {(problem.key, problem.field) for problem in verify_shard(url).problems}
    assert found == {(index.keys[row], field) for row, field in hit}


def test_what_cannot_be_opened_is_a_problem(tmp_path):
    for url in (str(tmp_path / "none.tar"), str(tmp_path), str(tmp_path / "x.tar.gz"), "s3://b/x"):
        assert verify_shard(url).problems, url
