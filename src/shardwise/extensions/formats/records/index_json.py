"""The `index.json` of a directory of shards: its location and content."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from shardwise.base.arguments import directory_text
from shardwise.base.errors import DataError, ShardwiseError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.storage import FilePool, read_whole
from shardwise.storage.missing import explain_missing
from shardwise.storage.url_patterns import refuse_json_lines, refuse_repeats

_NAME = "index.json"


def index_urls(urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """The index files that a user names: by themselves, or by their directories."""
    if not isinstance(urls, str | os.PathLike | Sequence):
        raise TypeError(f"urls={urls!r:.80}: give a directory, or a list of them")
    items = [urls] if isinstance(urls, str | os.PathLike) else list(urls)
    found = []
    for item in items:
        text = directory_text("urls", item)
        if not text:
            raise ValueError("urls='': give a directory with an index.json")
        refuse_json_lines(text)
        path, mark, query = text.partition("?") if "://" in text else (text, "", "")
        if not path.endswith(".json"):
            path = f"{path.rstrip('/')}/{_NAME}"
        found.append(path + mark + query)
    if not found:
        raise ValueError("urls=[]: give at least one directory with an index.json")
    refuse_repeats(found)
    return found


def kind_of_index(url: str) -> str | None:
    """Return the function of shardwise that reads what an `index.json` names; None for no index."""
    try:
        document = json.loads(read_whole(index_urls(url)[0]))
    except (ShardwiseError, ValueError, RecursionError):
        # An index that can't be read raises an error when it is opened.
        return None
    return _kind(document) if isinstance(document, dict) else None


def name_reader(document: dict[str, Any]) -> str:
    """Name the function that reads an index, as the end of a message; "" if none does."""
    kind = _kind(document)
    return "" if kind is None else f"; sw.{kind} reads this one"


def _kind(document: dict[str, Any]) -> str | None:
    config = document.get("config")
    if isinstance(config, dict) and "chunks" in document:
        return "tokens" if config.get("item_loader") == "TokensLoader" else "litdata"
    return "mds" if "shards" in document and "version" in document else None


def read_index(pool: FilePool, url: str) -> dict[str, Any]:
    """Read an index, which is a JSON object."""
    with explain_missing([url]):
        text = read_whole(url, options=pool.options, once=True)
    with as_data_error("the index is no JSON", url=url):
        document = json.loads(text)
    if not isinstance(document, dict):
        raise DataError("the index is no JSON object", url=url)
    return document


def integer(value: Any) -> int:
    """A count or a length of an index; ValueError for other values."""
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r:.80} is no count")
    return value
