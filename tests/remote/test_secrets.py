"""No secret is printed or written: canaries in every place that can hold one, and a scan of all."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardwise.base.shown import base_name, shown, shown_in
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import merge_indexes
from shardwise.sources.tar.index.shard_index import ShardIndex
from tests.support.commands import run
from tests.support.ranks import Run, run_several
from tests.support.servers import nginx
from tests.support.tars import make_shards

PROGRAM = Path(__file__).parent / "programs" / "uses_secrets.py"
QUERY = "?X-Amz-Signature=QUERYCANARY&more=a/QUERYCANARY#FRAGMENTCANARY"
ENVIRONMENT = {
    "HF_TOKEN": "HFTOKENCANARY",
    "AWS_SECRET_ACCESS_KEY": "ENVIRONMENTCANARY",
    "AWS_ACCESS_KEY_ID": "ENVIRONMENTCANARY",
    "AZURE_STORAGE_SAS_TOKEN": "ENVIRONMENTCANARY",
    "AIS_AUTHN_TOKEN": "ENVIRONMENTCANARY",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    first, second = make_shards(folder, [5, 4])
    Path(first).rename(folder / "train-000.tar")
    Path(second).rename(folder / "train-001.tar")
    whole = (folder / "train-000.tar").read_bytes()
    (folder / "damaged.tar").write_bytes(whole[:700] + b"\xff" + whole[701:])
    pq.write_table(pa.table({"x": [1, 2, 3], "t": ["a", "b", "c"]}), folder / "table.parquet")
    store = IndexStore(tmp_path_factory.mktemp("index"))
    shards = [str(folder / f"train-00{number}.tar") for number in range(2)]
    build_indexes(shards, index=store.directory)
    merge_indexes(str(folder / "train.swm"), shards, store=store)
    (folder / "cut.swm").write_bytes((folder / "train.swm").read_bytes()[:-9])
    (folder / "list.jsonl").write_text('{"path": "train-000.tar"}\n')
    with nginx(folder) as running:
        yield running


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A directory that everything is written to, whatever its kind."""
    for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def scan(private: Path, *, printed: bytes) -> None:
    """Fail if a canary stands in what was printed, in a file or in a file's name."""
    found = [line for line in printed.split(b"\n") if b"CANARY" in line]
    assert not found, f"{len(found)} lines such as {found[:3]}"
    written = [path for path in private.rglob("*") if path.is_file()]
    for path in written:
        assert "CANARY" not in str(path)
        assert b"CANARY" not in path.read_bytes(), path


# It waits for servers that are not there, each for its time.
@pytest.mark.timeout(700)
@pytest.mark.parametrize("settings", ["1", pytest.param("012", marks=pytest.mark.long)])
def test_no_door_of_the_library_lets_a_secret_out(server, private, monkeypatch, settings):
    out = private / "out"
    out.mkdir()
    monkeypatch.chdir(private)
    [done] = run_several(Run((PROGRAM, server.url, out, settings), None), timeout=600)
    scan(private, printed=done.stdout.encode())
    # It did what it was to do: indexes, blocks and errors were written, and errors shown.
    assert len(list(private.rglob("*.swi"))) >= 4
    assert list(private.rglob("*.block"))
    assert len(list(out.glob("error-*.pickle"))) > 20  # named by ids, which come again
    assert "/train-000.tar?..." in done.stdout
    # Coverage of signed manifests, with a lost sample that is named.
    for lines in (out / "coverage").glob("*.jsonl"):
        line = json.loads(lines.read_text().splitlines()[0])
        line["handed_out"][0] -= 1
        lines.write_text(json.dumps(line) + "\n")
    for more in ([], ["--json"]):
        url = f"{server.url}/train.swm{QUERY}"
        found = run("certify", out / "coverage", url, *more, exit_code=1)
        scan(private, printed=found.output.encode())
        assert "not the samples of the plan" in found.output
    # The server had the query and nobody else's token.
    asked = server.log.read_text()
    assert "QUERYCANARY" in asked
    assert "HFTOKENCANARY" not in asked


@pytest.mark.parametrize("arguments", [
    ["index"], ["index", "--index", "DIR"], ["index", "--merge", "SWM"], ["info", "--shards"],
    ["plan"], ["verify"], ["doctor"], ["bench", "--max-batches", "2"],
    ["info", "--traceback"], ["cache", "DIR"],
], ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("name", ["train-000.tar", "damaged.tar", "gone.tar", "{a.tar", "USER"])
def test_no_command_lets_a_secret_out(server, private, arguments, name, monkeypatch):
    from tests.support.commands import CliRunner, cli

    url = f"{server.url}/{name}{QUERY}"
    if name == "USER":
        url = url.replace("://", "://user:PASSWORDCANARY@")
    places = {"DIR": str(private / "index"), "SWM": str(private / "train.swm")}
    arguments = [places.get(each, each) for each in arguments]
    monkeypatch.chdir(private)
    for more in ([], ["--json"]):
        urls = (
            [] if "cache" in arguments else [url, url.replace("000", "001")][: 1 + ("000" in url)]
        )
        done = CliRunner().invoke(cli, [*arguments, *urls, *more], prog_name="shardwise")
        if more and done.stdout:
            json.loads(done.stdout)
        scan(private, printed=done.output.encode() + done.stderr.encode())
        assert done.exception is None or isinstance(done.exception, SystemExit)


def test_an_index_keeps_no_query_of_its_shard(server, private):
    (result,) = build_indexes(f"{server.url}/train-000.tar{QUERY}", index=private / "index")
    assert ShardIndex.load(result.path).header.name == "train-000.tar"
    assert "CANARY" not in repr(result)
    scan(private, printed=b"")


@pytest.mark.parametrize(("url", "expected", "name"), [
    ("https://h/d/a.tar?sig=x/y", "https://h/d/a.tar?...", "a.tar"),
    ("https://h/a.tar#frag?x", "https://h/a.tar#...", "a.tar"),
    ("HTTPS://user:pw@h:80/a.tar", "HTTPS://...@h:80/a.tar", "a.tar"),
    ("http://user:p/w?@h/a.tar?b", "http://...@h/a.tar?...", "w"),
    ("http://[::1]:80/a?b", "http://[::1]:80/a?...", "a"),
    ("s3://bucket/part-?.tar", "s3://bucket/part-?.tar", "part-?.tar"),
    ("s3://k:s@bucket/a.tar?versionId=1", "s3://...@bucket/a.tar?...", "a.tar"),
    ("abfss://box@account.net/a", "abfss://box@account.net/a", "a"),
    ("abfss://box:pw@account.net/a", "abfss://...@account.net/a", "a"),
    ("hf://datasets/org/name@rev/a.tar", "hf://datasets/org/name@rev/a.tar", "a.tar"),
    ("https:/h/a.tar?sig=x", "https:/h/a.tar?...", "a.tar"),
    ("zip::https://h/a.tar?sig=x", "zip::https://h/a.tar?...", "a.tar?sig=x"),
    ("/local/a?b=c#d", "/local/a?b=c#d", "a?b=c#d"),
])  # fmt: skip
def test_urls_are_shown_without_what_proves_a_right(url, expected, name):
    assert shown(url) == expected
    assert shown(shown(url)) == expected
    assert base_name(url) == name
    if "/" in expected and "p/w" not in url:
        assert shown_in(f"can't read {url!r}: it is gone") == f"can't read {expected!r}: it is gone"
