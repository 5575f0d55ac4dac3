"""Which samples are lost or double in a line that does not fit, by the plan and the data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardwise.dataset import Dataset
from shardwise.plan import Plan
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.id_word import IdWord, rank_ids
from shardwise.plan.sampler import sampler_from_spec
from shardwise.plan.tallied import MODULUS

__all__ = ["SampleNames"]

# A microsecond a sample is spent on finding it: 4 s of a line, and of all data.
_MAX_IDS = 4_000_000
_NUM_SHOWN = 5


class SampleNames:
    """Names samples of lines that do not fit.

    Args:
        data: the data that the lines are of.
    """

    def __init__(self, data: Dataset) -> None:
        self._data = data

    def __call__(self, line: CoverageLine) -> list[str]:
        """What can be said of a line's lost and double samples, in words."""
        data = self._data
        if line.fingerprint != data.fingerprint:
            return [
                f"    which samples can't be told: the line is of the fingerprint "
                f"{line.fingerprint}, this data has {data.fingerprint}"
            ]
        sampler = sampler_from_spec(line.order, data.shard_sizes)
        if sampler is None:
            kind = str(line.order.get("sampler"))
            return [f"    which samples can't be told: an order {kind!r} can't be made anew"]
        try:
            plan = Plan(
                len(data),
                batch_size=line.batch_size,
                world_size=line.world_size,
                remainder=line.remainder,  # type: ignore[arg-type] # the plan checks it
                sampler=sampler,
                start=line.begin,
            )
        except ValueError as error:
            return [f"    which samples can't be told: {error}"]
        size = plan.global_batch_size
        first, last = (line.first - line.begin) // size, -((line.begin - line.last) // size)
        steps = range(first, min(last, plan.num_steps))
        ids = rank_ids(plan, line.epoch, steps, line.rank) if steps else np.empty(0, np.int64)
        word = IdWord(line.fingerprint, line.epoch)
        if len(ids) > _MAX_IDS or (len(ids), word.of(ids)) != (
            line.planned.count,
            line.planned.word,
        ):
            return ["    which samples can't be told: the plan gives other ones to this line"]
        named = list(self._named(line, ids, word))
        if named:
            return [f"    {each}" for each in named]
        shown = "; ".join(data.describe(i) for i in ids[:_NUM_SHOWN].tolist())
        return [f"    among the {len(ids)} samples of the plan, which begin with {shown}"]

    def _named(self, line: CoverageLine, ids: NDArray[np.int64], word: IdWord) -> Iterator[str]:
        """The one sample that is lost, double or foreign, or the two of which one is each."""
        lacking = line.planned - line.counted.planned
        missing, balance = lacking.word, -lacking.count
        mine = dict(zip(word.powers(ids), ids.tolist(), strict=True))
        if balance == -1 and missing in mine:
            yield f"lost: {self._data.describe(mine[missing])}"
        elif balance == 1:
            extra = -missing % MODULUS
            if extra in mine:
                yield f"twice: {self._data.describe(mine[extra])}"
            elif (other := self._everywhere(word).get(extra)) is not None:
                yield f"of another rank or step: {self._data.describe(other)}"
        elif balance == 0:
            for others in (mine, self._everywhere(word)):
                for power, lost in mine.items():
                    extra = (power - missing) % MODULUS
                    if extra in others:
                        yield f"lost: {self._data.describe(lost)}"
                        kind = "twice" if others is mine else "of another rank or step"
                        yield f"{kind}: {self._data.describe(others[extra])}"
                        return

    def _everywhere(self, word: IdWord) -> dict[int, int]:
        """All samples of the data by their words, if they are not too many."""
        if len(self._data) > _MAX_IDS:
            return {}
        ids = np.arange(len(self._data))
        return dict(zip(word.powers(ids), ids.tolist(), strict=True))
