"""Bytes from a URL: names expanded to URLs, files opened, ranges read, files published whole.

`expand` turns what a user writes into a list of files; `open_file` and `FilePool` open them;
`LocalFile` reads byte ranges exactly; `atomic_write` publishes a file whole or not at all.
Imports the standard library and `shardwise.errors` only.
"""

from shardwise.storage.atomic import atomic_write
from shardwise.storage.local import FileStat, LocalFile
from shardwise.storage.open import local_path, open_file
from shardwise.storage.pool import FilePool, max_open_files
from shardwise.storage.urls import expand

__all__ = [
    "FilePool",
    "FileStat",
    "LocalFile",
    "atomic_write",
    "expand",
    "local_path",
    "max_open_files",
    "open_file",
]
