"""What is opened once: by each process for itself, or by the first thread for all copies."""

import multiprocessing
import os
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError

import pytest

from shardwise.sources import PerProcess
from shardwise.sources.per_process import MadeOnce


class Handle:
    """Something opened; knows in which process."""

    def __init__(self):
        self.pid = os.getpid()


@pytest.mark.parametrize("kind", [PerProcess, MadeOnce])
def test_threads_share_what_the_first_of_them_makes(kind):
    made = []
    barrier, second = Barrier(4), Barrier(2)
    handles = kind()

    def make():
        made.append(1)
        with suppress(BrokenBarrierError):
            second.wait(0.2)  # for another thread that makes it, too
        return Handle()

    def use(_):
        barrier.wait()
        return handles.get(make)

    with ThreadPoolExecutor(4) as pool:
        (handle,) = set(pool.map(use, range(4)))
    assert handle.pid == os.getpid()
    assert len(made) == 1


def test_a_forked_child_makes_its_own_and_keeps_its_parents_alive():
    handles = PerProcess()
    parents = weakref.ref(handles.get(Handle))
    mine, other = multiprocessing.get_context("fork").Pipe()

    def run():
        other.send((handles.get(Handle).pid, parents() is not None))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    assert mine.recv() == (child.pid, True)
    child.join()
    assert handles.get(Handle) is parents()


def test_a_pickled_copy_is_empty_unless_it_is_made_once():
    handles, names = PerProcess(), MadeOnce()
    first, made = handles.get(Handle), names.get(Handle)
    made.pid = -1
    copies = pickle.loads(pickle.dumps((handles, names)))
    assert [copy.get(Handle).pid for copy in copies] == [os.getpid(), -1]
    assert handles.get(Handle) is first


@pytest.mark.parametrize("kind", [PerProcess, MadeOnce])
def test_what_could_not_be_made_is_tried_again(kind):
    handles = kind()
    with pytest.raises(ZeroDivisionError):
        handles.get(lambda: 1 / 0)
    assert handles.get(lambda: 5) == 5
