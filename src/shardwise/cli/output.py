"""The output of commands: lines, tables and bars on a terminal, or one JSON document.

Standard output carries the result alone; progress and messages go to standard error. Where the
output is no terminal it is plain text, uncut, without control codes. Whatever stands in the data
(urls, keys) is shown with its control characters escaped: a name in a shard can't steer a
terminal; and URLs are masked, wherever they stand: a signature has no place in a log. rich is
imported when a table is drawn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any

import click

from shardwise.base.shown import escaped, shown, shown_in
from shardwise.cli.options import JSON_KEY

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = ".:-=+*#@"
PLAIN_WIDTH = 60
# No table is cut where another program reads the output.
UNCUT_WIDTH = 100_000


def clean(text: str) -> str:
    r"""The text on one line, with control and format characters as escapes.

    >>> print(clean("a\x1b[31mb"))
    a\x1b[31mb
    """
    return escaped(text)


def format_count(count: int) -> str:
    """A count with thousands marked: 1,234,567."""
    return f"{count:,}"


def format_bytes(num_bytes: float) -> str:
    """A size in decimal units: 999 B, 1.2 kB, 34.5 MB."""
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        num_bytes /= 1000
        if num_bytes < 999.95:
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1000:.1f} PB"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 shard", "1,200 shards".

    >>> plural(2, "batch", "batches")
    '2 batches'
    """
    return f"{format_count(count)} {one if count == 1 else many or one + 's'}"


def write_line(text: str = "", *, error: bool = False, is_well: bool | None = None) -> None:
    """Write a line; characters that the stream can't encode are written as escapes.

    A verdict, which `is_well` or is not, is green or red on a terminal.
    """
    text = shown_in(text)
    stream = sys.stderr if error else sys.stdout
    encoding = stream.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    if is_well is not None and stream.isatty():
        from rich.console import Console

        console = Console()
        if console.color_system and not console.no_color:
            text = click.style(text, fg="green" if is_well else "red")
    click.echo(text, err=error)


def write_document(document: Mapping[str, Any]) -> None:
    """Write one JSON document, the whole output of a command with `--json`."""
    click.echo(json.dumps(_hide_secrets(document), indent=2, allow_nan=False))


def wants_json() -> bool:
    """Whether the command that runs was called with `--json`."""
    return bool(click.get_current_context().meta.get(JSON_KEY))


def finish(
    document: Mapping[str, Any], show: Callable[..., None], *more: Any, is_well: bool = True
) -> None:
    """End a command with its result, as JSON or by `show`; exit code 1 unless `is_well`."""
    if wants_json():
        write_document(document)
    else:
        show(document, *more)
    if not is_well:
        click.get_current_context().exit(1)


def _hide_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {name: _hide_secrets(each) for name, each in value.items()}
    return [_hide_secrets(each) for each in value] if isinstance(value, list | tuple) else value


def make_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A table of rich; ">size" is a column with its values to the right, long texts are folded."""
    from rich.table import Table
    from rich.text import Text

    # Columns without lines, which other programs can read as well.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(
            Text(title.removeprefix(">")),
            justify="right" if title.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(clean(shown(cell))) for cell in row))
    return table


def write_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write the table of `make_table`."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNCUT_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    # Captured, so that only write_line can meet a closed pipe.
    with console.capture() as capture:
        console.print(make_table(titles, rows))
    for line in capture.get().splitlines():
        write_line(line.rstrip())


def bar(shares: Sequence[float]) -> str:
    """A character for each share in [0, 1]: blank for 0, full for 1, else the nearest block.

    >>> len(bar([0.0, 0.01, 1.0]))
    3
    """
    blocks = _blocks()
    return "".join(_block(share, blocks) for share in shares)


def _block(share: float, blocks: str) -> str:
    if share <= 0:
        return " "
    if share >= 1:
        return blocks[-1]
    return blocks[min(max(round(share * len(blocks)), 1), len(blocks) - 1) - 1]


def bar_legend() -> tuple[str, str]:
    """The characters for the smallest and for the whole share."""
    return _blocks()[0], _blocks()[-1]


def bar_width(beside: int) -> int:
    """The width of a bar in characters, with `beside` others on its line."""
    if not sys.stdout.isatty():
        return PLAIN_WIDTH
    return max(8, min(PLAIN_WIDTH, get_terminal_size().columns - beside))


def _blocks() -> str:
    """The characters of bars that standard output can show."""
    is_utf = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    return BLOCKS if is_utf else ASCII_BLOCKS
