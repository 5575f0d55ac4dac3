"""The kit of training loops: a right loop passes, and each usual fault is named."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.testing import check_trainer


def make() -> sw.DataLoader:
    return sw.DataLoader(sw.wrap(list(range(23))), batch_size=4, shuffle=True, output="numpy")


def train(loader, checkpoint, num_steps, *, keeps_position=True, counts_epochs=False):
    epoch = 0
    if checkpoint is not None:
        epoch, state = checkpoint
        if keeps_position:
            loader.load_state_dict(state)
    ids = []
    while True:
        if counts_epochs:
            loader.set_epoch(epoch)
        for batch in loader:
            ids += batch["__index__"].tolist()
            num_steps -= 1
            if num_steps == 0:
                return ids, (epoch, loader.state_dict())
        epoch += 1


def test_a_loop_that_keeps_the_state_passes():
    check_trainer(train, make)


def test_a_loop_that_forgets_the_position_is_named():
    with pytest.raises(AssertionError, match="stopped after step 1"):
        check_trainer(lambda *given: train(*given, keeps_position=False), make)


def test_a_loop_that_names_an_epoch_whose_last_batch_it_took_is_named():
    with pytest.raises(AssertionError, match="stopped after step 5: 20 samples follow"):
        check_trainer(lambda *given: train(*given, counts_epochs=True), make)


def test_a_loop_that_repeats_an_epoch_is_named():
    def repeat(loader, checkpoint, num_steps):
        ids, state = train(loader, checkpoint, 2)
        return ids * (num_steps // 2), state

    with pytest.raises(AssertionError, match="trains twice"):
        check_trainer(repeat, make)
