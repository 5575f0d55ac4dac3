"""`shardwise convert`: any data that the commands open, as tar or Parquet shards."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.building import build_options, destination, show_report
from shardwise.cli.data import open_data
from shardwise.cli.options import usage_errors

__all__ = ["convert"]


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@build_options
def convert(source: str, target: str, jobs: int | None, as_json: bool, **options: Any) -> None:
    """Convert SRC to shards with indexes and a manifest.

    SRC is what `shardwise info` opens: a table, a folder of files, tar shards, or module:name. DST
    is a directory for tar shards, or a pattern such as 'out/{shard:06d}.parquet'. Stored bytes are
    not decoded; in tar, arrays become fields `.npy` and documents `.json`. A conversion that was
    stopped goes on. Exit code 1 if it failed.
    """
    import shardwise as sw
    from shardwise.building.conversion import as_tar_sample

    with usage_errors():
        pattern = destination(target)
        mapped = as_tar_sample if pattern.endswith(".tar") else None
        report = sw.build(open_data([source]), pattern, map=mapped, num_workers=jobs, **options)
    show_report(report, as_json=as_json)
