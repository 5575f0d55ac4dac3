"""The pictures that commands draw with matplotlib: of `bench` a run, of `info` the sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import imports_of

# The rate is over a twelfth of the run: several batches long, and short enough to show a stall.
_WINDOWS = 12


def drawable(path: Path, *, is_tar: bool = True) -> None:
    """Check that a picture can be drawn into a file, before the run."""
    if not is_tar:
        raise ValueError("--plot draws the sizes of fields, which only tar shards have")
    known = sorted(_figure().canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in known:
        raise ValueError(f"--plot {path}: the name must end in one of {', '.join(known)}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--plot {path}: there is no directory {path.absolute().parent}")


def draw(
    path: Path,
    document: dict[str, Any],
    marks: Sequence[tuple[float, int]],
    ready: Sequence[tuple[float, float]],
) -> None:
    """Draw a result of `--json`, with a `Run`'s `marks` and `ready`, into a file."""
    figure = _figure()
    by_stage, over_time = figure.subfigures(1, 2, width_ratios=[2, 3])
    bars = by_stage.subplots()
    names = [stage["name"] for stage in document["stages"]][::-1]
    seconds = [stage["seconds"] for stage in document["stages"]][::-1]
    rectangles = bars.barh(names, seconds)
    bars.bar_label(
        rectangles, [f" {100 * stage['share']:.0f} %" for stage in document["stages"]][::-1]
    )
    bars.margins(x=0.15)
    bars.set_xlabel("busy seconds, over all threads")
    rate, queue = over_time.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    ends, rates = _rates(marks)
    mean = document["samples_per_s"]
    rate.stairs(rates, ends, label=f"each {ends[1]:.2g} s")
    rate.axhline(mean, color="black", linestyle="--", linewidth=1, label=f"mean {mean:,.0f}")
    rate.set_ylim(0, 1.2 * max(mean, *rates))
    rate.set_ylabel("samples/s")
    rate.legend(loc="lower right")
    queue.step([when for when, _ in ready], [depth for _, depth in ready], where="pre")
    queue.set_ylim(0, 1.2 * max([1.0, *(depth for _, depth in ready)]))
    queue.set_ylabel("batches ready")
    queue.set_xlabel("seconds")
    title = f"{mean:,.0f} samples/s, {document['bound_by']}-bound"
    figure.suptitle(title.replace("nothing-bound", "too short"))
    figure.savefig(path)


def draw_sizes(path: Path, sizes: Mapping[str, NDArray[np.int64]]) -> None:
    """Draw how many samples have which size, in bytes, a panel per field."""
    figure = _figure()
    panels = figure.subplots(1, max(1, len(sizes)), squeeze=False)[0]
    for axes, (name, found) in zip(panels, sizes.items(), strict=False):
        low, high = max(1, found.min()), found.max()
        # Sizes of more than one order of magnitude: each bin is larger by the same factor.
        axes.hist(found, np.geomspace(low, high, 50) if high > 10 * low else 50)
        axes.set(title=name, xlabel="bytes", xscale="log" if high > 10 * low else "linear")
    panels[0].set_ylabel("samples")
    figure.savefig(path)


def _rates(marks: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """The ends of windows and samples per second in each: batches come in bursts."""
    times = np.array([0.0, *(seconds for seconds, _ in marks)])
    samples = np.cumsum([0, *(count for _, count in marks)])
    ends = np.linspace(0, times[-1], _WINDOWS + 1)
    # A batch counts evenly over the time since the one before: few batches would look like steps.
    return ends.tolist(), (np.diff(np.interp(ends, times, samples)) / ends[1]).tolist()


def _figure() -> Any:
    with imports_of("plot", "--plot needs matplotlib"):
        from matplotlib.figure import Figure
    return Figure(figsize=(11, 4.5), layout="constrained")
