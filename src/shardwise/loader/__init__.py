"""The loader: in which order samples come, who gets them, and where one is in the epoch."""

from shardwise.epoch_sampler import EpochSampler
from shardwise.loader.loader import DataLoader

__all__ = ["DataLoader", "EpochSampler"]
