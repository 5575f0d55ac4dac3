"""The loader: the order of samples, their ranks, and the position in the epoch."""

from shardwise.loader.loader import DataLoader
from shardwise.plan.epoch_sampler import EpochSampler

__all__ = ["DataLoader", "EpochSampler"]
