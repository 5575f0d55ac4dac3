"""What imports torch: tensors, and the plan's order for torch's own DataLoader.

`shardwise.DataLoader` is the loader to use. These are for programs that must keep torch's:
`IterableDataset` yields ready batches, `DistributedSampler` and `BatchSampler` give indices to any
map-style dataset, a `shardwise.Dataset` among them. All three keep one order for any number of
ranks and workers (I3), and their state may be taken up by any other number of them (I4).
`StatefulDataLoader` is torch's loader around one of them, which counts what it gave.
"""

# ruff: noqa: E402 - the sentence comes before torch's own error

from shardwise.torch_import import import_torch

import_torch()

from shardwise.tensors.convert import to_tensors
from shardwise.torch.iterable import IterableDataset
from shardwise.torch.samplers import BatchSampler, DistributedSampler
from shardwise.torch.stateful import StatefulDataLoader

__all__ = [
    "BatchSampler",
    "DistributedSampler",
    "IterableDataset",
    "StatefulDataLoader",
    "to_tensors",
]
