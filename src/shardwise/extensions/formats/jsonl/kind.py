"""Whether a file of JSON lines holds samples, or lists files that are samples."""

from __future__ import annotations

import json

from shardwise.base.errors import ShardwiseError
from shardwise.sources.files.list_file import lists_files
from shardwise.storage import expand, open_file

_FIRST_BYTES = 64 << 10


def kind_of_lines(url: str) -> str | None:
    """Return "files" if the first line names a file, else "jsonl"; None if it can't be read."""
    try:
        file = open_file(expand(url, suffixes=(".jsonl", ".ndjson"))[0])
        start = file.read(0, min(_FIRST_BYTES, file.stat().num_bytes)).strip()
        row = json.loads(start.splitlines()[0]) if start else {}
    except ShardwiseError:
        # A file that can't be read raises an error when it is opened.
        return None
    except (ValueError, RecursionError):
        return "jsonl"
    return "files" if isinstance(row, dict) and lists_files(row) else "jsonl"
