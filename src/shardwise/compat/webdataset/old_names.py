"""Names of older versions of WebDataset: what takes their place, or what to use instead."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from typing import Any

from shardwise.compat.webdataset.compat import WebDataset
from shardwise.compat.webdataset.order import ShardShuffle
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.shardlists import SimpleShardList, split_by_node, split_by_worker

_GONE = {
    "ChoppedDataset": "WebDataset(...).with_epoch(n)",
    "FakeLength": "WebDataset(...).with_length(n)",
    "MultiDataset": "WebLoader(dataset, num_workers=n)",
    "MultiDatasetIterator": "WebLoader(dataset, num_workers=n)",
    "Pipeline": "DataPipeline",
    "Processor": "DataPipeline(dataset, stage)",
    "Repeatedly": "WebDataset(...).repeat(n)",
    "ResizedDataset": "WebDataset(...).with_epoch(n)",
    "Shorthands": "FluidInterface",
    "associate_": "associate",
    "map_stream": "DataPipeline(dataset, stage)",
    "parallel": "WebLoader",
    "reader": "gopen",
    "url_opener": "tariterators.url_opener",
}


def _shard_list(
    urls: Any,
    shuffle: bool = False,
    nodesplitter: Any = split_by_node,
    splitter: Any = split_by_worker,
    length: int | None = None,
) -> DataPipeline:
    """What `ShardList` and `PytorchShardList` were: shards, shuffled and divided."""
    stages = [nodesplitter, splitter]
    if shuffle:
        stages.insert(0, ShardShuffle(1))
    pipeline = DataPipeline(SimpleShardList(urls), *stages)
    return pipeline if length is None else pipeline.with_length(length, silent=True)


_RENAMED = {
    "Dataset": (WebDataset, "WebDataset"),
    "PytorchShardList": (_shard_list, "SimpleShardList with split_by_node and split_by_worker"),
    "ShardList": (_shard_list, "SimpleShardList with split_by_node and split_by_worker"),
}


def find(name: str, known: Iterable[str]) -> Any:
    """What stands for an old name, with a DeprecationWarning."""
    if name in _RENAMED:
        found, instead = _RENAMED[name]
        warnings.warn(f"{name} is deprecated: use {instead}", DeprecationWarning, stacklevel=3)
        return found
    advice = f": use {_GONE[name]}" if name in _GONE else ""
    if not advice:
        by_case = {other.lower(): other for other in known}
        alike = difflib.get_close_matches(name.lower(), list(by_case), n=1, cutoff=0.8)
        advice = f": did you mean {by_case[alike[0]]!r}?" if alike else ""
    raise AttributeError(f"module 'webdataset' has no attribute {name!r}{advice}")
