"""The tally of a loader: the word of the samples that it handed out, kept batch by batch.

It counts where the position counts, so never what was only prefetched. Ids are copied, 0.3 us a
batch of 64, and added to the word some 4,096 at a time, another 0.4 us a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.request import BatchRows
from shardwise.plan.coverage_line import Tallied
from shardwise.plan.id_word import MODULUS, IdWord

__all__ = ["Counted", "Tally", "difference", "sum_of"]

# 32 KiB of ids: numpy's cost a call is then small beside that of the ids.
_BUFFER_IDS = 4_096


class Counted:
    """Sums over some batches of a pass.

    Attributes:
        handed_out: samples as planned.
        skipped: planned samples that were left out.
        replaced: planned samples that have a substitute.
        num_padded: rows that only fill a batch.
    """

    __slots__ = ("handed_out", "num_padded", "replaced", "skipped")

    def __init__(self) -> None:
        self.handed_out = self.skipped = self.replaced = Tallied()
        self.num_padded = 0

    def add(self, other: Counted) -> None:
        """Add the sums of other batches."""
        for name in ("handed_out", "skipped", "replaced"):
            setattr(self, name, sum_of(getattr(self, name), getattr(other, name)))
        self.num_padded += other.num_padded

    def without(self, *others: Counted) -> Counted:
        """The sums without those of some of the batches."""
        rest = Counted()
        for name in ("handed_out", "skipped", "replaced"):
            setattr(
                rest, name, difference(getattr(self, name), *(getattr(o, name) for o in others))
            )
        rest.num_padded = self.num_padded - sum(other.num_padded for other in others)
        return rest


class Tally:
    """The samples that were handed out, under the word of an epoch.

    Args:
        word: gives the epoch's; called when a buffer is full, or the sums are asked for: the
            fingerprint of a user's dataset may cost some reads.
    """

    def __init__(self, word: Callable[[], IdWord]) -> None:
        self._word = word
        self._clear()

    def _clear(self) -> None:
        self._buffered: list[bytes] = []
        self._num_buffered = 0
        self._counted = Counted()

    def add(self, rows: BatchRows) -> None:
        """Count a batch that is being handed out."""
        # A copy: the program may change the "__index__" of its batch. As bytes, it is made in two
        # thirds of the time that it takes to fill a part of an array.
        self._buffered.append(rows.ids.tobytes())
        self._num_buffered += len(rows.ids)
        if self._num_buffered >= _BUFFER_IDS:
            self._flush()
        if len(rows.skipped):
            self._count("skipped", rows.skipped)
        if len(rows.replaced):
            self._count("replaced", rows.replaced)
        if rows.num_padded:
            self._counted.num_padded += rows.num_padded

    def take(self) -> Counted:
        """The sums since the last call, or the beginning."""
        self._flush()
        counted = self._counted
        self._clear()
        return counted

    def _flush(self) -> None:
        if self._num_buffered:
            ids = np.frombuffer(b"".join(self._buffered), dtype=np.int64)
            self._buffered.clear()
            self._num_buffered = 0
            self._count("handed_out", ids)

    def _count(self, name: str, ids: NDArray[np.int64]) -> None:
        more = Tallied(len(ids), self._word().of(ids))
        setattr(self._counted, name, sum_of(getattr(self._counted, name), more))


def sum_of(*parts: Tallied) -> Tallied:
    """Some samples and others."""
    return Tallied(sum(p.count for p in parts), sum(p.word for p in parts) % MODULUS)


def difference(whole: Tallied, *parts: Tallied) -> Tallied:
    """The samples of the whole that are in none of the parts."""
    out = sum_of(*parts)
    return Tallied(whole.count - out.count, (whole.word - out.word) % MODULUS)
