"""A mixture's datasets, weights and epochs as a user writes them, checked."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardwise.base.arguments import near_name
from shardwise.plan.arguments import digest_of, whole
from shardwise.plan.protocol import Sampler, past_of

# Positions from the start of the first epoch on.
MAX_DRAW = 2**62


@dataclass(frozen=True)
class WeightChange:
    """Weights from a position on, or a ramp to them.

    Attributes:
        start: samples from the start of the first epoch on.
        stop: where the ramp ends; None where the weights change at once.
        weights: by name; relative ones.
    """

    start: int
    stop: int | None
    weights: Mapping[str, Fraction]


def parse_schedule(
    schedule: Sequence[tuple[int | tuple[int, int], Mapping[str, float]]], names: Sequence[str]
) -> tuple[WeightChange, ...]:
    """Check a schedule as a user writes it.

    Args:
        schedule: `(position, weights)`, or `((start, stop), weights)` for a ramp, ascending; the
            first at position 0. Names that an entry leaves out have the weight 0.
        names: the datasets.

    Raises:
        ValueError: it is empty, does not start at 0 or does not ascend, has an unknown name, or
            weights that are negative, no numbers, or all 0.
        TypeError: an entry is not a pair of a position and weights.
    """
    if isinstance(schedule, str | Mapping) or not hasattr(schedule, "__iter__"):
        raise TypeError(
            f"schedule={schedule!r:.80}: give pairs [(0, {{...}}), (position, {{...}})]"
        )
    changes: list[WeightChange] = []
    for number, entry in enumerate(schedule):
        where = f"schedule[{number}]"
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise TypeError(f"{where} is {entry!r:.80}: give a pair (position, weights)")
        at, weights = entry
        start, stop = _range_of(at, where)
        if stop is not None and stop <= start:
            raise ValueError(f"{where}: the ramp from {start} to {stop} must end behind its start")
        if max(start, stop or 0) >= MAX_DRAW:
            raise ValueError(f"{where}: the position {at} is beyond 2**62")
        if not changes and (start or stop is not None):
            raise ValueError(
                f"{where} begins at {at}: the first weights begin at position 0, without a ramp"
            )
        before = changes[-1] if changes else None
        # A ramp may start at the position of the weights that it starts with.
        least = 0 if before is None else before.stop or before.start + (stop is None)
        if before is not None and start < least:
            raise ValueError(
                f"{where} begins at {start}, and the entry before it at {before.start}"
                + (f" with a ramp until {before.stop}" if before.stop else "")
                + ": positions must ascend, and ramps must not overlap"
            )
        changes.append(WeightChange(start, stop, parse_weights(weights, names, where)))
    if not changes:
        raise ValueError("schedule=[]: give weights from position 0 on")
    return tuple(changes)


def _range_of(at: Any, where: str) -> tuple[int, int | None]:
    """The start of an entry, and the end of its ramp if it has one."""
    if not isinstance(at, tuple | list):
        return whole(f"{where}: position", at, least=0), None
    if len(at) != 2:
        raise TypeError(f"{where} begins at {at!r:.80}: a ramp has a start and a stop")
    return whole(f"{where}: start", at[0], least=0), whole(f"{where}: stop", at[1])


def parse_weights(
    weights: Mapping[str, float], names: Sequence[str], where: str
) -> dict[str, Fraction]:
    """Weights as the decimals that the user wrote: 0.7 is seven tenths, not its nearest double.

    Raises:
        ValueError: a name is unknown, a weight is negative or not finite, or all are 0.
        TypeError: they are not a mapping, or a weight is not a number.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"{where}: weights are a dict from names to numbers, not {weights!r:.80}")
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise ValueError(
            f"{where} has weights for {', '.join(map(repr, unknown))}, the datasets are "
            f"{', '.join(map(repr, names))}"
        )
    parsed = {name: _fraction(weight, f"{where}[{name!r}]") for name, weight in weights.items()}
    if not any(parsed.values()):
        raise ValueError(f"{where}: all weights are 0, so there is nothing to draw")
    return parsed


def _fraction(weight: Any, where: str) -> Fraction:
    if isinstance(weight, Fraction):
        number = weight
    elif isinstance(weight, bool | str) or not hasattr(weight, "__float__"):
        raise TypeError(f"{where}={weight!r:.80}: a weight is a number of 0 or more")
    elif hasattr(weight, "__index__"):
        number = Fraction(operator.index(weight))
    else:
        try:
            number = Fraction(repr(float(weight))) if math.isfinite(weight) else Fraction(-1)
        except (TypeError, ValueError, OverflowError):
            number = Fraction(-1)
    if number < 0 or number > Fraction(10) ** 300:
        raise ValueError(f"{where}={weight!r:.80}: a weight is a finite number of 0 or more")
    return number


Until = str | int | Mapping[str, int]


@dataclass(frozen=True)
class MixturePart:
    """One dataset of a mixture.

    Attributes:
        num_ids: samples that it has.
        fingerprint: which samples these are.
        sampler: its own order; None for a permutation of all samples, another each epoch.
    """

    num_ids: int
    fingerprint: str = ""
    sampler: Sampler | None = None

    @property
    def epoch_size(self) -> int:
        return self.num_ids if self.sampler is None else self.sampler.num_samples

    def past(self, position: int) -> str:
        past = past_of(self.sampler, position)
        if past is not None:
            # A mixture, which may have grown since: its data are in its past.
            return digest_of(past)
        order = None if self.sampler is None else self.sampler.spec()
        return digest_of([self.num_ids, self.fingerprint, order])


@dataclass(frozen=True)
class MixtureOptions:
    """The options of a mixture; `shardwise.mix` documents them, `changes` as its `schedule`."""

    changes: tuple[WeightChange, ...]
    until: Until = "first"
    block: int = 256
    seed: int = 0


def check_until(until: Any, names: Sequence[str]) -> Until:
    """Check where epochs of a mixture end.

    Raises:
        ValueError: an unknown word or name, or less than one epoch or sample.
        TypeError: something else.
    """
    if until in ("first", "all") and isinstance(until, str):
        return until
    if isinstance(until, Mapping):
        if len(until) != 1 or next(iter(until)) not in names:
            raise ValueError(
                f"until={dict(until)!r:.80}: name one of {', '.join(map(repr, names))} with a "
                f"number of its epochs{near_name(next(iter(until), None), names)}"
            )
        return {name: whole(f"until[{name!r}]", n, least=1) for name, n in until.items()}
    if isinstance(until, str) or not hasattr(until, "__index__"):
        raise ValueError(
            f"until={until!r:.80}: use 'first', 'all', a number of samples, or {{name: epochs}}"
            f"{near_name(until, ('first', 'all'))}"
        )
    if whole("until", until, least=1) > MAX_DRAW // 2:
        raise ValueError(f"until={until!r:.80}: an epoch has at most 2**61 samples")
    return whole("until", until)


def key_of(name: str) -> int:
    """A number of 64 bits for a dataset's name: a key that does not depend on its position."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
