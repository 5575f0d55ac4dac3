"""`shardwise verify`: read everything, check everything.

Of what is no tar each sample is read, as training would read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import click
import numpy as np

from shardwise.base.errors import DataError, ShardwiseError
from shardwise.base.plugins import find
from shardwise.base.progress_bar import progress
from shardwise.cli.data import describe_problem, kind_of, list_shards, open_data, write_problem
from shardwise.cli.options import common_options, shard_options, urls_argument
from shardwise.cli.output import finish, format_bytes, plural, write_line
from shardwise.dataset import Dataset
from shardwise.extensions.tools.shard_checks import verify_shard, wrong_entries
from shardwise.sources.manifest import Shard
from shardwise.sources.protocol import Source
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.shard_lists import check_counts, is_shard_list, read_shard_list
from shardwise.sources.tar.problems import Problem, problem_of
from shardwise.sources.tar.sidecar import Sidecar

# A read takes 32 MiB, by the mean size of a sample, and 4,096 samples at most.
_READ_BYTES, _READ_SAMPLES = 32 << 20, 4096


@click.command()
@urls_argument
@shard_options
@click.option("--media", is_flag=True, help="Decode videos and sound, too.")
@common_options
def verify(urls: tuple[str, ...], index: str | None, media: bool, accept_unfinished: bool) -> None:
    """Read every byte of the shards and check all that can be checked.

    The chain of headers, their checksums and the end of each shard; the index against the shard;
    each payload against its digest, if the index has digests; a list's counts and a manifest's
    entries against the shards.
    With --media, videos and sound are held against their sidecar's checksums, and all decoded.
    Of other formats, such as Parquet, MDS or LitData, each sample is read, and what the format has
    of sizes and checksums is checked. Exit code 1 if there is a problem.
    """
    if kind_of(urls) != "tar":
        if media:
            raise click.UsageError("--media is for tar shards")
        data = open_data(urls, index=index, accept_unfinished=accept_unfinished)
        begin = time.perf_counter()
        read = _read_all(urls, data)
        counts = {
            "num_shards": read.num_shards,
            "num_samples": read.num_samples,
            "num_bytes": read.num_bytes,
        }
        _finish(counts, read.problems, num_bad=len(read.problems), begin=begin)
        return
    shards = list_shards(urls)
    begin = time.perf_counter()
    problems: list[Problem] = []
    sound: dict[str, Shard] = {}
    num_bytes = num_with_digests = num_bad = 0
    sizes = _sizes_of(shards, IndexStore(index))
    # In bytes: a shard may take minutes.
    with progress("verifying", sum(sizes), unit="bytes") as show_done:
        for url, end_bytes, size in zip(shards, accumulate(sizes), sizes, strict=True):
            show_read = partial(_show_read, show_done, end_bytes - size)
            report = verify_shard(
                url, index=index, accept_unfinished=accept_unfinished, progress=show_read
            )
            if media and not report.problems:
                sidecar: Sidecar = find("sidecars", "media")
                report.problems += sidecar.find_problems(url, store=IndexStore(index))
            problems += report.problems
            num_bad += bool(report.problems)
            # Of a shard with problems, headers may not have been read.
            num_bytes += report.num_read if report.problems else size
            num_with_digests += report.has_digests
            show_done(end_bytes)
            used = report.index
            if used is not None and (used.header.has_end or accept_unfinished):
                sound[url] = Shard(url, used.num_samples, used.num_bytes)
        problems += _wrong_counts(urls, sound)
        problems += wrong_entries(urls, index, {problem.url for problem in problems})
    counts = {
        "num_shards": len(shards),
        "num_bytes": num_bytes,
        "num_with_digests": num_with_digests,
    }
    _finish(counts, problems, num_bad=num_bad, begin=begin)


def _show_read(show_done: Callable[[float], None], begin: int, num_read: int) -> None:
    show_done(begin + num_read)


@dataclass
class _Read:
    num_shards: int
    num_samples: int = 0
    num_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


def _read_all(urls: Sequence[str], data: Dataset) -> _Read:
    source = data.source
    try:
        num_samples = source.manifest.num_samples
    except DataError:
        # A footer, or a scan, that fails ends the opening of all: which files are sound?
        report = _read_files(urls, source)
        if not report.problems:
            raise
        return report
    with progress("verifying", num_samples) as show_done:
        return _read_samples(source, show_done)


def _read_samples(source: Source, progress: Callable[[float], None]) -> _Read:
    """Read all samples of all shards; the rest of a shard is skipped after its first problem."""
    shards = source.manifest.shards
    report = _Read(len(shards))
    begin = 0
    for shard in shards:
        end = begin + shard.num_samples
        try:
            for ids in _parts(shard, begin, end):
                report.num_bytes += source.read(ids).num_bytes
                report.num_samples += len(ids)
                progress(int(ids[-1]) + 1)
        except ShardwiseError as error:
            report.problems.append(problem_of(error, shard.url))
        begin = end
        progress(end)
    return report


def _read_files(urls: Sequence[str], source: Any) -> _Read:
    """Read files of Parquet, TFRecord or JSON lines one by one, so that each has its verdict."""
    files = source.urls if kind_of(urls) in ("parquet", "tfrecord", "jsonl") else ()
    report = _Read(len(files))
    with progress("verifying", len(files)) as show_done:
        for done, url in enumerate(files, 1):
            try:
                part = _read_samples(open_data([url]).source, lambda _done: None)
            except ShardwiseError as error:
                part = _Read(1, problems=[problem_of(error, url)])
            report.num_samples += part.num_samples
            report.num_bytes += part.num_bytes
            report.problems += part.problems
            show_done(done)
    return report


def _parts(shard: Shard, begin: int, end: int) -> Iterator[np.ndarray]:
    mean = max(shard.num_bytes // max(shard.num_samples, 1), 1)
    step = min(max(_READ_BYTES // mean, 1), _READ_SAMPLES)
    for start in range(begin, end, step):
        yield np.arange(start, min(start + step, end))


def _finish(
    counts: dict[str, int], problems: Sequence[Problem], *, num_bad: int, begin: float
) -> None:
    """End the command with what was read since `begin`, and the shards that have problems."""
    seconds = time.perf_counter() - begin
    document = {
        **counts,
        "seconds": round(seconds, 6),
        "bytes_per_s": round(counts["num_bytes"] / seconds),
        "num_problems": len(problems),
        "num_shards_with_problems": num_bad,
        "problems": [describe_problem(problem) for problem in problems],
    }
    finish(document, _show, is_well=not problems)


def _sizes_of(shards: Sequence[str], store: IndexStore) -> list[int]:
    """The shards' sizes for the progress bar; 0 for a shard that can't be opened."""
    sizes = []
    for url in shards:
        try:
            sizes.append(store.stat(url).num_bytes)
        except ShardwiseError:
            sizes.append(0)
    return sizes


def _wrong_counts(urls: Sequence[str], counts: dict[str, Shard]) -> Iterator[Problem]:
    """Counts in shard lists that are not those of the shards; damaged shards are left out."""
    for listed in (shard for url in urls if is_shard_list(url) for shard in read_shard_list(url)):
        if listed.url in counts:
            try:
                check_counts([listed], [counts[listed.url]])
            except ShardwiseError as error:
                yield problem_of(error, listed.url)


def _show(document: dict[str, Any]) -> None:
    """Write problems and totals, and which payloads could not be checked for lack of digests."""
    for problem in document["problems"]:
        write_problem(problem)
    shards = plural(document["num_shards"], "shard")
    read = f"{format_bytes(document['num_bytes'])} in {document['seconds']:.2f} s"
    speed = f"{format_bytes(document['bytes_per_s'])}/s"
    if document["num_problems"]:
        count = plural(document["num_problems"], "problem")
        found = f"{count} in {document['num_shards_with_problems']} of {shards}"
        write_line(f"{found} ({read}, {speed})", is_well=False)
    else:
        write_line(f"{shards} without a problem ({read}, {speed})", is_well=True)
    if "num_with_digests" not in document:
        write_line(f"{plural(document['num_samples'], 'sample')} read, with the format's checksums")
        return
    without = document["num_shards"] - document["num_with_digests"]
    if without:
        write_line(
            f"{plural(without, 'shard')} without digests: that payloads are what they were can't "
            "be told; `shardwise index --digests` keeps digests from then on"
        )
