"""Stores of your own: a client class, and the scheme of its URLs.

A client makes single attempts; retries, hedges, prefetch, the cache and version checks are this
library's, for every store alike. `shardwise.testing.check_store` holds a client to the contract.
"""

from shardwise.storage.client import AttemptError, Client, ObjectRange, Reply, register
from shardwise.storage.protocol import FileStat

__all__ = ["AttemptError", "Client", "FileStat", "ObjectRange", "Reply", "register"]
