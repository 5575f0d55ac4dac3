"""One module a format; each gives a manifest and reads rows, and knows nothing of the others."""

from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import PerProcess
from shardwise.sources.protocol import Source, SourceTraits

__all__ = ["Manifest", "PerProcess", "Shard", "Source", "SourceTraits"]
