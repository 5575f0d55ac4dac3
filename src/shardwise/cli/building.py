"""What `build`, `convert` and `reshard` share: options, and how a report is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click

from shardwise.cli.options import common_options
from shardwise.cli.output import clean, format_bytes, format_count, write_document, write_table

__all__ = ["build_options", "destination", "ray_option", "show_report"]


def ray_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--ray`, with or without an address: the text, or True; False without the option."""
    return click.option(
        "--ray",
        metavar="[ADDRESS]",
        is_flag=False,
        flag_value="",
        callback=_ray,
        help="On a Ray cluster: the one here, or host:port. As the last option, or --ray=ADDRESS.",
    )(function)


def _ray(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | bool:
    """What `sw.build` takes as `ray`."""
    from shardwise.building.arguments import check_ray

    if not value:
        return value is not None
    try:
        check_ray(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; --ray without an address stands last") from error
    return value


def build_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a build from SRC to DST."""
    for option in (
        click.option("--samples-per-shard", type=click.IntRange(min=1), help="Samples a shard."),
        click.option(
            "--bytes-per-shard",
            type=click.IntRange(min=1),
            help="Bytes a shard, at the mean of the samples.  [default: 256 MiB]",
        ),
        click.option(
            "--order",
            type=click.Choice(["window", "full"]),
            help="Shuffle: all of it, or runs of 128.  [default: as it is]",
        ),
        click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the shuffle."),
        click.option("--jobs", type=click.IntRange(min=0), help="Processes.  [default: all cores]"),
        click.option("--media", is_flag=True, help="Index frames of videos and sounds, in tar."),
    ):
        function = option(function)
    return common_options(ray_option(function))


def destination(path: str) -> str:
    """A pattern of shards: the one that was given, or one in the directory that was."""
    if path.endswith((".tar", ".parquet")):
        return path
    return f"{path.rstrip('/')}/{{shard:06d}}.tar"


def show_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Write a report; exit code 1 if inputs failed."""
    if as_json:
        write_document(report)
    else:
        rate = report["bytes"] / max(1e-9, report["seconds"])
        rows = [
            ["in", format_count(report["in"])],
            ["filtered", format_count(report["filtered"])],
            ["failed", json.dumps(report["failed"]) if report["failed"] else "0"],
            ["bytes", format_bytes(report["bytes"])],
            ["speed", f"{report['seconds']:.2f} s, {format_bytes(rate)}/s"],
            ["shards", format_count(report["shards"])],
        ]
        there = [name for name in ("manifest", "errors") if report[name] is not None]
        rows += [[name, clean(report[name])] for name in there]
        write_table(["samples", format_count(report["out"])], rows)
    if report["failed"]:
        click.get_current_context().exit(1)
