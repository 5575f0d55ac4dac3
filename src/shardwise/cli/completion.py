"""`shardwise completion`: what a shell runs to complete commands, options and files."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

from shardwise.cli.options import common_options
from shardwise.cli.output import finish


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion(shell: str) -> None:
    """Print the completion script of a shell; `eval "$(shardwise completion bash)"` loads it.

    Exit code 2 if the shell is another one.
    """
    script_of: Any = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    script = script_of(root, {}, "shardwise", "_SHARDWISE_COMPLETE").source()
    finish({"shell": shell, "script": script}, lambda _: click.echo(script))
