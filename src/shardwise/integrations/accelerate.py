"""Hugging Face Accelerate: it saves a loader, and knows its last batch and what of it is padding.

Accelerate ends a sum of gradients with the epoch, and `gather_for_metrics` cuts repeats off, for
the loader that it takes for active. A loader that is iterated beside an Accelerator makes itself
that one (`active_batches`). Its position is only saved if Accelerate knows the loader (`prepare`),
so a loader that it does not know is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar

import accelerate
from accelerate import Accelerator, checkpointing, data_loader
from accelerate.state import GradientState, PartialState, is_initialized

from shardwise.base.errors import FrameworkError
from shardwise.integrations.repeats import refuse_repeats
from shardwise.integrations.versions import require, require_literal
from shardwise.plan import Plan
from shardwise.plan.epoch_sampler import EpochLoader

L = TypeVar("L", bound=EpochLoader)

_TESTED = "1.15.0"


def prepare(accelerator: Accelerator, loader: L) -> L:
    """Make Accelerate save a loader's position; it divides nothing, the loader has done that.

    After it `accelerator.save_state` and `load_state` keep the position, also in the middle of an
    epoch. Call it in the same order for all loaders of a program, before `load_state`.

    Args:
        accelerator: the program's own.
        loader: made with `device=accelerator.device`, if batches are to be moved. Where
            `remainder` was not passed and nothing is shuffled, it becomes "pad", so that
            `gather_for_metrics` gets equal batches and cuts the repeats off.

    Returns:
        The loader itself.

    Raises:
        FrameworkError: this version of Accelerate is not known to leave a loader as it is.

    Examples:
        ```python
        loader = prepare(accelerator, sw.DataLoader(data, batch_size=32))
        ```
    """
    _check_names()
    loader._pad(only_default=True)
    prepared: object = accelerator.prepare_data_loader(loader)
    if prepared is not loader:
        raise FrameworkError(
            f"accelerate {accelerate.__version__} has put a loader of its own around this one, "
            f"which would divide the data once more: use accelerate {_TESTED}"
        )
    loader._is_accelerate_prepared = True  # as Accelerator.prepare marks what it has prepared
    return loader


def active_batches(
    batches: Generator[Any, None, None], rest: Callable[[], Plan], *, is_known: bool
) -> Iterator[Any]:
    """Yield the batches of a pass; meanwhile Accelerate takes it for the active loader.

    Args:
        batches: the pass, not yet started.
        rest: the plan of what the pass returns; called after its first batch was made.
        is_known: whether something saves the loader's position.

    Raises:
        FrameworkError: there is an Accelerator, and it doesn't know the loader.
        ValueError: the last batches of "uneven" differ in length, and can't be gathered.
    """
    _check_names()
    if not is_known:
        raise FrameworkError(
            "there is an Accelerator that does not know this loader, so that its checkpoints would "
            "lack the position: use shardwise.integrations.accelerate.prepare(accelerator, "
            "loader), or in Hugging Face's Trainer LoaderMixin of "
            "shardwise.integrations.huggingface"
        )
    gradients, active = GradientState(), None
    with closing(batches):
        try:
            for batch in batches:
                if active is None:
                    active = _Active(rest())
                    gradients._add_dataloader(active)
                active.num_left -= 1
                yield batch
        finally:
            if active is not None:
                gradients._remove_dataloader(active)


class _Active:
    """The attributes that Accelerate reads of its active loader.

    Attributes:
        num_left: batches that the pass has still to return.
        remainder: rows of the last batch that count, over all ranks: the first ones of a gather;
            0 cuts nothing off.
    """

    def __init__(self, rest: Plan) -> None:
        last = rest.num_steps - 1
        steps = range(last, last + 1)
        sizes = {int(rest.partition.row_ends(steps, rank)[0]) for rank in (0, rest.world_size - 1)}
        refuse_repeats(rest)
        if len(sizes) > 1 and rest.has_even_steps:
            raise ValueError(
                f"remainder='uneven' gives ranks {max(sizes)} and {min(sizes)} rows in the last "
                "batch, and Accelerate gathers only equal ones: use remainder='pad', whose "
                "repeats gather_for_metrics cuts off"
            )
        self.num_left = rest.num_steps
        # A gather has rows twice if there are fewer ranks than processes (tensor parallelism).
        is_cut = rest.num_padded and rest.world_size == PartialState().num_processes
        self.remainder = rest.global_batch_size - rest.num_padded if is_cut else 0

    @property
    def end_of_dataloader(self) -> bool:
        return self.num_left == 0


def check_dividers(*names: str) -> None:
    """Refuse an Accelerate in use that divides data by other names than these."""
    if is_initialized():
        version = f"accelerate {accelerate.__version__}"
        require(data_loader, *names, version=version, tested=_TESTED)


def _check_names() -> None:
    """Refuse a version that lacks what is relied on: a renamed mark would divide data twice."""
    version = f"accelerate {accelerate.__version__}"
    require(GradientState, "_add_dataloader", "_remove_dataloader", version=version, tested=_TESTED)
    divides, saves = Accelerator.prepare_data_loader, checkpointing.save_accelerator_state
    require_literal(divides, "_is_accelerate_prepared", version=version, tested=_TESTED)
    require_literal(saves, "use_stateful_dataloader", version=version, tested=_TESTED)
