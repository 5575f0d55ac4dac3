"""The loader: in which order samples come, who gets them, and where one is in the epoch."""

from shardwise.loader.loader import DataLoader
from shardwise.plan.epoch_sampler import EpochSampler

__all__ = ["DataLoader", "EpochSampler"]
