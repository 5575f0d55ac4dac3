"""MDS shards, as MosaicML Streaming writes them."""

from shardwise.sources.mds.source import MdsSource

__all__ = ["MdsSource"]
