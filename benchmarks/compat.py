"""WebDataset and wids against `shardwise.compat`: the same programs, in one run, in turn.

Each program of `benchmarks.tasks` runs twice: with the package itself, and behind
`shardwise.compat.install()`, where its `import webdataset` or `import wids` finds ours. Prints the
medians of both, and the median of the ratios of the rounds. The peers are installed into an
environment of their own, as for `benchmarks.throughput`.

    python -m benchmarks.compat [--scale 0.25] [--rounds 3] [--seconds 5] [--task image-batch]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.corpora import make
from benchmarks.tasks import BATCH
from benchmarks.throughput import environment, measure

PROGRAMS = (
    "webdataset",
    "webdataset, our decoder",
    "webdataset, decode('rgb8')",
    "wids",
    "wids, our decoder",
)
SIDES = {
    "theirs": "from benchmarks.tasks import main; main()",
    "ours": (
        "import shardwise; shardwise.compat.install(); from benchmarks.tasks import main; main()"
    ),
}
# wids opens a shard anew for almost every sample of a shuffle: it would take minutes.
LEFT_OUT = {("tiny-batch", "wids")}


def programs_of(task: str) -> list[str]:
    """The programs that make sense for a task."""
    return [
        program
        for program in PROGRAMS
        if (task, program.partition(",")[0]) not in LEFT_OUT
        and ("decode" not in program or task == "image-batch")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path, default=Path(tempfile.gettempdir()) / "sw-corpora")
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "sw-peers")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--task", choices=list(BATCH), action="append")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.corpora.mkdir(parents=True, exist_ok=True)
    make(arguments.corpora, scale=arguments.scale)
    python = environment(arguments.peers)

    plan = [(task, p) for task in arguments.task or list(BATCH) for p in programs_of(task)]
    results: dict[tuple[str, str], dict[str, list[dict[str, float]]]] = {
        key: {side: [] for side in SIDES} for key in plan
    }
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("measuring", total=len(plan) * len(SIDES) * arguments.rounds)
        for number in range(arguments.rounds):
            for task, program in plan:
                # Each side goes first in turn: the machine may grow slower in a pair.
                for side in sorted(SIDES, reverse=number % 2 == 0):
                    progress.update(bar, description=f"{task}: {program} ({side})")
                    command = [str(python), "-c", SIDES[side], program, task]
                    command += [str(arguments.corpora), "--seconds", str(arguments.seconds)]
                    found = measure(command, f"{program} ({side}), {task}")
                    if found is None:
                        raise SystemExit(1)  # what is wrong was said
                    results[task, program][side].append(found)
                    progress.advance(bar)
    rows = [row(task, program, runs) for (task, program), runs in results.items()]
    if arguments.json:
        json.dump(rows, sys.stdout)
        return
    show(rows)


def row(task: str, program: str, runs: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """What the rounds of one program say."""
    pairs = zip(runs["ours"], runs["theirs"], strict=True)
    firsts = {s: [r["first_batch_s"] for r in runs[s] if "first_batch_s" in r] for s in SIDES}
    return {
        "task": task,
        "program": program,
        **{side: statistics.median(run["rate"] for run in runs[side]) for side in SIDES},
        "ratio": statistics.median(ours["rate"] / theirs["rate"] for ours, theirs in pairs),
        **{
            f"{side}_first_batch_s": statistics.median(found) if found else None
            for side, found in firsts.items()
        },
    }


def show(rows: list[dict[str, object]]) -> None:
    table = Table(title="samples/s, medians; a shuffled program has 2 workers")
    titles = (
        "task",
        "program",
        "itself",
        "shardwise.compat",
        "ratio",
        "first batch, s: itself",
        "ours",
    )
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < 2 else "right")
    for found in rows:
        firsts = [found["theirs_first_batch_s"], found["ours_first_batch_s"]]
        table.add_row(
            str(found["task"]),
            str(found["program"]),
            f"{found['theirs']:,.0f}",
            f"{found['ours']:,.0f}",
            f"{found['ratio']:.2f}",
            *("-" if first is None else f"{first:.2f}" for first in firsts),
        )
    Console(width=110).print(table)
    Console().print(f"{platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
