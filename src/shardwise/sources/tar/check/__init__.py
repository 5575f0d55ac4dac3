"""Everything that may be wrong with a shard, and everything that is odd about it."""
