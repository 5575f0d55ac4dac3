"""`shardwise build`: what a function of a Python module describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from shardwise.cli.building import ray_option, show_report
from shardwise.cli.options import common_options, usage_errors
from shardwise.cli.python_data import is_python, python_object

__all__ = ["build"]


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--jobs", type=click.IntRange(min=0), help="Processes.  [default: all cores]")
@click.option("--retry-errors", is_flag=True, help="Make what failed once more.")
@ray_option
@common_options
def build(
    function: str, jobs: int | None, retry_errors: bool, ray: bool | str, as_json: bool
) -> None:
    """Build the dataset that a function describes.

    MODULE:FUNCTION, or FILE.py:FUNCTION, returns the arguments of `sw.build` as a dict: "source"
    and "pattern", and what else there is. A build that was stopped goes on. Exit code 1 if inputs
    failed.
    """
    import shardwise as sw

    if not is_python(function):
        raise click.UsageError(f"{function!r}: name a function, such as module:function")
    found: Any = python_object(function)
    described = found() if callable(found) else found
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
            report = sw.build(source, pattern, **arguments)
        except TypeError as error:
            raise click.UsageError(f"{function}: {error}") from error
    show_report(report, as_json=as_json)
