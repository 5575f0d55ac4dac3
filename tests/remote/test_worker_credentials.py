"""Worker processes get credentials from the trainer, and nothing else carries them."""

from __future__ import annotations

import pickle
from pathlib import Path

import shardwise as sw
from tests.support.tars import make_shards, payload, sample_key


def test_workers_read_a_store_with_the_keys_that_the_trainer_was_given(s3, tmp_path):
    shards = make_shards(tmp_path / "shards", [10, 7, 12])
    urls = [s3.put(f"train/{i}.tar", Path(path).read_bytes()) for i, path in enumerate(shards)]
    dataset = sw.tar(urls, index=tmp_path / "index", storage=s3.config)
    assert s3.secret_key.encode() not in pickle.dumps(dataset)
    with sw.DataLoader(
        dataset.select("bin"), batch_size=4, remainder="uneven", num_workers=2, output="numpy"
    ) as loader:
        found = {
            key: bytes(value)
            for batch in loader
            for key, value in zip(batch["__key__"], batch["bin"], strict=True)
        }
        assert s3.secret_key not in str(loader.state_dict())
        stats = loader.stats()
    assert found == {sample_key(g): payload(g, "bin") for g in range(29)}
    assert stats["executor"] == "processes"
    assert stats["requests"] > 0
