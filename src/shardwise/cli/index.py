"""`shardwise index`: build the indexes of shards, or bring them up to date."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from shardwise.base.errors import DataError
from shardwise.base.plugins import find
from shardwise.base.progress_bar import progress
from shardwise.cli import options, output
from shardwise.cli.data import describe_problem, list_shards, require_tar, write_problem
from shardwise.cli.output import format_bytes, format_count, plural
from shardwise.sources.tar.index.build import BuildResult, build_indexes
from shardwise.sources.tar.index.index_store import IndexStore, read_index
from shardwise.sources.tar.index.merge import merge_indexes, require_manifest_name
from shardwise.sources.tar.problems import problem_of
from shardwise.sources.tar.sidecar import Sidecar


@click.command()
@options.urls_argument
@options.shard_options
@click.option("--digests", is_flag=True, help="Keep a CRC-32 of every payload: reads everything.")
@click.option("--media", is_flag=True, help="Index the frames of videos and sound, too.")
@click.option("--force", is_flag=True, help="Make fresh indexes again too.")
@click.option(
    "--merge",
    metavar="FILE",
    help="Write a manifest file (.swm) of all shards, too: a path or a URL.",
)
@options.number_option("--jobs", text="Processes.  [default: chosen]")
@options.common_options
def index(
    urls: tuple[str, ...],
    index: str | None,
    digests: bool,
    media: bool,
    force: bool,
    merge: str | None,
    jobs: int | None,
    accept_unfinished: bool,
) -> None:
    """Build the index of each shard, or refresh those that do not fit their shard any more.

    Fresh indexes stay as they are. Each index appears whole when its shard is done, so a run that
    is stopped goes on from there the next time. Exit code 1 if a shard failed.

    With --merge, what is known of all shards is put into one file, which `sw.tar` opens in place
    of looking at each shard. It is written if no shard failed.

    With --media, a sidecar beside each index says where each frame of videos and sound lies, with
    checksums; all media are read for it. Exit code 1 also if a media file can't be used.
    """
    require_tar(urls, "index")
    if merge is not None:
        with options.usage_errors():
            require_manifest_name(merge)
    shards = list_shards(urls)
    begin = time.perf_counter()
    with progress("indexing", len(shards)) as report:
        results = build_indexes(
            shards,
            index=index,
            digests=digests,
            force=force,
            jobs=jobs,
            accept_unfinished=accept_unfinished,
            progress=lambda done, _total, _url: report(done),
        )
    num_sidecars, bad = _index_media(results, IndexStore(index)) if media else (0, [])
    seconds = time.perf_counter() - begin
    documents = [_describe(result) for result in results]
    totals = _sum_up(documents, seconds)
    if media:
        totals["num_sidecars"] = num_sidecars
    if merge is not None and not totals["num_failed"]:
        store = IndexStore(index, accept_unfinished=accept_unfinished)
        with options.usage_errors():
            manifest = merge_indexes(merge, shards, store=store)
        totals["manifest"] = {"path": merge, "fingerprint": manifest.fingerprint}
    if media:
        problems = [problem_of(each, each.url or "") for each in bad]
        totals["bad_media"] = [describe_problem(each) for each in problems]
    totals["shards"] = documents
    output.finish(totals, _show, is_well=not (totals["num_failed"] or bad))


def _index_media(results: Sequence[BuildResult], store: IndexStore) -> tuple[int, list[DataError]]:
    """Make the sidecars of the shards that were indexed: their number, and unusable media files."""
    num_sidecars, bad = 0, list[DataError]()
    sidecar: Sidecar = find("sidecars", "media")
    done = [result for result in results if result.error is None]
    with progress("indexing media", len(done)) as report:
        for number, result in enumerate(done, 1):
            path, errors = sidecar.build(result.url, store=store)
            num_sidecars += path is not None
            bad += errors
            report(number)
    return num_sidecars, bad


def _describe(result: BuildResult) -> dict[str, Any]:
    document: dict[str, Any] = {
        "url": result.url,
        "index": result.path,
        "status": result.status,
        "num_samples": result.num_samples,
    }
    if result.error is not None:
        return {**document, "error": str(result.error)}
    index, index_bytes = read_index(result.path)
    rows = np.arange(index.num_samples)
    return {
        **document,
        "fields": list(index.fields),
        "num_members": sum(
            int(np.count_nonzero(index.locate(field, rows)[1] >= 0)) for field in index.fields
        ),
        "num_bytes": index.num_bytes,
        "index_bytes": index_bytes,
        **({"note": result.note} if result.note else {}),
    }


def _sum_up(documents: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The run as a whole; the rate counts the indexes that were built, not the fresh ones."""
    by_status = {
        status: [shard for shard in documents if shard["status"] == status]
        for status in ("built", "fresh", "failed")
    }
    indexed = [*by_status["built"], *by_status["fresh"]]
    num_members = sum(shard["num_members"] for shard in by_status["built"])
    return {
        "num_shards": len(documents),
        **{f"num_{status}": len(shards) for status, shards in by_status.items()},
        "num_samples": sum(shard["num_samples"] for shard in indexed),
        "fields": list(
            dict.fromkeys(name for shard in documents for name in shard.get("fields", []))
        ),
        "num_bytes": sum(shard["num_bytes"] for shard in indexed),
        "index_bytes": sum(shard["index_bytes"] for shard in indexed),
        "num_members_built": num_members,
        "seconds": round(seconds, 6),
        "members_per_s": round(num_members / seconds, 1),
    }


def _show(totals: dict[str, Any]) -> None:
    """Write the media that can't be used, the summary, and a line for each shard that failed."""
    for problem in totals.get("bad_media", ()):
        write_problem(problem)
    rate = format_count(round(totals["members_per_s"]))
    shards = f"{totals['num_built']} built, {totals['num_fresh']} fresh"
    if totals["num_failed"]:
        shards += f", {totals['num_failed']} failed"
    rows = [
        ["samples", format_count(totals["num_samples"])],
        ["fields", ", ".join(totals["fields"]) or "none"],
        ["bytes", format_bytes(totals["num_bytes"])],
        ["index", format_bytes(totals["index_bytes"])],
    ]
    if "num_sidecars" in totals:
        count = totals["num_sidecars"]
        rows.append(
            ["media", f"{plural(count, 'sidecar')} written" if count else "no shard has any"]
        )
    if totals["num_built"]:
        members = plural(totals["num_members_built"], "member")
        rows.append(["speed", f"{members} in {totals['seconds']:.2f} s, {rate} members/s"])
    if "manifest" in totals:
        rows.append(["manifest", output.clean(totals["manifest"]["path"])])
        rows.append(["fingerprint", totals["manifest"]["fingerprint"]])
    output.write_table(["shards", shards], rows)
    for shard in totals["shards"]:
        if text := shard.get("error") or shard.get("note"):
            output.write_line(f"shardwise: {output.clean(text)}", error=True)
