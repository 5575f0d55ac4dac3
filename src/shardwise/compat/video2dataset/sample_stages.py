"""The stages after the reading of shards: keys for what is drawn, samples, batches.

Keeps I6: samples that a handler lets fail and samples that are not selected are counted by reason
and logged once per pass and worker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.compat.video2dataset.clips import UnfitVideoError
from shardwise.compat.video2dataset.sample_maker import DRAW, UnwantedError
from shardwise.compat.webdataset.filters import combine_values
from shardwise.compat.webdataset.readers import CURRENT_PASS
from shardwise.torch.shared_cursor import SharedIntegers

CORRUPTED = "__corrupted__"
REASONS = (
    "too short", "too few fps", "bad", "missing keys", "aesthetics", "language", "unsafe",
    "last batch",
)  # fmt: skip
# Each worker has its own cells, so that no lock is needed.
_MAX_WORKERS = 256


class LeftOut:
    """Counts in memory that workers share with the program."""

    def __init__(self) -> None:
        self._cells = SharedIntegers([0] * (len(REASONS) * _MAX_WORKERS))

    def add(self, reason: str, count: int = 1) -> None:
        info = get_worker_info()
        worker = 0 if info is None else info.id % _MAX_WORKERS
        cell = worker * len(REASONS) + REASONS.index(reason)
        self._cells[cell] = self._cells[cell] + count

    def counts(self) -> dict[str, int]:
        """Counts by reason since the dataset was made; reasons with a count of 0 are left out."""
        totals = {
            reason: sum(self._cells[w * len(REASONS) + i] for w in range(_MAX_WORKERS))
            for i, reason in enumerate(REASONS)
        }
        return {reason: total for reason, total in totals.items() if total}


def with_draws(source: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Add the seed and the pass to each sample: its draws depend on them."""
    current = CURRENT_PASS.get()
    draw = (0, 0) if current is None else (current.seed, current.number)
    return (sample | {DRAW: draw} for sample in source)


@dataclass(eq=False)
class MadeSamples:
    """Makes samples, asks the handler where that fails, and counts what is left out."""

    make: Callable[[dict[str, Any]], dict[str, Any]]
    handler: Callable[[Exception], Any]
    left_out: LeftOut
    is_complete: bool = False
    # No sample is kept back: the number of input samples is the stage's position.
    is_stateless = True

    def __call__(self, source: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        reasons: Counter[str] = Counter()
        num, last = 0, ""
        for sample in source:
            num += 1
            try:
                made = self.make(sample)
            except UnwantedError as unwanted:
                self._count(unwanted.reason, reasons)
                last = f"{sample.get('__key__')!r} of {sample.get('__url__')}: {unwanted.message}"
                continue
            except Exception as error:  # noqa: BLE001 - the user's functions, for the user's handler
                goes_on = self.handler(error)
                cause = error.__cause__
                self._count(cause.lack if isinstance(cause, UnfitVideoError) else "bad", reasons)
                last = str(error)
                if not goes_on:
                    break
                if not self.is_complete:
                    continue
                made = {k: sample[k] for k in ("__key__", "__url__") if k in sample}
                made[CORRUPTED] = True
            else:
                if self.is_complete:
                    made[CORRUPTED] = False
            yield made
        if reasons:
            self._say(reasons, num, last)

    def _count(self, reason: str, reasons: Counter[str]) -> None:
        reasons[reason] += 1
        self.left_out.add(reason)

    def _say(self, reasons: Counter[str], num: int, last: str) -> None:
        if reasons["missing keys"] == num:
            raise ValueError(
                f"all {num} samples of this reader lack fields that video_key= or "
                f"enforce_additional_keys= (by default ['txt']) ask for; the last one, {last}"
            )
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        logging.getLogger("shardwise").warning(
            "%d of the %d samples of this reader's pass were %s: %s; the last one: %s",
            reasons.total(),
            num,
            "marked or left out" if self.is_complete else "left out",
            counts,
            last,
        )


@dataclass(eq=False)
class Batches:
    """Gathers samples into batches, and counts those of a last one that is dropped."""

    size: int
    drop_last: bool
    left_out: LeftOut
    is_stateless = True

    def __call__(self, source: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        items = iter(source)
        while batch := list(islice(items, self.size)):
            if len(batch) < self.size and self.drop_last:
                self.left_out.add("last batch", len(batch))
                return
            yield collate(batch)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack the fields that all samples have; marked samples get a whole one's values."""
    if CORRUPTED in samples[0]:
        whole = next((sample for sample in samples if not sample[CORRUPTED]), {})
        stand_in = {k: v for k, v in whole.items() if not k.startswith("__")}
        samples = [stand_in | sample if sample[CORRUPTED] else sample for sample in samples]
    fields = [k for k in samples[0] if all(k in sample for sample in samples)]
    return {k: combine_values([sample[k] for sample in samples]) for k in fields}
