"""Ray's `prepare_data_loader` would put its sampler into a loader, and is refused."""

from __future__ import annotations

import pytest

import shardwise as sw
from tests.support.trainers import needs


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
