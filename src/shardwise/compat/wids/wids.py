"""The names of `wids.wids`, gathered; each lies in a file of its own."""

from shardwise.compat.wids.dataset import (
    ShardListDataset,
    hash_dataset_name,
    interpret_transformations,
)
from shardwise.compat.wids.localname import CacheLocalname, DefaultLocalname, hash_localname
from shardwise.compat.wids.md5 import compute_file_md5sum
from shardwise.compat.wids.names import group_by_key, splitname
from shardwise.compat.wids.ranges import lengths_to_ranges
from shardwise.compat.wids.samplers import (
    ChunkedSampler,
    DistributedChunkedSampler,
    ShardedSampler,
    ShardListSampler,
)
from shardwise.compat.wids.shards import IndexedTarSamples, LRUShards, compute_num_samples

__all__ = [
    "CacheLocalname",
    "ChunkedSampler",
    "DefaultLocalname",
    "DistributedChunkedSampler",
    "IndexedTarSamples",
    "LRUShards",
    "ShardListDataset",
    "ShardListSampler",
    "ShardedSampler",
    "compute_file_md5sum",
    "compute_num_samples",
    "group_by_key",
    "hash_dataset_name",
    "hash_localname",
    "interpret_transformations",
    "lengths_to_ranges",
    "splitname",
]
