"""Batches of small samples, made several at a time.

Where reading is all that a sample costs, a batch takes less time than telling a worker to make it.
So the batches of some following steps are loaded as one work and taken apart again. What they hold
is what each would have held if it had been made alone (I5): they are collated one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, islice

import numpy as np

from shardwise.engine.request import Batch, Executor, Work
from shardwise.errors import DataError, StorageError
from shardwise.samples import Samples

__all__ = ["batches_in_groups", "group_size"]

# Rows and bytes that are loaded at a time, at most. More would gain little, and wait longer.
_MAX_ROWS = 4096
_MAX_BYTES = 4 << 20


def group_size(samples: Samples, batch_size: int) -> int:
    """How many batches of so many samples are worth making at a time; 1 for one by one."""
    row_bytes = samples.cost.row_bytes
    if row_bytes is None:
        return 1
    rows = min(_MAX_ROWS, _MAX_BYTES / max(row_bytes, 1.0))
    return max(1, int(rows // batch_size))


def batches_in_groups(
    executor: Executor, works: Iterator[Work], size: int
) -> Generator[Batch, None, None]:
    """Yield one batch for each work, in order, of which the executor makes `size` at a time.

    An error is raised in its own batch's place: the batches before it in its group are given out.
    Of one that has a cause the traceback begins here: what the user should see is the cause's.
    """
    try:
        yield from _batches(executor, works, size)
    except DataError as error:
        if error.__cause__ is None:
            raise
        raise error.with_traceback(None)  # noqa: B904 - it is the same error


def _batches(executor: Executor, works: Iterator[Work], size: int) -> Generator[Batch, None, None]:
    if size <= 1:
        yield from executor.run(works)
        return
    asked: deque[list[Work]] = deque()
    groups = _groups(works, size, asked)
    try:
        with closing(executor.run(groups)) as made:
            for group in made:
                asked.popleft()
                yield from _parts(group)
    except (DataError, StorageError):
        # Other errors are no sample's: a worker's end, a stall, a loader that was closed.
        if not asked or len(asked[0]) == 1:
            raise
    if asked:
        # A group failed: one of its works raises again, unless what was wrong has passed.
        yield from executor.run(iter(asked.popleft()))
        yield from _batches(executor, chain(*asked, works), size)


def _groups(
    works: Iterator[Work], size: int, asked: deque[list[Work]]
) -> Generator[Work, None, None]:
    """Join works, few at first so that the first batch comes at once; note them in `asked`."""
    num_joined = 1
    while some := list(islice(works, num_joined)):
        asked.append(some)
        yield _joined(some) if len(some) > 1 else some[0]
        num_joined = min(size, 2 * num_joined)


def _joined(works: list[Work]) -> Work:
    valid = [work.valid for work in works if work.valid is not None]
    return Work(
        works[0].epoch,
        works[0].step,
        np.concatenate([work.ids for work in works]),
        np.concatenate(valid) if valid else None,
        sizes=tuple(len(work.ids) for work in works),
    )


def _parts(group: Batch) -> list[Batch]:
    """The batches of a group; where the first had to be waited for, the others had not."""
    if not group.parts:
        return [group]
    if group.num_ready is not None:
        num_parts = len(group.parts)
        for number, part in enumerate(group.parts):
            is_waited_for = not number and not group.num_ready
            others = max(0, group.num_ready - 1) * num_parts
            part.num_ready = 0 if is_waited_for else others + num_parts - number
    return group.parts
