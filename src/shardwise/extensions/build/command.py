"""`shardwise build`, `convert` and `reshard`: shards made of other data, and the report of that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click

from shardwise.cli.data import open_data, require_tar
from shardwise.cli.options import common_options, complete_files, number_option, usage_errors
from shardwise.cli.output import clean, finish, format_bytes, format_count, write_table
from shardwise.cli.python_names import is_python, python_value
from shardwise.extensions.build.build import build as build_shards


def _ray_option(function: Callable[..., Any]) -> Callable[..., Any]:
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
    from shardwise.extensions.build.arguments import check_ray

    if not value:
        return value is not None
    try:
        check_ray(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}; --ray without an address stands last") from error
    return value


_jobs_option = number_option(
    "--jobs", least=0, text="Worker processes; 0 for this process.  [default: one a core]"
)


def _build_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a build from SRC to DST, which are the first of the command's help."""
    function = _ray_option(common_options(function))
    options = (
        click.argument("source", metavar="SRC", shell_complete=complete_files),
        click.argument("target", metavar="DST", shell_complete=complete_files),
        number_option("--samples-per-shard", text="Samples a shard."),
        number_option(
            "--bytes-per-shard",
            text="Bytes a shard, at the mean of the samples.  [default: 256 MiB]",
        ),
        click.option(
            "--order",
            type=click.Choice(["full", "window"]),
            help="Shuffle: sample by sample, or runs of 128 neighbours.  [default: SRC's order]",
        ),
        number_option("--seed", least=0, default=0, text="Of --order."),
        _jobs_option,
        click.option(
            "--media", is_flag=True, help="Write a media index of videos and sounds, too; tar only."
        ),
        click.option(
            "--on-error",
            type=click.Choice(["raise", "record"]),
            default="raise",
            help="record: leave samples that fail out, and list them.  [default: raise]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _destination(path: str) -> str:
    """A pattern of shards: the one that was given, or one in the directory that was."""
    if path.endswith((".tar", ".parquet")):
        return path
    return f"{path.rstrip('/')}/{{shard:06d}}.tar"


def _finish(report: Mapping[str, Any]) -> None:
    finish(report, _show, is_well=not report["failed"])


def _show(report: Mapping[str, Any]) -> None:
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


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION", shell_complete=complete_files)
@_jobs_option
@click.option("--retry-errors", is_flag=True, help="Build the inputs that failed again.")
@_ray_option
@common_options
def build(function: str, jobs: int | None, retry_errors: bool, ray: bool | str) -> None:
    """Build the dataset that a function describes.

    MODULE:FUNCTION, or FILE.py:FUNCTION, returns the arguments of `sw.build` as a dict: "source"
    and "pattern", and what else there is. A build that was stopped continues. Exit code 1 if inputs
    failed.
    """
    if not is_python(function):
        raise click.UsageError(f"{function!r}: name a function, such as module:function")
    described = python_value(function)
    if not isinstance(described, Mapping) or not {"source", "pattern"} <= set(described):
        raise click.UsageError(
            f"{function} must return a dict with 'source' and 'pattern', and what else sw.build "
            f"takes; it is {described!r:.80}"
        )
    arguments = dict(described)
    if jobs is not None:
        arguments["num_workers"] = jobs
    if ray:
        arguments["ray"] = ray
    if retry_errors:
        arguments["retry_errors"] = True
    source, pattern = arguments.pop("source"), arguments.pop("pattern")
    with usage_errors():
        try:
            report = build_shards(source, pattern, **arguments)
        except TypeError as error:
            raise click.UsageError(f"{function}: {error}") from error
    _finish(report)


@click.command()
@_build_options
@click.option("--suffixes", help="Of a folder: take these files only, such as '.jpg,.png'.")
@click.option("--field", help="Of a folder: the field that holds each file's bytes.")
@click.option("--pairs", is_flag=True, help="Of a folder: a.jpg, a.json and a.txt are one sample.")
def convert(
    source: str,
    target: str,
    jobs: int | None,
    suffixes: str | None,
    field: str | None,
    pairs: bool,
    **options: Any,
) -> None:
    """Convert SRC to shards with indexes and a manifest.

    SRC is what `shardwise info` opens: a table, a folder of files, tar shards, or module:name. DST
    is a directory for tar shards, or a pattern such as 'out/{shard:06d}.parquet'. Stored bytes are
    not decoded; in tar, arrays become fields `.npy` and documents `.json`. A conversion that was
    stopped continues. Exit code 1 if it failed.
    """
    from shardwise.extensions.build.conversion import as_tar_sample

    with usage_errors():
        pattern = _destination(target)
        mapped = as_tar_sample if pattern.endswith(".tar") else None
        files: dict[str, Any] = {} if field is None else {"field": field}
        if pairs:
            files["pairs"] = True
        if suffixes is not None:
            files["suffixes"] = tuple(each.strip() for each in suffixes.split(","))
        data = open_data([source], files=files)
        report = build_shards(data, pattern, map=mapped, num_workers=jobs, **options)
    _finish(report)


@click.command()
@_build_options
def reshard(source: str, target: str, jobs: int | None, **options: Any) -> None:
    """Copy the samples of the tar shards SRC into shards of another size or order.

    Stored bytes are copied as they are. SRC is a directory, a pattern or a manifest; DST is a
    directory or a pattern such as 'out/{shard:06d}.tar'. What was stopped continues. Exit code 1 if
    it failed.
    """
    require_tar([source], "reshard")
    if target.endswith(".parquet"):
        raise click.UsageError("reshard writes tar shards: `shardwise convert` makes Parquet")
    with usage_errors():
        report = build_shards(
            open_data([source]), _destination(target), num_workers=jobs, **options
        )
    _finish(report)
