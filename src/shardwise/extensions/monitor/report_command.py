"""`shardwise report`: one page of a run, from its lines of metrics and its coverage."""

from __future__ import annotations

import io
import json
import time
from contextlib import redirect_stdout
from html import escape
from pathlib import Path
from typing import Any

import click

from shardwise.base.foreign_bytes import as_data_error
from shardwise.cli.options import PathType, common_options, complete_files
from shardwise.cli.output import clean, finish, format_bytes, write_line
from shardwise.extensions.certify.command import certified, show_verdict
from shardwise.extensions.monitor.charts import draw_charts
from shardwise.extensions.monitor.metrics_lines import overview, read_lines
from shardwise.extensions.monitor.watch_command import show_ranks
from shardwise.storage.write import atomic_write

# Without scripts and files. Canvas and CanvasText are the browser's own colours, light or dark.
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Run {name}</title>
<style>:root{{color-scheme:light dark}}body{{font:15px/1.5 system-ui,sans-serif;max-width:70rem;
margin:2rem auto;padding:0 1rem;background:Canvas;color:CanvasText}}
svg{{width:100%;height:auto}}</style>
<h1>Run {name}</h1><p>{data}</p><pre>{ranks}</pre>{charts}<h2>Coverage</h2><pre>{verdict}</pre>
"""


@click.command()
@click.argument("directory", metavar="DIR", shell_complete=complete_files)
@click.option("-o", "--output", metavar="FILE", type=PathType(), default="run.html")
@click.option("--coverage", metavar="DIR", help="The loaders' coverage=DIR, if it was moved.")
@common_options
def report(directory: str, output: str, coverage: str | None) -> None:
    """Make one page of a run: rates and waits by rank, stages, shards, the plan, the verdict.

    DIR is what the loaders have as metrics=DIR. The page is one file without a script. Exit code 1
    if DIR has no such lines.
    """
    files, notes = read_lines(Path(directory))
    run = overview(files, notes, num_lines=0, now=time.time())
    plans = _read_plans(list(files), run["world_size"])
    coverage = coverage or next((plan["coverage"] for plan in plans if plan["coverage"]), None)
    proof = None if coverage is None else certified(Path(coverage))
    page = _PAGE.format(
        name=escape(clean(directory)),
        data=escape(clean(plans[0]["data"])) if plans else "",
        ranks=_text(show_ranks, run),
        charts=draw_charts(files, run["ranks"], plans),
        verdict="No loader had coverage=" if proof is None else _text(show_verdict, proof),
    )
    with atomic_write(output, "w") as file:
        file.write(page)
    document = {"output": output, "bytes": len(page.encode()), **run, "coverage": proof}
    finish(document, lambda _: write_line(f"{clean(output)}: {format_bytes(document['bytes'])}"))


def _text(show: Any, document: dict[str, Any]) -> str:
    """Return the output of a command, escaped for HTML."""
    written = io.StringIO()
    with redirect_stdout(written):
        show(document)
    return escape(written.getvalue())


def _read_plans(paths: list[str], world_size: int) -> list[dict[str, Any]]:
    """The newest map of each rank."""
    plans: dict[int, dict[str, Any]] = {}
    for path in paths:
        file = Path(path).with_suffix(".plan")
        if file.exists():
            with as_data_error(f"{file.name} can't be used", url=str(file)):
                plan = json.loads(file.read_bytes())
                if plan["world_size"] == world_size:
                    plans[plan["rank"]] = plan
    return [*plans.values()]
