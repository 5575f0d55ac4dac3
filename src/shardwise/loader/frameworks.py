"""What training frameworks ask of a loader, beside its batches and its state.

Modules that import a framework are imported inside functions, once the program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from types import FrameType
from typing import Any, NoReturn

from shardwise.epoch_sampler import EpochLoader, EpochSampler
from shardwise.errors import FrameworkError
from shardwise.plan import Plan, SequentialSampler

# Who asks a loader for these is about to make torch's DataLoader of its parts: Ray for the first,
# Accelerate's skip_first_batches for the second. Lightning only asks whether there is the first.
_ASKED_TO_REBUILD = {"worker_init_fn": AttributeError, "generator": FrameworkError}
# Where Ray's prepare_data_loader, and what it puts around a loader, are defined.
_RAY = "ray.train.torch.train_loop_utils"
# Composer's Trainer, and the two of its functions, innermost first, that iterate what it trains on.
_COMPOSER, _COMPOSERS_PASS = "composer.trainer.trainer", ["_iter_dataloader", "_train_loop"]
# The one place where Lightning asks for a sampler to turn the shuffle off.
_OVERFIT = "_resolve_overfit_batches"


def callers() -> Iterator[tuple[str, FrameType]]:
    """The call stack, innermost first, each frame with its module's name.

    For frameworks that ask a loader for nothing that would tell what they are about to do.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame
        frame = frame.f_back


def sampler_of(loader: EpochLoader) -> EpochSampler:
    """A way to set the epoch, and where nothing is shuffled an instance of torch's too.

    Raises:
        FrameworkError: Lightning's `overfit_batches` would turn off the shuffle of a loader.
    """
    if "torch" not in sys.modules or not isinstance(loader.plan.sampler, SequentialSampler):
        if any(frame.f_code.co_name == _OVERFIT for _, frame in callers()):
            raise FrameworkError(
                "Lightning's overfit_batches repeats the first batches of an epoch, and this "
                "loader shuffles each epoch anew: make the loader with shuffle=False for it"
            )
        return EpochSampler(loader)
    from shardwise.tensors.torch_dataloader import StorageOrderSampler

    return StorageOrderSampler(loader)


def batches_for_frameworks(
    batches: Generator[Any, None, None], rest: Callable[[], Plan], *, is_known: bool
) -> Iterator[Any]:
    """The batches of a pass, which Accelerate takes for active where the program uses it.

    Args:
        batches: the pass, not yet begun.
        rest: gives its plan; called after its first batch was built.
        is_known: whether a framework saves its position.

    Raises:
        FrameworkError: what Ray's `prepare_data_loader` made of a loader iterates it; or Composer
            trains on it without keeping its state.
    """
    if _COMPOSER in sys.modules:
        _check_composer()
    if _RAY in sys.modules and any(module == _RAY for module, _ in callers()):
        raise FrameworkError(
            "Ray's prepare_data_loader takes a batch ahead of the program, so that a state would "
            "be a batch too far: iterate the loader as it is, made with "
            "device=ray.train.torch.get_device() if batches are to be moved"
        )
    if "accelerate.state" not in sys.modules:
        return batches
    from shardwise.integrations.accelerate import active_batches

    return active_batches(batches, rest, is_known=is_known)


def _check_composer() -> None:
    """Refuse to be trained on by Composer where nothing keeps the position.

    Raises:
        FrameworkError: a resume would begin with another epoch, or leave batches out.
    """
    frames = [frame for module, frame in callers() if module == _COMPOSER][:2]
    if [frame.f_code.co_name for frame in frames] != _COMPOSERS_PASS:
        return
    if "train" not in frames[0].f_locals["self"].state.dataset_resumption:
        raise FrameworkError(
            "Composer sets no epoch of this loader and does not save its position, so that a "
            "resume would train on other samples: give its Trainer callbacks=[LoaderState(loader)] "
            "of shardwise.integrations.composer"
        )


def no_such_attribute(kind: type, name: str) -> NoReturn:
    """Refuse those who would rebuild a loader as torch's, by what only they ask for.

    Raises:
        AttributeError: there is no such attribute.
        FrameworkError: Accelerate asked; it would not listen to an AttributeError.
    """
    if name not in _ASKED_TO_REBUILD:
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    raise _ASKED_TO_REBUILD[name](
        f"a shardwise loader has no {name}, since it can't be rebuilt as torch's DataLoader: it "
        "has divided the data, and goes on in mid-epoch by its own state. Iterate it as it is: "
        "without Ray's prepare_data_loader, without Accelerate's skip_first_batches, and in "
        "Hugging Face's Trainer through LoaderMixin of shardwise.integrations.huggingface"
    )
