"""`shardwise watch`: a live table of all ranks, from the lines of metrics that they write."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from shardwise.cli import output
from shardwise.cli.options import common_options, complete_files
from shardwise.extensions.monitor.metrics_lines import overview, read_lines

_TITLES = (">rank", ">epoch", ">done", ">rate", ">waits", ">p99 ms", "bound by", ">egress")
# The last minute: a line is written every 10 s.
_NUM_LINES = 7


@click.command()
@click.argument("directory", metavar="DIR", shell_complete=complete_files)
@click.option("--once", is_flag=True, help="Show the table once, as without a terminal.")
@common_options
def watch(directory: str, once: bool) -> None:
    """Show what all ranks of a run do: rate, waits, bottleneck, and the straggler.

    DIR is what the loaders have as metrics=DIR. The table is of the last minute: samples a second,
    the share of the time that waits for data, and bytes per second from stores. Ctrl-C ends it.
    Exit code 1 if DIR has no such lines.
    """
    if once or output.wants_json() or not sys.stdout.isatty():
        output.finish(_read(directory), show_ranks)
        return
    try:
        _show_live(directory)
    except KeyboardInterrupt:
        return


def _read(directory: str) -> dict[str, Any]:
    files, notes = read_lines(Path(directory), only_ends=True)
    return overview(files, notes, num_lines=_NUM_LINES, now=time.time())


def _row(rank: dict[str, Any]) -> list[str]:
    hits, egress = rank["cache_hits"], rank["egress_bytes_s"]
    return [
        *(str(rank["rank"]), str(rank["epoch"]), f"{rank['progress']:.0%}"),
        *(f"{rank['rate']:,.0f}", f"{rank['wait']:.0%}", f"{rank['wait_ms']['p99']:,.1f}"),
        *(rank["bound_by"], output.format_bytes(egress) if egress else "-"),
        *("-" if hits is None else f"{hits:.0%}", rank["mark"]),
    ]


def show_ranks(document: dict[str, Any]) -> None:
    """Write the table of `overview`."""
    output.write_table((*_TITLES, ">cache", ""), [_row(rank) for rank in document["ranks"]])
    for note in document["notes"]:
        output.write_line(f"  note: {output.clean(note)}")


def _show_live(directory: str) -> None:
    """Redraw the table; of more ranks than the terminal has lines, those that wait most."""
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        while True:
            document = _read(directory)
            ranks, most = document["ranks"], max(1, live.console.size.height - 6)
            if len(ranks) > most:
                ranks = sorted(ranks, key=lambda rank: (not rank["mark"], -rank["wait"]))[:most]
            table = output.make_table((*_TITLES, ">cache", ""), [_row(rank) for rank in ranks])
            for row, rank in zip(table.rows, ranks, strict=True):
                row.style = "bold red" if rank["mark"] else None
            notes = [f"{len(ranks)} of {document['world_size']} ranks", *document["notes"][:2]]
            live.update(Group(table, output.clean("; ".join(notes))), refresh=True)
            time.sleep(2)
