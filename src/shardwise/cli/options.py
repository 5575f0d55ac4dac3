"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from shardwise.base.arguments import directory_text
from shardwise.base.errors import ShardwiseError
from shardwise.base.shown import shown_in

# Keys of click's context: errors are shown by the group, which has no command's arguments.
JSON_KEY = "shardwise.json"
TRACEBACK_KEY = "shardwise.traceback"


class PathType(click.Path):
    """A path or a URL of which a file or a directory can have the name."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Refuse other names, which click would look up."""
        try:
            directory_text("it", value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


def complete_files(_context: object, _argument: object, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete a file: the `shell_complete` of an argument that may be a URL."""
    return [CompletionItem(incomplete, type="file")]


urls_argument = click.argument(
    "urls", nargs=-1, required=True, metavar="URLS...", shell_complete=complete_files
)
plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=PathType(dir_okay=False, path_type=Path),
    help="Draw it, as .png, .svg or .pdf; needs matplotlib.",
)
shuffle_option = click.option(
    "--shuffle", type=click.Choice(["none", "full", "window"]), default="none", show_default=True
)


def number_option(
    *names: str, text: str | None = None, least: int = 1, default: int | None = None
) -> Callable[..., Any]:
    """An option that takes a whole number; `text` is its help, and says the default if any."""
    return click.option(
        *names,
        type=click.IntRange(min=least),
        default=default,
        show_default=default is not None,
        help=text,
    )


def shard_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--index` and `--accept-unfinished`: how tar shards are read."""
    function = click.option(
        "--accept-unfinished",
        is_flag=True,
        help="Take shards without an end as they are: they may have been cut.",
    )(function)
    return click.option(
        "--index",
        metavar="DIR",
        type=PathType(file_okay=False),
        help="Directory of the index files; beside the shards if not given.",
    )(function)


def common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, which `output.finish` looks for, and `--traceback`."""
    texts = {
        "--traceback": "Show where an error comes from.",
        "--json": "Print one JSON document on standard output.",
    }
    kind: Any = {"is_flag": True, "expose_value": False, "is_eager": True, "callback": _keep}
    for name, text in texts.items():
        function = click.option(name, help=text, **kind)(function)
    return function


def _keep(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """An option's callback that leaves its value in the context."""
    context.meta[f"shardwise.{parameter.name}"] = value
    return value


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a plain ValueError of the library into a usage error (exit code 2).

    For calls that take what the user typed. Errors of the data (also ValueErrors) pass.
    """
    try:
        yield
    except ShardwiseError:
        raise
    except ValueError as error:
        raise click.UsageError(shown_in(str(error))) from error
