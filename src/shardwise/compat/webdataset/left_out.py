"""Count what stages leave out: an endless pipeline that lets nothing through raises an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shardwise.compat.webdataset.readers import CURRENT_PASS

# A predicate that draws at random may refuse all of a small data set several times.
_MIN_IN_A_ROW, _MIN_LAPS = 10_000, 8
# Without keys, repeated samples can't be recognized; with keys, the program may be looking for a
# rare one.
_MAX_IN_A_ROW, _MAX_WITH_KEYS = 1_000_000, 100_000_000


class LeftOut:
    """Counts samples that a stage leaves out in a row (`num`); `says(num)` is the message."""

    def __init__(self, says: Callable[[int], str] | None = None) -> None:
        self._says = says or nothing_passes
        current = CURRENT_PASS.get()
        self._of_pass = [0] if current is None else current.left_out
        self.num = self._num_laps = 0
        self._first: Any = None

    def add(self, sample: Any) -> None:
        """Count a sample that is left out."""
        self._of_pass[0] += 1
        self.num += 1
        name = _name_of(sample)
        if self.num == 1:
            self._first = name
        elif name == self._first and name is not None:
            self._num_laps += 1
        is_lap = self.num >= _MIN_IN_A_ROW and self._num_laps >= _MIN_LAPS
        if is_lap or self.num >= (_MAX_IN_A_ROW if name is None else _MAX_WITH_KEYS):
            raise ValueError(self._says(self.num))

    def filter(self, data: Iterable[Any], predicate: Callable[[Any], Any]) -> Iterator[Any]:
        for sample in data:
            if not predicate(sample):
                self.add(sample)
                continue
            if self.num:
                self.clear()
            yield sample

    def clear(self) -> None:
        """Reset the count after a sample that passes; not called where `num` is 0."""
        self.num = self._num_laps = 0


def nothing_passes(num: int) -> str:
    return (
        f"the stages of the pipeline let none of {num} samples through: look at the predicates of "
        "select(), the functions and handlers of map(), and batched(partial=False); where a rare "
        f"one is meant, samples need a __key__: without, {_MAX_IN_A_ROW:,} in a row are an error"
    )


def nothing_in_shards(num: int) -> str:
    return (
        f"the last {num} shards gave no sample: they are empty, or a handler= leaves out what is "
        "wrong with them; without it the error is raised"
    )


def _name_of(sample: Any) -> Any:
    """The name of a sample, or of the first one of a batch; None if it has no name."""
    if not isinstance(sample, dict):
        return None
    key, url = sample.get("__key__"), sample.get("__url__", sample.get("url"))
    if isinstance(key, list):
        return key[0] if key else None
    return None if key is None and url is None else (url, key)
