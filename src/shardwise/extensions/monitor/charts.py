"""The charts of a run as one SVG by matplotlib, in the colour of the page's text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.base.errors import MissingExtraError
from shardwise.base.shown import base_name
from shardwise.extensions.monitor.metrics_lines import Line, interval

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
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("shardwise report needs matplotlib", extra="plot") from error
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
