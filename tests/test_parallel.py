"""Work that is done once, in threads and processes: its order, its errors, and what it keeps."""

from __future__ import annotations

import os
import signal
import threading
import weakref

import pytest

from shardwise.base.errors import WorkerError
from shardwise.base.parallel import in_processes, in_threads
from tests.support.waiting import wait_for


class Result:
    """An object that a weak reference can name."""


def test_results_that_were_given_are_not_kept():
    results = in_threads(lambda _: Result(), range(50), 4)
    given = [weakref.ref(next(results)) for _ in range(49)]
    # A thread may hold its last call for a moment longer.
    wait_for(lambda: all(each() is None for each in given))
    assert len(list(results)) == 1


@pytest.mark.parametrize("is_ordered", [True, False])
def test_an_error_cancels_the_calls_that_have_not_begun(is_ordered):
    begun, never = [], threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("this one")
        never.wait(0.3)
        return number

    results = in_threads(work, range(200), 1, is_ordered=is_ordered)
    with pytest.raises(ValueError, match="this one"):
        list(results)
    assert len(begun) < 200


def test_a_generator_that_is_left_ends_its_threads():
    before = set(threading.enumerate())
    results = in_threads(abs, range(-1000, 0), 4)
    assert next(results) == 1000
    results.close()
    left = set(threading.enumerate()) - before
    assert not [t for t in left if t.name.startswith("shardwise-pool")]
    assert list(in_threads(abs, [], 4)) == []


def killed(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_process_that_dies_is_told_in_the_callers_words():
    results = in_processes(killed, range(10), 1, if_one_dies="it died; do that")
    with pytest.raises(WorkerError, match="it died; do that"):
        list(results)
