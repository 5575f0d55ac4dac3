"""The page on commands shows what the commands print: each of its examples is run again.

Run as a program (`python -m tests.cli.test_cli_page`), it writes the outputs into the page.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import shardwise as sw
from shardwise.cli import COMMANDS, cli
from shardwise.extensions.remote.cache import CachedFile, cache_of
from shardwise.storage.options import CacheSettings
from tests.support.commands import document
from tests.support.counted_file import CountedFile
from tests.support.tars import make_shards, write_tar

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
EXAMPLE = re.compile(
    r"(?<=^```console\n)\$ (?P<command>.*)\n(?P<output>(?:(?!```$).*\n)*)(?=^```$)", re.M
)
ECHO = '; echo "exit code $?"'

# What differs from run to run.
VOLATILE = [
    (re.compile(r"[\d,]+ members/s"), "N members/s"),
    (re.compile(r"[\d.]+ [kMGT]?B/s"), "N MB/s"),
    (re.compile(r"\b[\d.]+ s\b"), "T s"),
    (re.compile(r"tcp://127\.0\.0\.1:\d+"), "tcp://127.0.0.1:PORT"),
    # A shell's script is click's; the page has its first line.
    (re.compile(r"(?s)function _shardwise_completion;.*"), "SCRIPT"),
    (re.compile(r'("seconds"|"bytes_per_s"): [\d.e-]+'), r"\1: N"),
]

# A measurement differs in all its numbers, and in what they mean.
MEASURED = [
    (re.compile(r"[\d.,]+( [kMGT]?B/s| s\b| %| samples/s| batches when)"), r"N\1"),
    (re.compile(r"^(read|decode|collate|hand over) .*$", re.M), r"\1 N"),
    (re.compile(r"^data/part-\d+\.tar +[\d.]+$", re.M), "SHARD N"),
    (re.compile(r"^(\S+-bound|bound by no one stage): .*$", re.M), "VERDICT"),
    (re.compile(r" {2,}"), "  "),
]


RECIPE = """
def numbers():
    return {"source": [{"cls": n} for n in range(100)], "pattern": "numbers/{shard}.tar"}
"""


def make_data(directory: Path) -> None:
    """What the page says that its examples run on."""
    make_shards(directory / "data", [40, 0, 35, 30])
    (directory / "odd").mkdir()
    write_tar(
        directory / "odd" / "a.tar",
        [("1.JPG", b"image"), ("1.txt", b"one"), ("2.jpg", b"image"), ("README", b"hello")],
    )
    write_tar(directory / "odd" / "b.tar", [(f"{i}.txt", b"text") for i in range(3, 9)])
    (directory / "recipe.py").write_text(RECIPE)
    (directory / "keys.txt").write_text("s00000003\ns00000050\n")
    os.truncate(directory / "odd" / "b.tar", 4000)


def run_example(command: str) -> str:
    """What a command prints on both streams, with its exit code if that is asked for."""
    program, *arguments = shlex.split(command.removesuffix(ECHO))
    assert program == "shardwise"
    result = CliRunner().invoke(cli, arguments, prog_name=program, catch_exceptions=False)
    code = f"exit code {result.exit_code}\n" if command.endswith(ECHO) else ""
    return result.output + code


def normalised(output: str, *, is_measured: bool = False) -> str:
    for pattern, replacement in [*MEASURED, *VOLATILE] if is_measured else VOLATILE:
        output = pattern.sub(replacement, output)
    return output


def test_each_example_prints_what_the_page_shows(tmp_path, monkeypatch):
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    examples = list(EXAMPLE.finditer(page))
    assert len(examples) == page.count("```console") >= 10
    for example in examples:
        is_measured = example["command"].startswith("shardwise bench ")
        shown, printed = (
            normalised(output, is_measured=is_measured)
            for output in (example["output"], run_example(example["command"]))
        )
        assert printed == shown, example["command"]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_part_with_an_example(name):
    page = PAGE.read_text(encoding="utf-8")
    assert f"\n## {name}\n" in page
    assert f"\n$ shardwise {name} " in page


def make_coverage_and_cache(data: Path) -> None:
    """What commands look at: "coverage" and "metrics" of one epoch, a "cache" with one block."""
    options = {"coverage": "coverage", "metrics": "metrics", "rank": 0, "world_size": 1}
    with sw.DataLoader(sw.tar(data), **options) as loader:
        for _ in loader:
            pass
    path = data / "part-000.tar"
    cache = cache_of(CacheSettings("cache", max_bytes=10_000_000))
    CachedFile(CountedFile("s3://bucket/0.tar", path, data / "log", etag="1"), cache).read(0, 9)
    cache.hits.flush()


JSON_COMMANDS = {
    "index": "index data",
    "info": "info data",
    "show": "show data",
    "plan": "plan data",
    "verify": "verify data",
    "bench": "bench data --batches 2 --num-threads 1",
    "doctor": "doctor data",
    "explain": "explain data --step 0",
    "certify": "certify coverage data",
    "watch": "watch metrics --once",
    "report": "report metrics -o run.html",
    "serve": "serve --token-file job.token --port 0 --job 0.1",
    "build": "build recipe.py:numbers --jobs 0",
    "convert": "convert data tables/{shard}.parquet --jobs 0",
    "reshard": "reshard data larger --jobs 0",
    "redact": "redact data --keys keys.txt",
    "cache": "cache cache",
    "completion": "completion bash",
}


def json_tables() -> tuple[list[list[str]], list[list[str]]]:
    """The rows of the page's tables of JSON: of documents, and of the entries of their lists."""
    page = PAGE.read_text(encoding="utf-8").partition("\n## JSON\n")[2].partition("\n## ")[0]
    tables = [[], []]
    for row in page.splitlines():
        if row.startswith("| `"):
            cells = row.split("|")[1:-1]
            tables[len(cells) == 2].append(cells)
    return tables[0], tables[1]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_each_command_s_json_has_the_keys_of_the_page(tmp_path, monkeypatch):
    make_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    make_coverage_and_cache(tmp_path / "data")
    assert list(JSON_COMMANDS) == list(COMMANDS)
    printed = {name: document(*shlex.split(line)) for name, line in JSON_COMMANDS.items()}
    documents, entries = json_tables()
    described = set()
    for commands, always, only in documents:
        for name in names_in(commands):
            described.add(name)
            keys = set(names_in(always))
            assert keys <= set(printed[name]) <= keys | set(names_in(only)), name
    assert described == set(COMMANDS)
    problem = document("verify", "odd", exit_code=1)["problems"][0]
    finding = document("doctor", "odd", exit_code=1)["findings"][0]
    assert set(problem) == set(names_in(entries[0][1]))
    assert set(finding) == {*problem, "level"}
    for what, keys in entries[2:]:
        field, command = names_in(what)
        assert set(printed[command][field][0]) == set(names_in(keys.partition(";")[0])), what


def test_what_differs_from_run_to_run_is_not_compared():
    assert normalised("9 members in 0.01 s, 1,234 members/s") == ("9 members in T s, N members/s")
    assert normalised("20.5 kB in 0.02 s, 1.0 MB/s") == "20.5 kB in T s, N MB/s"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        make_data(Path(directory))
        written = EXAMPLE.sub(
            lambda example: f"$ {example['command']}\n{run_example(example['command'])}",
            PAGE.read_text(encoding="utf-8"),
        )
        PAGE.write_text(written, encoding="utf-8")
