"""URLS to shards, and the problems of shards: those that manifests show, and how all are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from shardwise.cli.output import clean, write_line
from shardwise.errors import ShardwiseError
from shardwise.shown import shown
from shardwise.sources.tar.check.problems import Problem, problem_of
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed import ListedShards, is_manifest_file, manifest_files
from shardwise.sources.tar.index.lost_shards import expand_shards
from shardwise.sources.tar.index.shard_lists import is_shard_list
from shardwise.sources.tar.source import TarSource

__all__ = ["describe_problem", "list_shards", "write_problem", "wrong_entries"]


def list_shards(urls: Sequence[str]) -> list[str]:
    """The shards that patterns, directories, shard lists or manifest files name, in order.

    Raises:
        MissingShardError: a pattern finds nothing.
        DataError: a shard list is malformed.
        ValueError: a shard is named twice.
    """
    # The source reads lists and manifests. It also refuses compressed names, which the commands
    # report shard by shard.
    if not any(is_shard_list(url) or is_manifest_file(url) for url in urls):
        return expand_shards(urls)
    return list(TarSource(urls, accept_unfinished=True).urls)


def wrong_entries(
    urls: Sequence[str], index_dir: str | None, known: Collection[str | None]
) -> Iterator[Problem]:
    """Shards that are not as the manifest files among the URLS list them, but for `known` ones."""
    store = IndexStore(index_dir, accept_unfinished=True)
    names = filter(is_manifest_file, urls)
    for manifest in [file for name in names for file in manifest_files(name, store.options)]:
        listed = ListedShards(manifest, store)
        for number, url in enumerate(listed.urls):
            if url in known:
                continue
            try:
                listed.check(number, save=False)
            except ShardwiseError as error:
                yield problem_of(error, url)


def describe_problem(problem: Problem) -> dict[str, Any]:
    """A problem as JSON; what does not apply is null."""
    return {
        "url": problem.url,
        "key": problem.key,
        "field": problem.field,
        "offset": problem.offset,
        "message": problem.message,
        "hint": problem.hint or None,
    }


def write_problem(problem: Problem, *, mark: str = "", more: str = "") -> None:
    """Write a problem on a line from `mark` to `more`, and what to do about it on a second one."""
    where = [
        f"{name} {value!r}"
        for name in ("key", "field", "offset")
        if (value := getattr(problem, name)) is not None
    ]
    location = f" ({', '.join(where)})" if where else ""
    write_line(clean(f"{mark}{shown(problem.url)}: {problem.message}{location}{more}"))
    if problem.hint:
        write_line(clean(f"    {problem.hint}"))
