"""What the demo has shown: counted from the ledger, as a dict for --json and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.digits.launch import Phase
from examples.digits.ledger import Account

__all__ = ["MIN_ACCURACY", "show", "summarise"]

MIN_ACCURACY = 0.95


def summarise(
    account: Account,
    phases: Sequence[Phase],
    *,
    num_samples: int,
    num_epochs: int,
    certified: Sequence[str],
    seconds: float,
) -> dict[str, Any]:
    """Count what the ledger says; `passed` is True if every claim of the demo holds."""
    undone = account.undone()
    runs = []
    for phase, run in zip(phases, account.runs, strict=True):
        lost = [step for step in undone if step.run is run]
        runs.append(
            {
                "run": run.number,
                "ranks": run.world_size,
                "from_step": run.resumed_from[1] if run.resumed_from else 0,
                "to_step": run.last_step,
                "ended": "finished" if phase.kill_after is None else "SIGKILL",
                "undone_steps": len(lost),
                "undone_samples": sum(len(step.ids) for step in lost),
            }
        )
    tested = {epoch: score for run in account.runs for epoch, score in run.accuracy.items()}
    epochs = [
        {
            "epoch": use.epoch,
            "steps": use.num_steps,
            "ranks": list(use.world_sizes),
            "used_once": use.once,
            "used_more": use.more,
            "never_used": use.never,
            "accuracy": tested.get(use.epoch),
        }
        for use in account.epochs(num_samples)
    ]
    accuracy = tested.get(num_epochs - 1, 0.0)
    checks = {
        "every_sample_once_in_every_epoch": len(epochs) == num_epochs
        and all(epoch["used_once"] == num_samples for epoch in epochs)
        and not any(epoch["used_more"] for epoch in epochs),
        "every_epoch_is_certified": len(certified) == num_epochs
        and all(f"every one of {num_samples:,} samples exactly once" in v for v in certified),
        "repeated_steps_had_the_same_samples": account.repeated_alike(),
        "accuracy_is_high_enough": accuracy > MIN_ACCURACY,
    }
    return {
        "num_samples": num_samples,
        "accuracy": accuracy,
        "runs": runs,
        "epochs": epochs,
        "certified": list(certified),
        "checks": checks,
        "passed": all(checks.values()),
        "seconds": round(seconds, 1),
    }


def show(summary: dict[str, Any], console: Console) -> None:
    """Print the summary for a person."""
    runs = Table(title="Runs", title_justify="left")
    for name in ("run", "ranks", "steps", "ended by"):
        runs.add_column(name, justify="right" if name == "ranks" else "left")
    runs.add_column("undone, done again", justify="right")
    for run in summary["runs"]:
        undone = f"{run['undone_steps']} steps, {run['undone_samples']} samples"
        runs.add_row(
            str(run["run"]),
            str(run["ranks"]),
            f"{run['from_step'] + 1} to {run['to_step']}",
            run["ended"],
            undone if run["undone_steps"] else "-",
        )
    title = f"How often each of the {summary['num_samples']:,} training samples was used"
    epochs = Table(title=title, title_justify="left")
    for name in ("epoch", "on ranks", "steps", "once", "more", "never", "test accuracy"):
        epochs.add_column(name, justify="left" if name == "on ranks" else "right")
    for epoch in summary["epochs"]:
        score = epoch["accuracy"]
        epochs.add_row(
            str(epoch["epoch"] + 1),
            ", then ".join(map(str, epoch["ranks"])),
            str(epoch["steps"]),
            f"{epoch['used_once']:,}",
            f"{epoch['used_more']:,}",
            f"{epoch['never_used']:,}",
            "lost in the kill" if score is None else f"{score:.1%}",
        )
    console.print(runs)
    console.print(epochs)
    checks = summary["checks"]
    lines = (
        (
            checks["every_sample_once_in_every_epoch"],
            "every training sample was used exactly once in every epoch",
        ),
        (
            checks["every_epoch_is_certified"],
            "`shardwise certify` says the same of each epoch, from what the loaders wrote down: "
            f"{summary['certified'][-1] if summary['certified'] else 'nothing'}",
        ),
        (
            checks["repeated_steps_had_the_same_samples"],
            "steps done again on other ranks had the same samples as the first time",
        ),
        (
            checks["accuracy_is_high_enough"],
            f"test accuracy {summary['accuracy']:.1%} (more than {MIN_ACCURACY:.0%} is asked for)",
        ),
    )
    for good, line in lines:
        console.print(f"[green]ok[/]      {line}" if good else f"[bold red]FAILED[/]  {line}")
    console.print(f"{summary['seconds']} s", highlight=False)
