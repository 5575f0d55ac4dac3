"""`shardwise reshard`: tar shards of another size or order."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.building import build_options, destination, show_report
from shardwise.cli.data import open_data, require_tar
from shardwise.cli.options import usage_errors

__all__ = ["reshard"]


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@build_options
def reshard(source: str, target: str, jobs: int | None, as_json: bool, **options: Any) -> None:
    """Copy the samples of the tar shards SRC into shards of another size or order.

    Stored bytes are copied as they are. SRC is a directory, a pattern or a manifest; DST is a
    directory or a pattern such as 'out/{shard:06d}.tar'. What was stopped goes on. Exit code 1 if
    it failed.
    """
    import shardwise as sw

    require_tar([source], "reshard")
    if target.endswith(".parquet"):
        raise click.UsageError("reshard writes tar shards: `shardwise convert` makes Parquet")
    with usage_errors():
        report = sw.build(open_data([source]), destination(target), num_workers=jobs, **options)
    show_report(report, as_json=as_json)
