"""How far the training is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from examples.digits.launch import Phase
from examples.digits.ledger import Account

__all__ = ["Progress"]


class Progress:
    """Follows the last step that the ledger shows; after a kill it goes back with the training."""

    def __init__(self, console: Console, *, num_epochs: int, num_steps: int) -> None:
        self._console = console
        self._num_epochs = num_epochs
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("steps"),
            progress.TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=num_steps)
        self._tested: set[int] = set()
        self._resumed: set[int] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, phase: Phase) -> None:
        """A run starts."""
        self._bar.update(self._task, description=f"run {phase.number}, {_ranks(phase)}")
        self._say(f"run {phase.number}: starts on {_ranks(phase)}")

    def update(self, account: Account) -> None:
        """The ledger has grown."""
        if not account.runs:
            return
        run = account.runs[-1]
        self._bar.update(self._task, completed=run.last_step)
        if run.resumed_from and run.number not in self._resumed:
            self._resumed.add(run.number)
            number, step = run.resumed_from
            self._say(f"run {run.number}: goes on from run {number}'s checkpoint of step {step}")
        for epoch, score in sorted(run.accuracy.items()):
            if epoch not in self._tested:
                self._tested.add(epoch)
                self._say(f"  epoch {epoch + 1} of {self._num_epochs}: test accuracy {score:.1%}")

    def end(self, phase: Phase, account: Account) -> None:
        """A run is over."""
        last = account.runs[-1].last_step
        if phase.kill_after is None:
            self._say(f"run {phase.number}: finished with step {last}")
        else:
            self._say(f"run {phase.number}: SIGKILL to all ranks after step {last}")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False)


def _ranks(phase: Phase) -> str:
    return "1 rank" if phase.world_size == 1 else f"{phase.world_size} ranks"
