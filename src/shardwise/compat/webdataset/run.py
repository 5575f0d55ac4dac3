"""One pass through a pipeline, as its stages see it: the seed, the pass's number, the reader.

Stages that draw random numbers take their key from here when they are built, so that one seed
drives everything and each pass has an order of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from shardwise.compat.webdataset.place import Place
from shardwise.plan.permute import mix


@dataclass
class Run:
    """A pass that is being built."""

    seed: int
    number: int
    place: Place
    turn: int = 0
    num_keyed: int = 0


CURRENT: ContextVar[Run | None] = ContextVar("shardwise_compat_run", default=None)


def as_seed(seed: Any) -> int:
    """A whole number for any seed that `random.Random` would take."""
    if isinstance(seed, int):
        return int(seed)
    text = seed if isinstance(seed, str) else repr(seed)
    try:
        return int(text)
    except ValueError:
        return int.from_bytes(text.encode(), "little")


def keyed(seed: Any = None, *, each_reader: bool = False) -> random.Random:
    """A generator for a stage that is being built; see `keyed_later`."""
    return keyed_later(seed)(each_reader)


def keyed_later(seed: Any = None) -> Callable[[bool], random.Random]:
    """What makes the generator of a stage that is being built.

    Outside of a pipeline it is seeded with `seed`, or by the system. What is returned is called
    with whether each reader is to have numbers of its own: shards must be shuffled alike
    everywhere before they are divided.
    """
    run = CURRENT.get()
    if run is None:
        return lambda _: random.Random(None if seed is None else as_seed(seed))  # noqa: S311
    own = () if seed is None else (as_seed(seed),)
    run.num_keyed += 1
    words = (run.seed, run.number, run.num_keyed, *own)
    reader = (run.place.rank, run.place.worker)

    def make(each_reader: bool) -> random.Random:
        return random.Random(mix(*words, *reader) if each_reader else mix(*words))  # noqa: S311

    return make
