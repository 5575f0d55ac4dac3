"""Handing out the shards of a build: to any workers, and once more where one of them died.

`Workers` is what processes of this machine and a Ray cluster have in common. It knows numbers of
shards; which are to be made, their order and the end of a build are decided here and above, once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from shardwise.errors import WorkerError

__all__ = ["AHEAD", "Workers", "WorkerDiedError", "hand_out"]

# Shards that are handed out beyond those that are being made: no worker waits.
AHEAD = 2
# Workers that may die of one shard.
_MAX_DEATHS = 5


class WorkerDiedError(Exception):
    """What made a shard is gone, by a kill, for lack of memory, or with its machine."""


class Workers(Protocol):
    """Makes shards of one build, several at a time."""

    @property
    def limit(self) -> int:
        """Shards to have under way at most, at least 1."""
        ...

    @property
    def advice(self) -> str:
        """What to change where workers die again and again."""
        ...

    def submit(self, number: int) -> None:
        """Begin a shard; called while less than `limit` are under way."""
        ...

    def wait(self) -> dict[int, BaseException | None]:
        """Wait for a shard at least: those that have ended, with what each raised.

        `WorkerDiedError` stands for a shard that may or may not be done.
        """
        ...


def hand_out(
    workers: Workers, numbers: Sequence[int], *, is_done: Callable[[int], bool]
) -> Iterator[int]:
    """Make shards, in any order; the number of each as it is done.

    Args:
        workers: who makes them.
        numbers: the shards to make.
        is_done: whether a shard's note is there, asked after its worker died.

    Raises:
        WorkerError: workers die again and again of a shard; the message has its number.
        DataError: as `make_shard` says.
        TypeError: a function can't be pickled.
    """
    todo, num_running, deaths = deque(numbers), 0, Counter[int]()
    while todo or num_running:
        while todo and num_running < workers.limit:
            workers.submit(todo.popleft())
            num_running += 1
        results = workers.wait()
        num_running -= len(results)
        lost = {}
        for number, error in results.items():
            if isinstance(error, WorkerDiedError):
                lost[number] = error
            elif error is None:
                yield number
        for error in results.values():
            if error is not None and not isinstance(error, WorkerDiedError):
                raise error
        for number in sorted(lost, reverse=True):
            if is_done(number):
                yield number
            else:
                deaths[number] += 1
                todo.appendleft(number)
        _refuse_deaths(lost, deaths, workers.advice)


def _refuse_deaths(lost: dict[int, WorkerDiedError], deaths: Counter[int], advice: str) -> None:
    """Give a build up whose workers die of the same shards."""
    fatal = sorted(number for number in lost if deaths[number] >= _MAX_DEATHS)
    if not fatal:
        return
    names = ", ".join(map(str, fatal))
    raise WorkerError(
        f"build: worker processes died {_MAX_DEATHS} times while they made shard {names} "
        f"({lost[fatal[0]]}), maybe for lack of memory: {advice}"
    )
