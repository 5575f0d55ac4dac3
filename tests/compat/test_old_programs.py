"""What public training programs say in their own way, and WebDataset takes: one test each."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path

import pytest
import torch

import shardwise.compat.webdataset as wds
from shardwise.base.errors import MissingShardError
from tests.support.tars import make_shards
from tests.support.wds_shards import SIZES


def urls_of(shards) -> list[str]:
    return [shard["url"] for shard in shards]


def test_brackets_that_no_file_matches_are_the_programs_own_notation(tmp_path):
    for name in ("rgb", "depth"):
        (tmp_path / name).mkdir()
        make_shards(tmp_path / name, SIZES[:2])
    # 4M's: one stage of the program's reads the shards of several folders side by side.
    text = f"{tmp_path}/[rgb,depth]/{{00000..00001}}.tar"
    own = [f"{tmp_path}/[rgb,depth]/{number:05d}.tar" for number in range(2)]
    assert urls_of(wds.SimpleShardList(text)) == own
    assert set(urls_of(islice(wds.ResampledShards(text), 4))) == set(own)
    # A glob is read as one where it matches, and is an error where it does not.
    files = sorted(str(path) for path in (tmp_path / "rgb").glob("*.tar"))
    assert urls_of(wds.SimpleShardList(f"{tmp_path}/[r]gb/*.tar")) == files
    with pytest.raises(MissingShardError, match="no file matches"):
        wds.SimpleShardList(f"{tmp_path}/[x,y]/*.tar")


def test_resampled_shards_take_the_worker_seed_where_it_was(tmp_path):
    urls = make_shards(tmp_path, SIZES)
    # SwissArmyTransformer's, by the arguments of WebDataset 0.2.86: worker_seed and deterministic.
    old = [wds.ResampledShards(urls, 20, partial(int, seed), True) for seed in (7, 7, 8)]
    new = wds.ResampledShards(urls, 20, worker_seed=partial(int, 7), deterministic=True)
    first, again, other = map(urls_of, old)
    assert first == again == urls_of(new)
    assert first != other


class OwnShards(torch.utils.data.IterableDataset):
    """Shards that are objects, as Cosmos-Predict2's."""

    def __init__(self, paths):
        self.urls = [Path(path) for path in paths]

    def __iter__(self):
        return ({"url": url} for url in self.urls)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_shards_that_are_a_programs_own_objects_have_a_state(tmp_path, num_workers):
    paths = make_shards(tmp_path, SIZES[:3])

    def loader():
        stages = OwnShards(paths), wds.tarfile_to_samples(), wds.map(itemgetter("__key__"))
        return wds.WebLoader(wds.DataPipeline(*stages), batch_size=None, num_workers=num_workers)

    first = loader()
    keys = list(first)
    iterator = iter(first)
    begun = list(islice(iterator, 4))
    again = loader()
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + list(again) == keys
    assert len(keys) == sum(SIZES[:3])
