"""URLS to shards, or to a dataset: of tar shards, tables or folders, or made in Python.

Tar shards are what the commands are about; `info`, `plan`, `bench` and `verify` take the rest as
well. Problems of shards are found in manifests, and shown, here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardwise.base.plugins import find
from shardwise.base.shown import shown
from shardwise.cli.options import usage_errors
from shardwise.cli.output import clean, write_line
from shardwise.cli.python_names import is_python, open_python
from shardwise.dataset import Dataset, formats
from shardwise.sources.protocol import value_fields_of
from shardwise.sources.tar.index.build import expand_shards
from shardwise.sources.tar.index.listed_shards import is_manifest_file
from shardwise.sources.tar.index.shard_lists import is_shard_list
from shardwise.sources.tar.problems import Problem
from shardwise.sources.tar.source import TarSource
from shardwise.storage import is_local, local_path

_ZIPPED = (".gz", ".zst")
_SUFFIXES = {
    "lance": (".lance",),
    "parquet": (".parquet", ".parq", ".pq", ".arrow"),
    "files": (".csv", ".tsv", ".jsonl", ".ndjson", "wav.scp"),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrec"),
    "jsonl": tuple(f".{name}{end}" for name in ("jsonl", "ndjson", "json") for end in _ZIPPED),
}
_MAGIC = frozenset("*[{")
# Kinds of which several URLS are one dataset.
_SEVERAL = ("parquet", "mds", "tfrecord", "jsonl")


def kind_of(urls: Sequence[str]) -> str:
    """What the URLS are: the function of shardwise that opens them, or "python".

    By their names, but for the `index.json` of MDS and LitData, which is read. A local directory is
    listed; in a store a name without a suffix, or with a slash at its end, costs one request.
    """
    url = urls[0]
    if is_python(url):
        return "python"
    named = url.partition("?")[0] if "://" in url else url
    first = named.rstrip("/").lower()
    for kind, suffixes in _SUFFIXES.items():
        if first.endswith(suffixes):
            is_lines = first.endswith((".jsonl", ".ndjson"))
            return (find("kinds", ".jsonl")(url) or kind) if is_lines else kind
    if is_local(url) and Path(local_path(url)).is_dir():
        return _kind_of_directory(Path(local_path(url)))
    may_be_directory = "://" in url and not _MAGIC.intersection(named)
    may_be_directory &= named.endswith("/") or "." not in first.rpartition("/")[2]
    if first.endswith("index.json") or may_be_directory:
        return find("kinds", "index.json")(url) or "tar"
    # A list of shards is one value; NeMo's manifests of that name are lines, each of one file.
    is_lines = first.endswith(".json") and find("kinds", ".jsonl")(url) == "files"
    return "files" if is_lines else "tar"


def _kind_of_directory(path: Path) -> str:
    """A directory without tars is a table, or one of files by class."""
    entries = list(path.iterdir())
    suffixes = {entry.suffix for entry in entries}
    if ".tar" in suffixes or not entries:
        return "tar"
    if (path / "_versions").is_dir():
        return "lance"
    if (path / "index.json").exists() and (kind := find("kinds", "index.json")(str(path))):
        return str(kind)
    for named in ("tfrecord", "parquet"):
        if suffixes.intersection(_SUFFIXES[named]):
            return named
    if suffixes.intersection((".jsonl", ".ndjson")) or any(
        entry.name.endswith(_SUFFIXES["jsonl"]) for entry in entries
    ):
        return "jsonl"
    is_folder = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    holds_tars = any(below.suffix == ".tar" for entry in is_folder for below in entry.iterdir())
    return "files" if is_folder and not holds_tars else "tar"


def require_tar(urls: Sequence[str], command: str) -> None:
    """Refuse what is no tar, in a command that is about tar shards."""
    kind = kind_of(urls)
    if kind != "tar":
        what = "a dataset in Python" if kind == "python" else f"what shardwise.{kind} opens"
        raise click.UsageError(
            f"{command} is for tar shards, and {urls[0]!r} looks like {what}, which needs none of "
            "its indexes: `shardwise verify` reads and checks it, `info`, `plan`, `bench` and "
            "`convert` take it, too"
        )


@usage_errors()
def open_data(
    urls: Sequence[str],
    *,
    index: str | None = None,
    accept_unfinished: bool = False,
    files: Mapping[str, Any] | None = None,
) -> Dataset:
    """The dataset that the URLS name."""
    kind = kind_of(urls)
    if files and kind == "tar" and is_local(urls[0]):
        # A folder of files without classes; one with tars is of shards.
        folder = Path(local_path(urls[0]))
        if folder.is_dir() and not any(folder.glob("*.tar")):
            kind = "files"
    if files and kind != "files":
        raise click.UsageError(
            f"--suffixes, --field and --pairs are for folders of files, not {kind}"
        )
    if kind == "tar":
        # A manifest file is opened as it is: its shards are not looked at one by one.
        has_manifest = any(map(is_manifest_file, urls))
        shards = list(urls) if has_manifest else list_shards(urls)
        return formats.tar(shards, index=index, accept_unfinished=accept_unfinished)
    if index is not None or accept_unfinished:
        raise click.UsageError(f"--index and --accept-unfinished are for tar shards, not {kind}")
    if len(urls) > 1 and kind not in _SEVERAL:
        raise click.UsageError(f"give one of these, not {len(urls)}: each is a dataset")
    if kind == "python":
        return open_python(urls[0])
    if kind == "tokens":
        raise click.UsageError(
            f"{urls[0]!r} are tokens, whose samples are blocks: name a function, such as "
            "module:function, that returns sw.tokens(path, block=...)"
        )
    opener: Callable[..., Dataset] = formats.files if kind == "files" else find("names", kind)
    return opener(urls if kind in _SEVERAL else urls[0], **files or {})


def decoded(data: Dataset) -> Dataset:
    """The dataset with its fields decoded by their names; values are used as they are."""
    # decode() refuses data of which nothing can be decoded.
    return data if set(data.fields) <= set(value_fields_of(data.source)) else data.decode()


@usage_errors()
def list_shards(urls: Sequence[str]) -> list[str]:
    """The shards that patterns, directories, shard lists or manifest files name, in order."""
    # The source reads lists and manifests. It also refuses compressed names, which the commands
    # report shard by shard.
    if not any(is_shard_list(url) or is_manifest_file(url) for url in urls):
        return expand_shards(urls)
    return list(TarSource(urls, accept_unfinished=True).urls)


def describe_problem(problem: Problem) -> dict[str, Any]:
    """A problem as JSON; what does not apply is null."""
    names = ("url", "key", "field", "offset", "message")
    return {name: getattr(problem, name) for name in names} | {"hint": problem.hint or None}


def write_problem(problem: Mapping[str, Any], *, mark: str = "", more: str = "") -> None:
    """Write a problem, as JSON has it, from `mark` to `more`; on a second line what to do."""
    where = [
        f"{name} {problem[name]!r}"
        for name in ("key", "field", "offset")
        if problem[name] is not None
    ]
    location = f" ({', '.join(where)})" if where else ""
    write_line(clean(f"{mark}{shown(problem['url'])}: {problem['message']}{location}{more}"))
    if problem["hint"]:
        write_line(clean(f"    {problem['hint']}"))
