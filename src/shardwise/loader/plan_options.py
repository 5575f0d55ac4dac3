"""The options of a plan, which `DataLoader`, `IterableDataset` and the samplers all take.

`shardwise.DataLoader` documents them, for all three.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence, Sized
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import suggest_names
from shardwise.base.plugins import find
from shardwise.dataset import Dataset
from shardwise.dataset.recipe_digest import recipe_digest
from shardwise.plan import BatchBy, Plan, Remainder, Sampler, SequentialSampler, Shuffle
from shardwise.plan.arguments import DEFAULT_BATCH_SIZE, whole
from shardwise.plan.left_out import Excluded
from shardwise.plan.protocol import seed_of
from shardwise.plan.user_sampler import as_sampler
from shardwise.sources.samples import (
    FingerprintedSamples,
    OrderedSamples,
    ShapedSamples,
    ShardedSamples,
    ShuffledSamples,
    TransformedSamples,
    removed_of,
)

T = TypeVar("T")
Grown = Literal["next_epoch"] | None


class PlanArguments(TypedDict, total=False):
    """The options of a plan as arguments of a class that leaves them to `PlanOptions`."""

    shuffle: Shuffle | None
    seed: int
    sampler: Any
    remainder: Remainder | None
    epoch_size: int | None
    batch_by: BatchBy | None
    exclude: Any
    global_batch_size: int | None
    balance: Any
    hidden: int | None


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of a plan, for any number of ranks."""

    batch_size: int = DEFAULT_BATCH_SIZE
    shuffle: Shuffle | None = False
    seed: int = 0
    sampler: Any = None
    remainder: Remainder | None = None
    epoch_size: int | None = None
    batch_by: BatchBy | None = None
    exclude: Any = None
    global_batch_size: int | None = None
    balance: Any = None
    hidden: int | None = None

    def __post_init__(self) -> None:
        if self.shuffle is None:  # torch's own default
            object.__setattr__(self, "shuffle", False)
        sampler = self.sampler
        if isinstance(sampler, str | os.PathLike):
            sampler = find("questions", "order")(sampler)
        sampler = as_sampler(sampler, self.seed)
        if sampler is not self.sampler:  # the seed keys transforms
            object.__setattr__(self, "sampler", sampler)
            object.__setattr__(self, "seed", 0)

    @property
    def effective_remainder(self) -> Remainder:
        """The remainder; by default "uneven" where nothing is shuffled, else "drop"."""
        if self.remainder is not None:
            return self.remainder
        sampler = self.sampler
        in_order = (
            self.shuffle is False if sampler is None else isinstance(sampler, SequentialSampler)
        )
        return "uneven" if in_order else "drop"

    @property
    def transform_seed(self) -> int:
        """The key of the randomness of transforms: the sampler's seed where it has one."""
        if self.sampler is None:
            return self.seed
        return seed_of(self.sampler)

    def of(self, dataset: object) -> PlanOptions:
        """The options with the order that a dataset brings, as `sw.mix` makes one."""
        ordered = having(dataset, OrderedSamples)
        own = None if ordered is None else ordered.sampler
        if self.sampler is not None or not isinstance(own, Sampler):
            return self
        asked = {"seed": self.seed or None, "epoch_size": self.epoch_size}
        asked["shuffle"] = None if isinstance(self.shuffle, bool) else self.shuffle  # type: ignore[assignment]
        asked = {name: value for name, value in asked.items() if value is not None}
        if asked:
            raise ValueError(
                f"{', '.join(f'{name}={value!r}' for name, value in asked.items())}: this dataset "
                f"brings an order of its own, {own!r}; give seed= and until= to sw.mix, and leave "
                "them out here"
            )
        return replace(self, sampler=own, shuffle=False)


def takes_plan_options(kind: type[T]) -> type[T]:
    """Show the options of a plan in place of `**options` in the signature of a class."""
    function: Any = vars(kind)["__init__"]
    signature = inspect.signature(function)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    shown += [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default)
        for each in fields(PlanOptions)
        if each.name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=shown)
    return suggest_names(kind)


def plan_for(
    dataset: Sized | int,
    options: PlanOptions,
    *,
    world_size: int,
    shard_sizes: Sequence[int] | NDArray[np.int64] | None = None,
) -> Plan:
    """Make the plan of a dataset, which is anything with a length, or the number of samples.

    Used where it has them: its `default_shuffle`, `shard_sizes`, `window_shape` and order.
    """
    options = options.of(dataset)
    by = having(options.batch_by, BatchBy)
    batch_by = options.batch_by if by is None else by.resolved(partial(_length_column, dataset))
    shuffle: Any = options.shuffle
    if shuffle is True and options.sampler is None:
        default = "full" if shard_sizes is None else "window"
        shuffled = having(dataset, ShuffledSamples)
        shuffle = default if shuffled is None else shuffled.default_shuffle
    sizes: Any = shard_sizes
    if shuffle != "window" or options.sampler is not None:
        sizes = None
    elif sizes is None and (sharded := having(dataset, ShardedSamples)) is not None:
        sizes = None if sharded.shard_sizes is None else _SizesOf(sharded)
    shaped = having(dataset, ShapedSamples)
    exclude = options.exclude
    is_array = isinstance(exclude, np.ndarray) and exclude.dtype.kind != "U"
    if exclude is not None and not is_array:
        exclude = find("questions", "ids")(exclude, dataset)
    plan = Plan(
        length_of(dataset),
        batch_size=options.batch_size,
        world_size=world_size,
        seed=options.seed,
        shuffle=shuffle,
        remainder=options.effective_remainder,
        shard_sizes=sizes,
        window_shape=None if shaped is None else shaped.window_shape,
        epoch_size=options.epoch_size,
        sampler=options.sampler,
        batch_by=batch_by,
        exclude=exclude,
        global_batch_size=options.global_batch_size,
        balance=_costs(dataset, options),
    )
    ids = removed_of(dataset)
    removed = Excluded.of(ids, plan.order.num_ids) if len(ids) else None
    return plan.excluding(plan.order.excluded, removed=removed)


def length_of(dataset: Sized | int) -> int:
    """The number of samples of a dataset, or the number that stands for one."""
    return dataset if isinstance(dataset, int) else len(dataset)


def fingerprint_of(dataset: object, plan: Plan | None = None) -> str:
    """The fingerprint of a dataset, or of its samples in a plan; "" for one of other packages."""
    if plan is not None and plan.fingerprint:
        return plan.fingerprint
    own = having(dataset, FingerprintedSamples)
    return own.fingerprint if own is not None and isinstance(own.fingerprint, str) else ""


def recipe_of(dataset: Any) -> str:
    """A digest of what a dataset of this package does to its samples; "" for any other."""
    return "" if having(dataset, TransformedSamples) is None else recipe_digest(dataset)


def _costs(dataset: Sized | int, options: PlanOptions) -> Any:
    """The cost of each sample by the options; None without a balance."""
    balance, hidden = options.balance, options.hidden
    if hidden is not None:
        whole("hidden", hidden, least=1)
    is_attention = isinstance(balance, str) and balance == "attention"
    if is_attention != (hidden is not None):
        raise ValueError(
            f"balance={balance!r:.60} and hidden={hidden}: give both balance='attention' and the "
            "model's width, such as hidden=4096, or another balance alone"
        )
    if is_attention and isinstance(dataset, Dataset):
        return dataset.costs(hidden=hidden)  # type: ignore[arg-type]
    if isinstance(balance, str):
        return _length_column(dataset, balance)
    if balance is not None and np.ndim(balance) == 0:
        raise TypeError(f"balance={balance!r:.60}: give a field's name, an array or 'attention'")
    return balance


def _length_column(dataset: object, name: str) -> NDArray[Any]:
    """The values of a field of a dataset, `[n]`, which are kept as `Dataset.column` keeps them."""
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"{name!r} names a field, and {type(dataset).__name__} has none: give an array of one "
            "value a sample"
        )
    return np.asarray(dataset.column(name))


@dataclass(frozen=True)
class _SizesOf:
    """The sizes of a dataset's shards; pickles as the dataset, which travels with its loader."""

    dataset: ShardedSamples

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.int64]:
        # A copy whatever `copy` is: `np.array` of NumPy 1.26 takes no None for it.
        return np.array(self.dataset.shard_sizes, dtype=dtype or np.int64)
