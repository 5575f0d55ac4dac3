"""The demo as a command: python -m examples.digits, or ./demo, which installs what it needs."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

import shardwise as sw
from examples.digits import GLOBAL_BATCH, ledger
from examples.digits.data import write_shards
from examples.digits.launch import ROOT, Phase, RunError, run
from examples.digits.progress import Progress
from examples.digits.summary import show, summarise

NUM_EPOCHS = 6


def phases(steps_per_epoch: int) -> list[Phase]:
    """Two ranks until the middle of epoch 2, three until the middle of epoch 4, one to the end."""
    return [
        Phase(1, world_size=2, kill_after=steps_per_epoch * 3 // 2),
        Phase(2, world_size=3, kill_after=steps_per_epoch * 7 // 2),
        Phase(3, world_size=1, kill_after=None),
    ]


def certify(directory: Path) -> list[str]:
    """What `shardwise certify` says of each epoch; nothing where it found a fault."""
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", "certify", "--json", directory / "coverage"],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        return []
    return [e["verdict"] for order in json.loads(done.stdout)["orders"] for e in order["epochs"]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--directory", type=Path, default=ROOT / "demo-data" / "digits")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args()
    directory: Path = options.directory.resolve()
    console = Console(stderr=options.json)
    began = time.monotonic()

    write_shards(directory)
    for name in ("ledger", "coverage"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / "checkpoint.pt").unlink(missing_ok=True)
    subprocess.run(
        [sys.executable, "-m", "shardwise", "index", directory / "train", directory / "test"],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    data = sw.tar(directory / "train")
    steps_per_epoch = -(-len(data) // GLOBAL_BATCH)
    plan = phases(steps_per_epoch)
    console.print(
        f"{len(data):,} handwritten digits in shards of "
        f"{', '.join(map(str, data.shard_sizes.tolist()))}; {NUM_EPOCHS} epochs of "
        f"{steps_per_epoch} steps of {GLOBAL_BATCH} samples",
        highlight=False,
        soft_wrap=True,
    )
    num_steps = steps_per_epoch * NUM_EPOCHS
    with Progress(console, num_epochs=NUM_EPOCHS, num_steps=num_steps) as progress:
        for phase in plan:
            progress.begin(phase)
            run(directory, phase, num_epochs=NUM_EPOCHS, watch=progress.update)
            progress.end(phase, ledger.read(directory / "ledger"))

    summary = summarise(
        ledger.read(directory / "ledger"),
        plan,
        num_samples=len(data),
        num_epochs=NUM_EPOCHS,
        certified=certify(directory),
        seconds=time.monotonic() - began,
    )
    if options.json:
        print(json.dumps(summary, indent=2))
    else:
        show(summary, console)
    return 0 if summary["passed"] else 1


def _stop(signum: int, _frame: object) -> None:
    sys.exit(128 + signum)  # by way of all the `finally`s, which end the ranks


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    try:
        sys.exit(main())
    except RunError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("demo: interrupted; no rank is left running", file=sys.stderr)
        sys.exit(130)
