"""WebDataset's tar shards: scanned by their headers, indexed, read by byte ranges.

From a shard to samples: `scan` (headers to members, names and samples), `index` (built, kept and
compared with the shard), `read` (ids to byte ranges to columns), `source`. `write` makes shards.
"""
