"""Datasets and samplers for torch's own DataLoader; importing them imports torch.

`shardwise.DataLoader` is the loader to use. These are for programs that must keep torch's:
`IterableDataset` yields ready batches, `DistributedSampler` and `BatchSampler` give indices to any
map-style dataset, a `shardwise.Dataset` among them. All three have one order for any number of
ranks and workers, and any other number of them resumes from their state. `StatefulDataLoader` is
torch's loader around one of them: it counts the batches that it returned. `to_tensors` makes
tensors of a batch of arrays.
"""

# ruff: noqa: E402 - the sentence comes before torch's own error

from typing import Any

from shardwise.base.hints import hint_for_name
from shardwise.base.torch_import import import_torch

import_torch()

from shardwise.tensors.convert import to_tensors
from shardwise.torch.iterable import IterableDataset
from shardwise.torch.samplers import BatchSampler, DistributedSampler
from shardwise.torch.stateful import StatefulDataLoader


def __getattr__(name: str) -> Any:
    hint = hint_for_name(name, __all__, package="sw.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


__all__ = [
    "BatchSampler",
    "DistributedSampler",
    "IterableDataset",
    "StatefulDataLoader",
    "to_tensors",
]
