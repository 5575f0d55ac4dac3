"""Guards against what frameworks would do to a loader without a call to it.

They read the call stack, since nothing else shows it. The names there are the frameworks' own; each
has a test with the framework, or a stand-in where it can't be installed beside torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from types import FrameType
from typing import Any

from shardwise.base.errors import FrameworkError
from shardwise.base.framework_guards import Guard
from shardwise.plan import Plan

# Between a framework and the loop over the frames lie a property, its guard, and, before Python
# 3.12, comprehensions.
_NEAR = 7


def callers() -> Iterator[tuple[str, FrameType]]:
    """Yield the call stack, innermost first, each frame with its module's name."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame
        frame = frame.f_back


def _is_called_by(name: str) -> bool:
    return any(frame.f_code.co_name == name for _, frame in islice(callers(), _NEAR))


class AccelerateGuard(Guard):
    """Takes a pass for Accelerate's active loader; finds what divides data once more."""

    # Accelerate's wrappers that divide a loader, all in one module.
    _MODULE = "accelerate.data_loader"
    _DIVIDERS = ("BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher")

    def wrap_batches(
        self, batches: Generator[Any, None, None], rest: Callable[[], Plan], *, is_known: bool
    ) -> Iterator[Any]:
        """Make the pass Accelerate's active loader."""
        from accelerate.state import is_initialized

        from shardwise.integrations.accelerate import active_batches

        # Without an Accelerator the pass itself: a generator around another one that the garbage
        # collector closes first could not close it again.
        if not is_initialized():
            return batches
        return active_batches(batches, rest, is_known=is_known)

    def check_generator(self, *, refuses_skips: bool) -> None:
        """Refuse `skip_first_batches`, which would leave batches out once more."""
        if refuses_skips and _is_called_by("skip_first_batches"):
            raise FrameworkError(
                "a loader that keeps its position resumes there by itself: leave Accelerate's "
                "skip_first_batches out, which would skip batches once more; load_state or "
                "load_state_dict is enough"
            )

    def find_divider(self) -> str | None:
        """Return the class that divides what it iterates among its ranks, with its owner."""
        from shardwise.integrations.accelerate import check_dividers

        check_dividers(*self._DIVIDERS)
        frames = (frame for module, frame in callers() if module == self._MODULE)
        owners = (type(frame.f_locals.get("self")).__name__ for frame in frames)
        return next((f"Accelerate's {name}" for name in owners if name in self._DIVIDERS), None)


class CheckpointGuard(Guard):
    """Knows when torch.distributed.checkpoint (DCP) asks for a state."""

    _MODULE = "torch.distributed.checkpoint"

    def saves_leaves(self) -> bool:
        """Whether DCP asks, perhaps through a `Stateful` of the program's."""
        return any(module.startswith(self._MODULE) for module, _ in callers())


class ComposerGuard(Guard):
    """Refuses to be trained on by Composer where nothing keeps the position."""

    _MODULE = "composer.trainer.trainer"
    # The two functions of its Trainer that iterate what it trains on, innermost first.
    _PASS = ("_iter_dataloader", "_train_loop")

    def check_pass(self) -> None:
        """Refuse a pass whose resume would start with another epoch, or leave batches out."""
        frames = [frame for module, frame in callers() if module == self._MODULE][:2]
        if tuple(frame.f_code.co_name for frame in frames) != self._PASS:
            return
        if "train" not in frames[0].f_locals["self"].state.dataset_resumption:
            raise FrameworkError(
                "Composer sets no epoch of this loader and does not save its position, so that a "
                "resume would train on other samples: give its Trainer "
                "callbacks=[LoaderState(loader)] of shardwise.integrations.composer"
            )


class KerasGuard(Guard):
    """Knows when `fit` builds a model from the first batch."""

    def builds_model(self) -> bool:
        """Keras: _symbolic_build, EpochIterator.__next__, _enumerate_iterator, a loader's."""
        return _is_called_by("_symbolic_build")


class LightningGuard(Guard):
    """Refuses `overfit_batches` for a loader that shuffles."""

    def check_shuffle(self) -> None:
        """Refuse the one place where Lightning asks for a sampler to turn the shuffle off."""
        if any(frame.f_code.co_name == "_resolve_overfit_batches" for _, frame in callers()):
            raise FrameworkError(
                "Lightning's overfit_batches repeats the first batches of an epoch, and this "
                "loader shuffles each epoch again: make the loader with shuffle=False for it"
            )


class RayGuard(Guard):
    """Refuses Ray's `prepare_data_loader`."""

    _MODULE = "ray.train.torch.train_loop_utils"

    def check_pass(self) -> None:
        """Refuse to be iterated by what takes a batch ahead of the program."""
        if any(module == self._MODULE for module, _ in callers()):
            raise FrameworkError(
                "Ray's prepare_data_loader takes a batch ahead of the program, so that a state "
                "would be a batch too far: iterate the loader as it is, made with "
                "device=ray.train.torch.get_device() if batches are to be moved"
            )

    def check_generator(self, *, refuses_skips: bool) -> None:  # noqa: ARG002 - the base's
        """Refuse to have the sampler replaced."""
        if _is_called_by("with_sampler"):
            raise FrameworkError(
                "Ray's prepare_data_loader would put torch's DistributedSampler in place of this "
                "loader's order, and its state would not move: iterate the loader as it is"
            )


ACCELERATE = AccelerateGuard()
CHECKPOINT = CheckpointGuard()
COMPOSER = ComposerGuard()
KERAS = KerasGuard()
LIGHTNING = LightningGuard()
RAY = RayGuard()
