"""Rates of shardwise, of its peers and of the machine's floor, in one run, in turn, several times.

The peers are installed from their packages into an environment of their own, beside this library.
Prints a table of medians with ratios: to the best peer as documented, and to the floor.

    python -m benchmarks.throughput [--scale 0.25] [--rounds 3] [--seconds 5] [--task image-batch]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.corpora import make
from benchmarks.tasks import BATCH, LOADERS

ROOT = Path(__file__).resolve().parents[1]
PEERS = (
    "webdataset==1.0.2",
    "wids==0.1.11",
    "litdata==0.2.76",
    "mosaicml-streaming==0.13.0",
    "megatron-energon==7.4.1",
    "grain==0.2.18",
    "pylance==14.0.2",
    "spdl==0.8.0",
    # The newest that the others' requirements allow.
    "datasets",
)
OURS = "shardwise"
# Converting a corpus to a peer's own format counts, the first time.
TIMEOUT_S = 300


def environment(directory: Path) -> Path:
    """Make the peers' environment once; its Python."""
    python = directory / "bin" / "python"
    done = directory / "peers.txt"
    if not done.exists() or done.read_text().split() != list(PEERS):
        venv.create(directory, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        # In one go: torch is pinned, so that no peer pulls another build of it.
        ours = ["torch==2.13.0", "scikit-learn", "--editable", f"{ROOT}[image]"]
        subprocess.run([*install, *ours, *PEERS], check=True)
        # Its build does not load beside a torch without CUDA, and what tries to import it fails.
        subprocess.run([str(python), "-m", "pip", "uninstall", "-qy", "torchvision"], check=True)
        done.write_text("\n".join(PEERS))
    return python


def measure(command: list[str], what: str) -> dict[str, float] | None:
    """The line of JSON that a program prints; None, with a word, if it does not work here."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as wrong:
        # Files, not pipes: some peers leave processes behind that would keep a pipe open.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=wrong,
            start_new_session=True,
        )
        try:
            code: int | str = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = f"no end after {TIMEOUT_S} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        said.seek(0)
        wrong.seek(0)
        lines = [line for line in said if line.startswith("{")]
        if not lines:
            print(f"{what}: {code}\n{wrong.read()[-1000:]}", file=sys.stderr)
            return None
    result: dict[str, float] = json.loads(lines[-1])
    return result


def is_offered(task: str, loader: str) -> bool:
    """Whether a loader has something to show in a task."""
    if task == "tiny-raw":
        # One process, no decoder.
        one_process = loader == "shardwise" or not loader.startswith(("shardwise", "floor"))
        return one_process and "decode" not in loader and loader != "megatron-energon"
    return task == "image-batch" or "decode" not in loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path, default=Path(tempfile.gettempdir()) / "sw-corpora")
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "sw-peers")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--task", choices=list(BATCH), action="append")
    parser.add_argument("--loader", action="append", help="only these, and not all")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.corpora.mkdir(parents=True, exist_ok=True)
    make(arguments.corpora, scale=arguments.scale)
    python = environment(arguments.peers)

    tasks = arguments.task or list(BATCH)
    plan = [
        (task, loader)
        for task in tasks
        for loader in ("floor", *LOADERS)
        if is_offered(task, loader) and (arguments.loader is None or loader in arguments.loader)
    ]
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        bar = progress.add_task("measuring", total=len(plan) * arguments.rounds)
        for _ in range(arguments.rounds):
            for task, loader in plan:
                progress.update(bar, description=f"{task}: {loader}")
                command = [str(python), "-m", "benchmarks.tasks", loader, task]
                command += [str(arguments.corpora), "--seconds", str(arguments.seconds)]
                result = measure(command, f"{loader}, {task}")
                if result is not None:
                    results.setdefault((task, loader), []).append(result)
                progress.advance(bar)

    medians = {key: statistics.median(r["rate"] for r in runs) for key, runs in results.items()}
    if arguments.json:
        json.dump({f"{task}: {name}": rate for (task, name), rate in medians.items()}, sys.stdout)
        return
    for task in tasks:
        show(task, medians, results)
    Console().print(f"{platform.machine()}, Python {platform.python_version()}; {', '.join(PEERS)}")


def show(
    task: str,
    medians: dict[tuple[str, str], float],
    results: dict[tuple[str, str], list[dict[str, float]]],
) -> None:
    rates = {name: rate for (of, name), rate in medians.items() if of == task}
    peers = {n: r for n, r in rates.items() if not n.startswith((OURS, "floor"))}
    best = max((r for n, r in peers.items() if "our" not in n), default=float("nan"))
    floor = rates.get("floor")
    table = Table(title=f"{task}, batches of {BATCH[task]}, 2 workers, medians")
    columns = ("loader", "samples/s", "x best peer", "of the floor", "first batch, s")
    for column in (*columns, "CPU us a sample"):
        table.add_column(column, justify="left" if column == "loader" else "right")
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        firsts = [r["first_batch_s"] for r in results[task, name] if "first_batch_s" in r]
        cpu = [r["cpu_us"] for r in results[task, name] if "cpu_us" in r]
        table.add_row(
            name,
            f"{rate:,.0f}",
            f"{rate / best:.2f}",
            f"{rate / floor:.2f}" if floor else "-",
            f"{statistics.median(firsts):.2f}" if firsts else "-",
            f"{statistics.median(cpu):.2f}" if cpu else "-",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
