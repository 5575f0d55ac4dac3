"""The command `shardwise`: a module a command, and the one place where errors become messages.

Exit codes: 0 all is well, 1 the data are not (or could not be read), 2 the command line was
wrong, 130 interrupted, 141 the reader of the output went away. A command's module is imported
when the command runs, so that `shardwise --help` imports no numpy and no command imports torch.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from shardwise.base.errors import ShardwiseError
from shardwise.base.plugins import find, has, own_names
from shardwise.base.version import __version__
from shardwise.cli.options import JSON_KEY, TRACEBACK_KEY
from shardwise.cli.output import clean, write_document, write_line

__all__ = ["cli", "main"]

# A command's module has this name and holds the click command under it; those of extensions are in
# the group "commands" of `shardwise.base.plugins`.
COMMANDS = {
    "index": "Build or refresh the index of shards.",
    "info": "Show shards, samples, fields, sizes and the state of the index.",
    "show": "Show samples: pictures, strips of clips, waveforms and texts.",
    "plan": "Show which rank reads what, and prove that each sample is read once.",
    "verify": "Read everything and check everything.",
    "bench": "Measure how fast samples load here, and name what limits it.",
    "doctor": "Tell what is odd about these shards, with hints.",
    "explain": "Show which samples a step has, and where a sample comes.",
    "certify": "Prove that each sample was trained once, or tell which was not.",
    "watch": "Show live what all ranks of a run do, and the straggler.",
    "report": "Make one page of a run: rates, waits, stages, shards, the plan, the proof.",
    "serve": "Build batches for trainers on other machines.",
    "build": "Build shards that a Python function describes.",
    "convert": "Convert tables, folders and other data to shards.",
    "reshard": "Copy tar shards into shards of another size or order.",
    "redact": "Remove samples from tar shards for good.",
    "cache": "Show and clean a cache of remote files.",
    "completion": "Print what completes commands and files in bash, zsh or fish.",
}


class Commands(click.Group):
    """A group that imports a command when it is run, and ends every error in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names in the order of the help."""
        return list(COMMANDS)

    def get_command(  # click's signature
        self, ctx: click.Context, cmd_name: str
    ) -> click.Command | None:
        """Import one command."""
        command: click.Command
        if cmd_name in COMMANDS and cmd_name not in own_names("commands"):
            command = getattr(import_module(f"shardwise.cli.{cmd_name}"), cmd_name)
            return command
        if has("commands", cmd_name):
            command = find("commands", cmd_name)
            return command
        alike = get_close_matches(cmd_name, COMMANDS, n=1)
        if alike and not ctx.resilient_parsing:
            ctx.fail(f"No such command {cmd_name!r}. Did you mean {alike[0]!r}?")
        return None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands without importing them, and the group's options."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = super(click.Group, self).shell_complete(ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name]) for name in names), *options]

    def format_commands(  # click's signature
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; end what goes wrong with a message and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _let_go_of_closed_pipes()
            ctx.exit(141)
        except KeyboardInterrupt:
            write_line("shardwise: interrupted", error=True)
            ctx.exit(130)
        except click.UsageError as error:
            _show_traceback(ctx, error.__cause__)
            if said := self._in_shell(ctx, error.message):
                raise click.UsageError(error.message + said, error.ctx) from error.__cause__
            raise
        except (ShardwiseError, OSError) as error:
            _show_traceback(ctx, error)
            # Indented: text of the data can't pass for a line of this program.
            lines = f"shardwise: {error}{self._in_shell(ctx, str(error))}".split("\n")
            write_line("\n  ".join(map(clean, lines)), error=True)
            if ctx.meta.get(JSON_KEY):
                write_document({"error": _describe(error)})
            ctx.exit(1)
        return result

    def _in_shell(self, ctx: click.Context, text: str) -> str:
        """The options that the library's message calls by their names in Python."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        options = [name for each in command.params for name in each.opts] if command else []
        said = [name for name in options if re.search(rf"\b{name[2:].replace('-', '_')}=", text)]
        unsaid = ", ".join(name for name in said if name[:2] == "--" and name not in text)
        return f" (in the shell: {unsaid})" if unsaid else ""


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Look at training data from the shell: what is in it, whether it is whole, who reads what.

    Made for tar shards in the WebDataset format. info, plan, verify, bench and convert also take
    Parquet, Lance, MDS, LitData and TFRecord data, folders, and datasets of a Python program.

    URLS are files, directories, globs and brace patterns such as 'train-{000..123}.tar'; quote
    patterns, so that the shell leaves them alone.
    """


def main() -> NoReturn:
    """Run the command line of this process and end it with the exit code."""
    sys.exit(cli(prog_name="shardwise"))


def _describe(error: Exception) -> dict[str, Any]:
    where = {
        name: getattr(error, name)
        for name in ("url", "key", "field", "offset", "index")
        if getattr(error, name, None) is not None
    }
    return {"kind": type(error).__name__, "message": str(error), **where}


def _show_traceback(ctx: click.Context, error: BaseException | None) -> None:
    if error is not None and ctx.meta.get(TRACEBACK_KEY):
        for line in "".join(traceback.format_exception(error)).splitlines():
            write_line(clean(line), error=True)


def _let_go_of_closed_pipes() -> None:
    """Point closed streams at /dev/null, or the interpreter's last flush prints an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
