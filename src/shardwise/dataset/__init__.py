"""Samples: a source with fields chosen, decoded, mapped and divided."""

from shardwise.dataset.dataset import Dataset

__all__ = ["Dataset"]
