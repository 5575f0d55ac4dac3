"""Arguments of torch's DataLoader, and their names here: one table, for loader and docs.

An argument that means the same is taken under torch's name. Of the others only the values that
change nothing are taken, so that a program that passes torch's defaults runs; any other value is an
error that names the replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Generic, Literal, NamedTuple, TypedDict

from shardwise.base.arguments import check_flag, check_function
from shardwise.loader.returned_types import B
from shardwise.plan import Remainder


class TorchArguments(TypedDict, Generic[B], total=False):
    """torch's names that `sw.DataLoader` takes beside its own, with the values that it takes."""

    drop_last: bool
    collate_fn: Callable[[list[Any]], B] | None
    persistent_workers: bool
    in_order: Literal[True]
    multiprocessing_context: Literal["spawn"] | None
    batch_sampler: None
    worker_init_fn: None
    generator: None
    pin_memory_device: Literal[""]


class TorchArgument(NamedTuple):
    """One of torch's arguments.

    Attributes:
        ours: what to write here.
        why: what differs, in one sentence.
        accepted: the values that are accepted; None for all.
    """

    ours: str
    why: str
    accepted: tuple[Any, ...] | None = None


TORCH_ARGUMENTS: Mapping[str, TorchArgument] = {
    "drop_last": TorchArgument(
        "remainder=", "True is 'drop' and False 'uneven', in equal steps on all ranks; or 'pad'."
    ),
    "collate_fn": TorchArgument(
        "collate=", "Samples are dicts; with as_tuple=(...) they are tuples of these fields."
    ),
    "persistent_workers": TorchArgument(
        "nothing", "Workers live until close(), and the batches are the same."
    ),
    "in_order": TorchArgument("nothing", "There is one order, whichever worker is first.", (True,)),
    "multiprocessing_context": TorchArgument(
        "nothing", "Workers are fresh interpreters, as with 'spawn'.", (None, "spawn")
    ),
    "batch_sampler": TorchArgument(
        "batch_size= with sampler= or shuffle=",
        "The plan cuts the order into equal steps for all ranks. sw.torch.BatchSampler is for "
        "torch's own DataLoader.",
        (None,),
    ),
    "worker_init_fn": TorchArgument(
        "ds.map(fn) with fn(sample, rng)",
        "Randomness is keyed by seed, epoch and sample, not by worker. Open files when fn is "
        "first called.",
        (None,),
    ),
    "generator": TorchArgument(
        "seed=",
        "The order is a function of seed and epoch, the same on all ranks.",
        (None,),
    ),
    "pin_memory_device": TorchArgument("device=", "Batches come on that device.", ("",)),
}


def translate(
    arguments: Mapping[str, Any],
    *,
    remainder: Remainder | None,
    collate: Callable[[list[Any]], Any] | None,
    options: Collection[str],
) -> tuple[Remainder | None, Callable[[list[Any]], Any] | None]:
    """Translate torch's arguments into the loader's own `remainder` and `collate`.

    `remainder` and `collate` are the loader's arguments, or None; `options` names all of them.

    Raises:
        TypeError: the argument does not exist; the message has similar names. Or a value is of
            another type than torch's.
        ValueError: a value that has no meaning here, or that contradicts the loader's own argument.
    """
    for name, value in arguments.items():
        argument = TORCH_ARGUMENTS.get(name)
        if argument is None:
            similar = get_close_matches(name, [*options, *TORCH_ARGUMENTS], n=3)
            meant = f"; did you mean {' or '.join(f'{s}=' for s in similar)}?" if similar else ""
            raise TypeError(f"DataLoader() has no argument {name}={value!r:.80}{meant}")
        if argument.accepted is not None and _plain(value) not in argument.accepted:
            remedy = (
                f"use {argument.ours} instead" if argument.ours != "nothing" else "leave it out"
            )
            raise ValueError(f"DataLoader({name}={value!r:.80}): {remedy}. {argument.why}")
        if name in ("drop_last", "persistent_workers") and value is not None:
            check_flag(name, value)
    if (drop_last := arguments.get("drop_last")) is not None:
        if remainder is not None and bool(drop_last) != (remainder == "drop"):
            raise ValueError(
                f"drop_last={drop_last} and remainder={remainder!r} contradict each other: leave "
                "drop_last= out"
            )
        remainder = remainder or ("drop" if drop_last else "uneven")
    if (collate_fn := arguments.get("collate_fn")) is not None:
        if collate is not None:
            raise ValueError("collate= and collate_fn= are the same argument: leave one out")
        check_function("collate_fn", collate_fn)
        collate = collate_fn
    return remainder, collate


def _plain(value: Any) -> Any:
    """The name of a multiprocessing context, which is as good as the context itself."""
    method = getattr(value, "get_start_method", None)
    return method() if callable(method) else value
