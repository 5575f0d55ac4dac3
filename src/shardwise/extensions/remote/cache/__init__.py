"""A cache of remote files on disk, shared by all processes of a machine.

`CacheSettings` are the user's settings, `CachedFile` is a file behind the cache, `Cache` the
directory as one process sees it.
"""

from shardwise.storage.cache.cache import Cache
from shardwise.storage.cache.file import CachedFile, cache_of
from shardwise.storage.cache_settings import CacheSettings

__all__ = ["Cache", "CacheSettings", "CachedFile", "cache_of"]
