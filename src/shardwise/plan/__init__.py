"""The plan: ints and numpy in, ints and numpy out; no data, files, threads or torch."""

from shardwise.plan.order import Order, checked_epoch
from shardwise.plan.partition import Partition, Remainder
from shardwise.plan.permute import Permutation, mix, mix_array
from shardwise.plan.plan import Plan, Shuffle
from shardwise.plan.sampler import (
    FullSampler,
    ResamplingSampler,
    Sampler,
    SequentialSampler,
    SubsetSampler,
    VirtualEpochs,
    WindowSampler,
    make_sampler,
)
from shardwise.plan.state import LoaderState
from shardwise.plan.window import WindowShape

__all__ = [
    "FullSampler",
    "LoaderState",
    "Order",
    "Partition",
    "Permutation",
    "Plan",
    "Remainder",
    "ResamplingSampler",
    "Sampler",
    "SequentialSampler",
    "Shuffle",
    "SubsetSampler",
    "VirtualEpochs",
    "WindowSampler",
    "WindowShape",
    "checked_epoch",
    "make_sampler",
    "mix",
    "mix_array",
]
