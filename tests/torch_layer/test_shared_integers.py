"""Memory that datasets share with their worker processes."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest

from shardwise.torch.shared_cursor import SharedIntegers


def write_later(cells, go):
    go.recv()
    cells[0] = 77


def test_a_forked_process_writes_into_no_other_objects_memory():
    context = multiprocessing.get_context("fork")
    go, mine = context.Pipe(duplex=False)
    cells = SharedIntegers([1])
    child = context.Process(target=write_later, args=(cells, go))
    child.start()
    # Its memory was given to the next one, such as the cursor of another dataset.
    del cells
    others = [SharedIntegers([5]) for _ in range(3)]
    mine.send(None)
    child.join(60)
    assert child.exitcode == 0
    assert [each[0] for each in others] == [5, 5, 5]


def test_a_copy_has_its_own_memory():
    cells = SharedIntegers([1, 2, 3])
    copy = pickle.loads(pickle.dumps(cells))
    copy[1:] = (8, 9)
    assert (cells[:], copy[:], len(copy)) == ([1, 2, 3], [1, 8, 9], 3)


def test_what_does_not_fit_is_refused():
    cells = SharedIntegers([1, 2])
    with pytest.raises(ValueError, match="invalid value"):
        cells[0] = 2**63
    with pytest.raises(OverflowError):
        cells[:] = (0, 2**63)
    assert cells[:] == [1, 2]
