"""The names of `wids.wids`, gathered; each lies in a file of its own."""

from shardwise.compat.wids.dataset import (
    ShardListDataset,
    hash_dataset_name,
    interpret_transformations,
)
from shardwise.compat.wids.names import (
    CacheLocalname,
    DefaultLocalname,
    group_by_key,
    hash_localname,
    splitname,
)
from shardwise.compat.wids.ranges import (
    intersect_range,
    intersect_ranges,
    iterate_ranges,
    lengths_to_ranges,
)
from shardwise.compat.wids.samplers import (
    ChunkedSampler,
    DistributedChunkedSampler,
    ShardedSampler,
    ShardListSampler,
)
from shardwise.compat.wids.shards import (
    IndexedTarSamples,
    LRUShards,
    compute_file_md5sum,
    compute_num_samples,
)
from shardwise.compat.wids.wids_decode import default_decoder
from shardwise.compat.wids.wids_dl import download_and_open
from shardwise.compat.wids.wids_lru import LRUCache
from shardwise.compat.wids.wids_mmtar import MMIndexedTar
from shardwise.compat.wids.wids_specs import load_dsdesc_and_resolve, urldir
from shardwise.compat.wids.wids_tar import TarFileReader, find_index_file
