"""`shardwise report`: one page of a run, from its lines of metrics and its coverage."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

from shardwise.base.errors import StorageError, imports_of
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import base_name
from shardwise.cli.options import PathType, common_options, complete_files
from shardwise.cli.output import clean, finish, format_bytes, write_line
from shardwise.extensions.certify.command import certified, show_verdict
from shardwise.extensions.monitor.metrics_lines import Line, interval, overview, read_lines
from shardwise.extensions.monitor.watch_command import show_ranks
from shardwise.storage.write import atomic_write

# A colour that no chart has, and that becomes the page's.
_INK = "#010203"
_RED = "#e5484d"
_MOST_POINTS, _MOST_NAMED = 200, 8
_Dicts = Sequence[Mapping[str, Any]]


def draw_charts(files: Mapping[str, Sequence[Line]], ranks: _Dicts, plans: _Dicts) -> str:
    """Rates, waits, stages, slowest shards, and the plan of this epoch and the next one.

    Args:
        files: the lines by file.
        ranks: what each rank did in all, see `overview`.
        plans: the map of each rank, see `plan_map`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with imports_of("plot", "shardwise report needs matplotlib"):
        import matplotlib as mpl
        from matplotlib.figure import Figure
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "shardwise", "axes.spines.top": False}
    with mpl.rc_context(options | dict.fromkeys(inks, _INK)):
        figure = Figure(figsize=(11, 11), layout="constrained")
        (rates, waits), (stages, slowest), maps = figure.subplots(3, 2)
        _draw_lines(rates, waits, files, {each["rank"]: bool(each["mark"]) for each in ranks})
        seconds = [pair for each in ranks for pair in each["seconds"].items()]
        names = dict.fromkeys(name for name, _ in seconds)
        sums = {name: sum(each for other, each in seconds if other == name) for name in names}
        _draw_bars(stages, sums, "busy seconds by stage, all ranks")
        shards = sorted((s, url) for each in ranks for url, s in each["slowest"].items())
        worst = {base_name(url): 1000 * s for s, url in shards}
        _draw_bars(slowest, dict([*worst.items()][-6:]), "slowest shards, ms per sample")
        for number, axes in enumerate(maps):
            _draw_map(
                axes, [plan["epochs"][number] for plan in plans if plan["epochs"]], plans, ranks
            )
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")


def _draw_lines(
    rates: Any, waits: Any, files: Mapping[str, Sequence[Line]], marked: Mapping[int, bool]
) -> None:
    began = min(lines[0]["time"] for lines in files.values())
    for lines in sorted(files.values(), key=lambda lines: lines[-1]["rank"]):
        rank = lines[-1]["rank"]
        points = [*lines[: -1 : -(-len(lines) // _MOST_POINTS)], lines[-1]]
        steps = [interval(pair) for pair in pairwise(points)]
        minutes = [(each["time"] - began) / 60 for each in steps]
        label = f"rank {rank}" if len(marked) <= _MOST_NAMED or marked.get(rank) else None
        # Only the marked rank stands out among many.
        colour = _RED if marked.get(rank) else f"C{rank % 10}" if label else "#8a8f98"
        form = {"color": colour, "linewidth": 2.5 if marked.get(rank) else 1, "label": label}
        rates.plot(minutes, [each["rate"] for each in steps], **form)
        waits.plot(minutes, [100 * each["wait"] for each in steps], **form)
    rates.set(title="samples per second", xlabel="minutes", ylim=(0, None))
    waits.set(title="waiting for data, % of the time", xlabel="minutes", ylim=(0, 100))
    rates.legend(frameon=False)


def _draw_bars(axes: Any, lengths: Mapping[str, float], title: str) -> None:
    axes.bar_label(axes.barh([*lengths], [*lengths.values()]), fmt="{:.3g}", padding=3)
    axes.set(title=title, xmargin=0.15)


def _draw_map(axes: Any, epochs: _Dicts, plans: _Dicts, ranks: _Dicts) -> None:
    """Draw how many ranks read each range of shards in each range of steps, and the progress."""
    if not epochs:
        axes.set_axis_off()
        return
    columns = np.array([[int(text, 16) for text in each["columns"]] for each in epochs], object)
    counts = [((columns >> row) & 1).sum(axis=0) for row in range(plans[0]["num_bins"])]
    number, num_steps = epochs[0]["epoch"], epochs[0]["num_steps"]
    shown = np.ma.masked_equal(np.array(counts, float), 0)
    extent = (0, num_steps, plans[0]["num_shards"], 0)
    image = axes.imshow(shown, aspect="auto", interpolation="nearest", vmin=1, extent=extent)
    axes.figure.colorbar(image, ax=axes, label="ranks that read it")
    if ranks[0]["epoch"] == number:
        axes.axvline(ranks[0]["progress"] * num_steps, color=_RED, linewidth=2)
    axes.set(title=f"plan of epoch {number}", xlabel="step", ylabel="shard")
    axes.locator_params(integer=True)


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
    named = coverage or next((plan["coverage"] for plan in plans if plan["coverage"]), None)
    proof, verdict = None, "No loader had coverage="
    if named is not None:
        try:
            proof = certified(Path(named))
            verdict = _text(show_verdict, proof)
        except StorageError as error:  # the loaders have no line of it before their first state
            if coverage is not None:
                raise
            verdict = escape(clean(str(error)))
    page = _PAGE.format(
        name=escape(clean(directory)),
        data=escape(clean(plans[0]["data"])) if plans else "",
        ranks=_text(show_ranks, run),
        charts=draw_charts(files, run["ranks"], plans),
        verdict=verdict,
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
