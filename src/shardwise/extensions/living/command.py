"""`shardwise redact`: remove samples from tar shards, so that no byte of them is left."""

from __future__ import annotations

from typing import Any

import click

from shardwise.cli.data import list_shards, require_tar
from shardwise.cli.options import common_options, shard_options, urls_argument, usage_errors
from shardwise.cli.output import clean, finish, format_count, plural, write_table
from shardwise.extensions.living import redaction
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.listed_shards import is_manifest_file, manifest_files
from shardwise.sources.tar.index.merge import merge_indexes
from shardwise.storage import read_whole


@click.command()
@urls_argument
@click.option("--keys", required=True, metavar="FILE", help="The samples' keys, one a line.")
@shard_options
@common_options
def redact(urls: tuple[str, ...], keys: str, index: str | None, accept_unfinished: bool) -> None:
    """Remove samples from tar shards for good, in place.

    Their payloads become zeros, and their indexes say that they were removed: no loader gives them
    any more. Sizes, positions, fingerprints and states stay as they are, and so do names. Manifest
    files among URLS are written again. If a run is killed, run it again; `shardwise verify` proves
    the zeros. Exit code 1 if a shard can't be written, 2 if no shard has one of the keys.
    """
    require_tar(urls, "redact")
    store = IndexStore(index, accept_unfinished=accept_unfinished)
    with usage_errors():
        lines = read_whole(keys).decode(errors="surrogateescape").splitlines()
        wanted = {line.strip() for line in lines} - {""}
        removed = redaction.redact(list_shards(urls), wanted, store)
    for name in filter(is_manifest_file, urls):
        for url in manifest_files(name, store.options):
            merge_indexes(url, list_shards([url]), store=store)
    shards = [{"url": url, "num_removed": count} for url, count in removed.items()]
    finish({"num_removed": sum(removed.values()), "shards": shards}, _show)


def _show(document: dict[str, Any]) -> None:
    shards, count = document["shards"], format_count(document["num_removed"])
    rows = [[clean(each["url"]), format_count(each["num_removed"])] for each in shards]
    write_table(["removed", f"{count} in {plural(len(shards), 'shard')}"], rows)
