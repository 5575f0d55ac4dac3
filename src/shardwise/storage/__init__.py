"""Bytes from a URL: names expanded to URLs, files opened, ranges read, files published whole.

`expand` turns what a user writes into a list of files; `open_file` and `FilePool` open them; a
`File` reads byte ranges exactly, local or remote; `read_files` reads ranges of many files at once,
`read_payloads` copies as little as possible, `read_whole` reads all of a file; `atomic_write`
publishes a file whole or not at all.
"""

from shardwise.base.counters import IO_COUNTS, IoCounts, give_up_reads, outages
from shardwise.storage.file_pool import (
    FilePool,
    PoolRanges,
    Scan,
    Upcoming,
    UrlRanges,
    read_files,
    read_payloads,
)
from shardwise.storage.local import LocalFile, max_open_files
from shardwise.storage.open import is_local, local_path, open_file, read_whole, takes_many_ranges
from shardwise.storage.options import StorageOptions
from shardwise.storage.protocol import File, FileStat
from shardwise.storage.url_patterns import expand
from shardwise.storage.versions import described, require_not_written_since, require_same
from shardwise.storage.write import atomic_write

__all__ = [
    "IO_COUNTS", "File", "FilePool", "FileStat", "IoCounts", "LocalFile", "PoolRanges", "Scan",
    "StorageOptions", "Upcoming", "UrlRanges", "atomic_write", "described", "expand",
    "give_up_reads", "is_local", "local_path", "max_open_files", "open_file", "outages",
    "read_files", "read_payloads", "read_whole", "require_not_written_since", "require_same",
    "takes_many_ranges",
]  # fmt: skip
