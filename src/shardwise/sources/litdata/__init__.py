"""Chunks of LitData, as its `optimize` writes them."""

from shardwise.sources.litdata.source import LitDataSource

__all__ = ["LitDataSource"]
