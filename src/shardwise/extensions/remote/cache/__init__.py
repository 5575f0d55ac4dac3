"""A cache of remote files on disk, shared by all processes of a machine.

`CachedFile` is a file behind the cache, `Cache` the directory as one process sees it.
"""

from shardwise.extensions.remote.cache.cache import Cache
from shardwise.extensions.remote.cache.file import CachedFile, cache_of

__all__ = ["Cache", "CachedFile", "cache_of"]
