"""A cache of remote files on disk, shared by all processes of a machine.

`CacheSettings` is what a user sets, `CachedFile` a file behind the cache, `Cache` the directory as
one process sees it. Imports the standard library, numpy, the errors and `shardwise.storage`.
"""

from shardwise.storage.cache.cache import Cache
from shardwise.storage.cache.file import CachedFile, cache_of, read_cached
from shardwise.storage.cache_settings import CacheSettings

__all__ = ["Cache", "CacheSettings", "CachedFile", "cache_of", "read_cached"]
