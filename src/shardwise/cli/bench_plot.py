"""The picture of `shardwise bench`: seconds by stage, and the rate over time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import MissingExtraError

__all__ = ["draw", "drawable"]

# Points of the rate's line: enough to see a stall, few enough to see anything.
_MAX_POINTS = 50


def drawable(path: Path) -> None:
    """Check that a picture can be drawn into this file, before there is one.

    Raises:
        MissingExtraError: matplotlib is not there.
        ValueError: it knows no format of this name, or the directory is not there.
    """
    known = sorted(_figure().canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in known:
        raise ValueError(f"--plot {path}: the name must end in one of {', '.join(known)}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--plot {path}: there is no directory {path.absolute().parent}")


def draw(path: Path, document: dict[str, Any], marks: Sequence[tuple[float, int]]) -> None:
    """Draw a result.

    Args:
        path: the file; its ending says the format.
        document: the result as `--json` gives it.
        marks: seconds and samples of each batch.
    """
    figure = _figure()
    by_stage, over_time = figure.subplots(1, 2)
    names = [stage["name"] for stage in document["stages"]][::-1]
    by_stage.barh(names, [stage["seconds"] for stage in document["stages"]][::-1])
    by_stage.set_xlabel("busy seconds, over all threads")
    times, rates = _rates(marks)
    over_time.plot(times, rates)
    over_time.set_ylim(bottom=0)
    over_time.set_xlabel("seconds")
    over_time.set_ylabel("samples/s")
    rate = f"{document['samples_per_s']:,.0f} samples/s"
    figure.suptitle(f"{rate}, {document['bound_by']}-bound".replace("nothing-bound", "too short"))
    figure.savefig(path)


def _rates(marks: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """The rate in parts of the run: when each part ends, and its samples a second."""
    ends = np.unique(np.linspace(0, len(marks), min(_MAX_POINTS, len(marks)) + 1).astype(int))[1:]
    times = np.array([seconds for seconds, _ in marks])[ends - 1]
    samples = np.cumsum([count for _, count in marks])[ends - 1]
    rates = np.diff(samples, prepend=0) / np.maximum(np.diff(times, prepend=0.0), 1e-9)
    return times.tolist(), rates.tolist()


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("--plot needs matplotlib", extra="plot") from error
    return Figure(figsize=(10, 4), layout="constrained")
