"""Composer's checkpoints, by a stand-in for its Trainer: the real one needs an older torch."""

from __future__ import annotations

import itertools
import sys
import types
from typing import Any

import pytest

import shardwise as sw
from shardwise.base.errors import FrameworkError, StateError

NUM_STEPS = 5
TRAINER = """
import itertools

class Trainer:
    def __init__(self, state, callbacks):
        self.state, self.callbacks = state, callbacks

    def tell(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self.state, None)

    def _iter_dataloader(self):
        batches = itertools.islice(self.state.dataloader, int(self.state.dataloader_len))
        while True:
            self.tell("before_dataloader")
            batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _train_loop(self, num_batches):
        time = self.state.timestamp
        self.tell("fit_start")
        while num_batches:
            if time.batch_in_epoch == 0:
                self.tell("epoch_start")
            num_had = time.batch_in_epoch
            for step, batch in enumerate(self._iter_dataloader()):
                if "train" not in self.state.dataset_resumption and step < num_had:
                    continue
                time.batch_in_epoch += 1
                num_batches -= 1
                yield time.epoch, batch["value"].tolist()
                if num_batches == 0:
                    return
            time.epoch, time.batch_in_epoch = time.epoch + 1, 0
"""


@pytest.fixture(autouse=True)
def trainer_type(monkeypatch: pytest.MonkeyPatch) -> Any:
    names = ("composer", "composer.trainer", "composer.trainer.trainer")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.delitem(sys.modules, "shardwise.integrations.composer", raising=False)
    sys.modules["composer"].Callback = object  # type: ignore[attr-defined]
    module = sys.modules[names[-1]]
    exec(compile(TRAINER, names[-1], "exec"), vars(module))
    yield module.Trainer  # type: ignore[attr-defined]
    sys.modules.pop("shardwise.integrations.composer", None)


def loader_of(**options: Any) -> sw.DataLoader:
    options = {"rank": 0, "world_size": 1, "num_threads": 0, "shuffle": True, **options}
    return sw.DataLoader(sw.wrap(range(20)), 4, output="numpy", **options)


def steps(
    kind: Any, num: int, *, at: tuple[int, int] = (0, 0), state: Any = None, subset: int = NUM_STEPS
) -> tuple[list[Any], Any]:
    """What a fit trains on, and the state that its checkpoint has."""
    from shardwise.integrations.composer import LoaderState

    loader = loader_of()
    callback = LoaderState(loader)
    if state is not None:
        callback.load_state_dict(state)
    time = types.SimpleNamespace(epoch=at[0], batch_in_epoch=at[1])
    facts = {"dataloader": loader, "dataloader_len": subset, "dataset_resumption": {}}
    trainer = kind(types.SimpleNamespace(timestamp=time, **facts), [callback])
    trained = list(trainer._train_loop(num))
    assert trainer.state.dataloader_len == subset
    return trained, callback.state_dict()


@pytest.mark.parametrize("num_had", [2, NUM_STEPS, NUM_STEPS + 3])
def test_a_resume_goes_on_with_the_next_batch(trainer_type: Any, num_had: int) -> None:
    whole, _ = steps(trainer_type, 15)
    assert [epoch for epoch, _ in whole] == [0] * 5 + [1] * 5 + [2] * 5
    for epoch in range(3):
        ids = itertools.chain.from_iterable(ids for number, ids in whole if number == epoch)
        assert sorted(ids) == list(range(20))
    _, state = steps(trainer_type, num_had)
    # A checkpoint of the last batch is written before Composer ends the epoch.
    at = divmod(num_had, NUM_STEPS) if num_had != NUM_STEPS else (0, NUM_STEPS)
    rest, _ = steps(trainer_type, 15 - num_had, at=at, state=state)
    assert rest == whole[num_had:]


def test_epochs_of_a_part_have_orders_of_their_own_and_resume(trainer_type: Any) -> None:
    whole, _ = steps(trainer_type, 6, subset=3)
    for epoch in range(2):
        loader = loader_of()
        loader.set_epoch(epoch)
        first = [(epoch, batch["value"].tolist()) for batch in itertools.islice(loader, 3)]
        assert whole[3 * epoch : 3 * epoch + 3] == first
    _, state = steps(trainer_type, 2, subset=3)
    assert steps(trainer_type, 4, at=(0, 2), state=state, subset=3)[0] == whole[2:]


def test_a_checkpoint_without_the_loaders_state_is_refused(trainer_type: Any) -> None:
    with pytest.raises(StateError, match="batch 2 of epoch 1, and the loader stands in epoch 0"):
        steps(trainer_type, 3, at=(1, 2))
    with pytest.raises(StateError, match="had no LoaderState of this loader"):
        steps(trainer_type, 3, at=(0, 2))


def test_training_on_a_loader_whose_position_nobody_keeps_is_refused(trainer_type: Any) -> None:
    time = types.SimpleNamespace(epoch=0, batch_in_epoch=0)
    facts = {"dataloader": loader_of(), "dataloader_len": 5, "dataset_resumption": {}}
    trainer = trainer_type(types.SimpleNamespace(timestamp=time, **facts), [])
    # What evaluates takes the same function, and needs no state.
    trainer.callbacks.append(types.SimpleNamespace(before_dataloader=lambda *_: None))
    assert sum(1 for _ in trainer._iter_dataloader()) == NUM_STEPS
    trainer.callbacks[0].fit_start = trainer.callbacks[0].epoch_start = lambda *_: None
    with pytest.raises(FrameworkError, match=r"callbacks=\[LoaderState\(loader\)\]"):
        next(trainer._train_loop(3))
