"""Conformance of a training loop: a run that was stopped and resumed trains on the same samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from shardwise.base.arguments import suggest_names
from shardwise.loader import DataLoader

# A checkpoint is whatever the program saves; None is a run from the start.
Train = Callable[[DataLoader, Any, int], tuple[list[int], Any]]


@suggest_names
def check_trainer(train: Train, make: Callable[[], DataLoader], *, num_epochs: int = 2) -> None:
    """Hold a training loop, or a framework's adapter, to exact epochs and an exact resume.

    The loop is stopped after each step of `num_epochs` epochs, and resumed with a new loader.

    Args:
        train: called with a loader, a checkpoint or None, and a number of steps; trains for that
            many steps, over the end of an epoch where it comes, and returns the ids of the samples
            in their order (`batch["__index__"]`) and a checkpoint.
        make: makes the loader, with shuffle and without padding.
        num_epochs: epochs of the run.

    Raises:
        AssertionError: an epoch lacks samples or repeats some, or a resumed run trains on others;
            the message has the step.
    """
    with make() as loader:
        num_steps = len(loader)
        whole, _ = train(loader, None, num_steps * num_epochs)
    size, left = divmod(len(whole), num_epochs)
    assert not left, f"{len(whole)} samples in {num_epochs} epochs: not the same number in each"
    for epoch in range(num_epochs):
        counts = Counter(whole[epoch * size : (epoch + 1) * size])
        repeated = [sample for sample, count in counts.items() if count > 1]
        assert not repeated, f"epoch {epoch} trains twice on samples {repeated[:5]}"
    if num_epochs > 1 and size > 2:
        assert whole[:size] != whole[size : 2 * size], "each epoch has the same order"
    for step in range(1, num_steps * num_epochs):
        with make() as loader:
            first, checkpoint = train(loader, None, step)
        with make() as loader:
            rest, _ = train(loader, checkpoint, num_steps * num_epochs - step)
        assert first + rest == whole, (
            f"stopped after step {step}: {len(rest)} samples follow, "
            f"{len(set(rest) - set(whole[len(first) :]))} of them others than without the stop"
        )
