"""What Ray and DeepSpeed would make a loader of their own of: exact, or one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from tests.support.ranks import Run, run_several
from tests.support.trainers import OFFLINE, TIMEOUT_S, needs

PROGRAMS = Path(__file__).parent / "programs"


@needs("ray")
def test_rays_preparation_of_a_loader_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.torch import train_loop_utils

    # What two of its workers would see; the rest of the call is Ray's own.
    monkeypatch.setattr(train_loop_utils.session, "get_world_size", lambda: 2)
    monkeypatch.setattr(train_loop_utils.session, "get_world_rank", lambda: 0)
    loader = sw.DataLoader(sw.wrap(range(8)), batch_size=2)
    with pytest.raises(AttributeError, match="Iterate it as it is: without Ray's prepare_data_"):
        # Made, it would start a cluster; it refuses before it needs itself.
        train_loop_utils._TorchAccelerator.prepare_data_loader(None, loader)
    batches = sw.torch.BatchSampler(loader.dataset, 2)
    stateful = sw.torch.StatefulDataLoader(loader.dataset, batch_sampler=batches)
    with pytest.raises(sw.FrameworkError, match="in place of this loader's order"):
        train_loop_utils._TorchAccelerator.prepare_data_loader(None, stateful)


@needs("ray")
def test_what_rays_only_worker_would_read_ahead_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    run_several(Run((PROGRAMS / "ray_prepared.py", out), None), timeout=TIMEOUT_S, env=OFFLINE)
    record = json.loads(out.read_text())
    for kind in ("plain", "as_torch", "stateful"):
        assert record[kind].startswith("Ray's prepare_data_loader takes a batch ahead"), kind
        assert "device=ray.train.torch.get_device()" in record[kind]
    assert record["as it is"] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def deepspeeds_loader(data: Any, rank: int) -> Any:
    """What `deepspeed.initialize(training_data=data)` makes on one of two ranks."""
    from deepspeed.runtime.dataloader import DeepSpeedDataLoader

    ranks = {"data_parallel_world_size": 2, "data_parallel_rank": rank, "local_rank": rank}
    options = {"batch_size": 5, "pin_memory": False, "num_local_io_workers": 0}
    return DeepSpeedDataLoader(data, tput_timer=None, **options, **ranks)


@needs("deepspeed")
def test_deepspeed_divides_a_dataset_as_any_other() -> None:
    made = [deepspeeds_loader(sw.wrap(range(21)), rank) for rank in range(2)]
    ids = [i for loader in made for batch in loader for i in batch["value"].tolist()]
    assert len(ids) == 22, "torch's DistributedSampler repeats one"
    assert sorted(set(ids)) == list(range(21))


@needs("deepspeed")
def test_deepspeed_divides_nothing_that_is_divided_already() -> None:
    loader = sw.DataLoader(sw.wrap(range(21)), batch_size=5)
    with pytest.raises(TypeError, match="it is the loader already"):
        next(iter(deepspeeds_loader(loader, 0)))
    it = sw.torch.IterableDataset(loader.dataset, batch_size=5, rank=0, world_size=2)
    with pytest.raises(ValueError, match="expected unspecified sampler"):
        next(iter(deepspeeds_loader(it, 0)))
