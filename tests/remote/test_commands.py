"""Commands on shards in a store, with the credentials that the environment has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import document, run, spawn
from tests.support.remote_shards import numbered_tar, put_shards, replace_object


@pytest.fixture(autouse=True)
def credentials(s3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


def test_indexes_are_built_shown_and_verified(s3):
    urls = put_shards(s3, "command", [5, 6])
    info = document("info", *urls)
    assert info["index"]["states"] == {"missing": 2}
    built = document("index", s3.url("command/"), "--digests")
    assert [shard["index"] for shard in built["shards"]] == [f"{url}.swi" for url in urls]
    assert (built["num_built"], built["num_samples"]) == (2, 11)
    assert document("index", s3.url("command/"))["num_fresh"] == 2
    info = document("info", s3.url("command/{000..001}.tar"))
    assert info["index"]["states"] == {"fresh": 2}
    assert info["index"]["num_bytes"] == built["index_bytes"]
    found = document("verify", s3.url("command/*.tar"))
    assert (found["num_problems"], found["num_with_digests"]) == (0, 2)
    assert document("doctor", *urls)["num_errors"] == 0
    plan = document("plan", *urls, "--world-size", "2", "--batch-size", "2")
    assert plan["num_samples"] == 11


def test_verify_and_doctor_find_what_is_wrong(s3):
    sound = numbered_tar(0, 20, 1000)
    url = s3.put("wrong/000.tar", sound)
    document("index", url, "--digests")
    damaged = bytearray(sound)
    damaged[sound.index(b"s00000013.bin") + 600] ^= 1
    replace_object(s3, url, bytes(damaged))
    found = document("verify", url, exit_code=1)
    assert "has changed since it was indexed" in found["problems"][0]["message"]
    assert "shardwise index s3://" in found["problems"][0]["hint"]
    doctor = document("doctor", url, exit_code=1)
    messages = [finding["message"] for finding in doctor["findings"]]
    assert any("has changed since it was indexed" in message for message in messages)
    cut = s3.put("wrong/001.tar", sound[: len(sound) // 2])
    found = document("verify", cut, exit_code=1)
    assert "ends" in found["problems"][0]["message"] or "cut" in found["problems"][0]["message"]
    missing = document("verify", s3.url("wrong/002.tar"), exit_code=1)
    assert "no such file" in missing["problems"][0]["message"]


def test_a_refused_key_is_told_without_the_key(s3):
    url = s3.put("refused/000.tar", numbered_tar(0, 3, 100))
    # In a process of its own: connections of this one have the right key.
    process = spawn("info", url, env={"AWS_SECRET_ACCESS_KEY": "not/the/right+key"})
    output, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"403" in error
    assert b"not/the/right" not in output + error


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_a_directory_of_another_format_is_told_by_its_index_json(s3, name):
    data = Path(__file__).parents[1] / "extensions" / "formats" / "foreign" / "data" / name
    for path in data.iterdir():
        s3.put(f"formats/{name}/{path.name}", path.read_bytes())
    directory = s3.url(f"formats/{name}")
    for url in (directory, f"{directory}/", f"{directory}/index.json"):
        assert document("info", url)["num_samples"] == 11
    assert document("verify", directory)["num_samples"] == 11
    assert document("plan", directory, "--world-size", 2, "--batch-size", 2)["num_samples"] == 11
    said = " ".join(run("doctor", directory, exit_code=2).stderr.split())
    assert f"looks like what shardwise.{name} opens" in said


def test_arrow_files_in_a_store_are_told_to_be_copied(s3):
    pytest.importorskip("pyarrow")
    url = s3.put("arrow/a.arrow", b"ARROW1")
    assert "must lie on this machine: copy it" in run("info", url, exit_code=1).stderr
