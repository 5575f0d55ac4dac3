"""One module per format; each gives a manifest and reads rows, and is independent of the others."""

from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import PerProcess
from shardwise.sources.protocol import Source, SourceTraits

__all__ = ["Manifest", "PerProcess", "Shard", "Source", "SourceTraits"]
