"""The plan: ints and numpy in, ints and numpy out; no data, files, threads or torch."""

from shardwise.plan.order import Order
from shardwise.plan.partition import Partition, Remainder
from shardwise.plan.permute import FullSampler, Permutation, mix, mix_array
from shardwise.plan.plan import Plan
from shardwise.plan.protocol import BatchBy, Sampler
from shardwise.plan.sampler import SequentialSampler, Shuffle, VirtualEpochs, make_sampler
from shardwise.plan.state import DataOrder, LoaderState, checked_epoch
from shardwise.plan.weighted import WeightedSampler
from shardwise.plan.window import WindowSampler, WindowShape

__all__ = [
    "BatchBy", "DataOrder", "FullSampler", "LoaderState", "Order", "Partition", "Permutation",
    "Plan", "Remainder", "Sampler", "SequentialSampler", "Shuffle", "VirtualEpochs",
    "WeightedSampler", "WindowSampler", "WindowShape", "checked_epoch", "make_sampler", "mix",
    "mix_array",
]  # fmt: skip
