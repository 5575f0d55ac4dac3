"""A trainer that is forked goes on as if it had not been, whatever its child does."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from shardwise.base.errors import WorkerError
from tests.engine.processes.test_executor import PROGRAM, loader, said_by, squares
from tests.support.forks import in_child

WAYS = ("drops the iterator", "calls next", "closes the loader", "iterates anew")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 0, "num_threads": 2}])
def test_the_parent_ends_its_epoch_exactly_whatever_a_forked_child_does(options, way):
    made = loader(squares(400), batch_size=8, timeout=60, **options)
    batches = iter(made)
    given = [next(batches)]

    def child():
        nonlocal batches, made
        if way == "drops the iterator":
            del batches
            gc.collect()
        elif way == "calls next" and options["num_workers"]:
            with pytest.raises(WorkerError, match=f"forked from process {os.getppid()}.*new one"):
                next(batches)
        elif way == "calls next":
            assert [batch["__index__"][0] for batch in batches] == list(range(8, 400, 8))
        elif way == "closes the loader":
            made.close()
            del batches, made
        elif way == "iterates anew":  # where the parent stood, as in a process that it was sent to
            assert next(iter(made))["__index__"].tolist() == list(range(8, 16))
            made.close()

    in_child(child)
    given += batches
    made.close()
    assert np.concatenate([batch["__index__"] for batch in given]).tolist() == list(range(400))
    for batch in given:
        assert (batch["cls"][:, 3, 5] == batch["__index__"].astype(np.float32) ** 2).all()


def test_a_batch_that_a_forked_child_holds_is_never_written_again():
    with loader(squares(800), batch_size=8) as made:
        batches = iter(made)
        held = next(batches)
        waits, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(waits, 1)
            os._exit(0 if (held["cls"][:, 0, 0] == np.arange(8.0) ** 2).all() else 1)
        del held
        # Its memory would be lent again.
        assert sum(1 for _ in batches) == 99
        os.write(go, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.close(waits)
        os.close(go)


def test_a_child_that_ends_as_programs_do_takes_nothing_from_its_parent(tmp_path):
    program = PROGRAM
    program += """
    batches = iter(loader)
    given = [next(batches)]
    if os.fork() == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
    given += batches
    assert [x for batch in given for x in batch["twice"]] == list(range(0, 4000, 2))
    print("whole")
    """
    assert said_by(program, tmp_path) == (0, "whole\n", "")
