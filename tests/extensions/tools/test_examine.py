"""The doctor: notices what is odd and never raises for it."""

from __future__ import annotations

import os

import pytest

from shardwise.extensions.tools.shard_checks import ShardReport, examine_shard
from shardwise.sources.tar.index.index_store import IndexStore
from tests.support.raw_tars import END, header, member
from tests.support.tars import make_shards, write_tar


def examine(url: str) -> ShardReport:
    return examine_shard(url, store=IndexStore())


def findings(url: str) -> str:
    facts = examine(url)
    assert all(problem.url == url for problem in facts.findings)
    assert all(problem.hint or problem.message for problem in facts.findings)
    return "\n".join(problem.message for problem in facts.findings)


def test_facts_of_a_plain_shard(tmp_path):
    (url,) = make_shards(tmp_path, [10], fields=("bin", "cls"))
    facts = examine(url)
    counts = facts.oddities
    assert (counts.num_samples, counts.num_members) == (10, 20)
    assert counts.fields == {"bin": 10, "cls": 10}
    assert +counts.ignored == {}
    assert counts.sample_bytes == (17, 17, 17)
    assert facts.num_bytes == os.stat(url).st_size
    (problem,) = facts.findings
    assert f"a small shard of {facts.num_bytes:,} bytes" in problem.message


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.jpg", "b.jpg", "a.cls"], "members of one key that stand apart: 1"),
        (["a.jpg", "a.jpg"], "members for a field that the sample has already: 1"),
        (["a.JPG", "b.Jpg"], "fields in upper case: 2"),
        (["img.0001.jpg", "img.0002.jpg"], "fields with a number first: 2"),
        (["b.jpg", "a.jpg"], "names that are not sorted: 1"),
        (["a.cls", "a.jpg", "b.jpg"], "1 of 2 samples lack the field 'cls'"),
        ([f"a.f{i:03d}" for i in range(40)], "40 different fields"),
        (["README", "a.jpg"], "members left out, no extension: 1"),
        (["._a.jpg", "a.jpg"], "members left out, hidden: 1"),
        (["__meta__/x.json", "a.jpg"], "members left out, metadata: 1"),
        ([], "no samples"),
    ],
)
def test_odd_names_are_noticed(tmp_path, names, message):
    url = write_tar(tmp_path / "x.tar", [(name, b"1") for name in names])
    assert message in findings(url)


def test_odd_payloads_are_noticed(tmp_path):
    members = [(f"{i}.bin", bytes(100_000 if i == 5 else 10)) for i in range(9)]
    url = write_tar(tmp_path / "x.tar", [*members, ("9.bin", b"")])
    assert "empty payloads: 1" in findings(url)
    assert "samples from 0 to 100,000 bytes, half of them below 10" in findings(url)


def test_odd_members_and_ends_are_noticed(tmp_path):
    path = tmp_path / "x.tar"
    data = member(b"d/", b"", kind=b"5") + header(b"a", 0, kind=b"1") + member(b"a.jpg", b"1")
    path.write_bytes(data)
    found = findings(str(path))
    assert "no end (two blocks of zeros)" in found
    assert "members left out, directory: 1" in found
    assert "members left out, hard link: 1" in found
    path.write_bytes(data + END)
    assert "no end" not in findings(str(path))


def test_damage_is_a_finding_and_no_exception(tmp_path):
    (url,) = make_shards(tmp_path, [10])
    os.truncate(url, 5000)
    assert "cut short" in findings(url)
    for name in ("none.tar", "x.tar.gz"):
        assert findings(str(tmp_path / name))
