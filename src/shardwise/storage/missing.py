"""Messages for missing local files: how many of a list are missing, and which names are near.

Only where a dataset is opened: a probe for a file that need not exist must stay cheap.
"""

# URLs are text, as in `shardwise.storage.urls`.
# ruff: noqa: PTH110, PTH112, PTH118

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from shardwise.base.errors import MissingShardError
from shardwise.base.shown import shown
from shardwise.storage.local import in_directory
from shardwise.storage.open import is_local, local_path

# Nobody means these where a shard is missing.
_BESIDE_SHARDS = (".swi", ".swm")
# Names that are looked at: on a network file system a million would take minutes.
_MAX_NAMES = 10_000


@contextmanager
def explain_missing(urls: Sequence[str]) -> Iterator[None]:
    """Extend the error of a missing file: how many are missing, and what there is instead."""
    try:
        yield
    except MissingShardError as error:
        url = error.url
        if not url or not is_local(url) or os.path.exists(local_path(url)):
            raise
        files = [local_path(each) for each in islice(urls, _MAX_NAMES) if is_local(each)]
        there = dict.fromkeys(filter(os.path.exists, files))
        missing = [file for file in files if file not in there]
        reason = error.reason
        if len(missing) > 1:
            url = missing[0]
            reason = (
                f"{len(missing):,} of {len(files):,} files are missing{in_directory(url)}, the "
                f"first is {shown(url)!r}"
            )
        if there and missing[1:]:
            first, *_, last = (*there, *there)
            reason += f"; there: {shown(first)!r}" + f" to {shown(last)!r}" * (len(there) > 1)
        else:
            reason += near_names(url)
        raise MissingShardError(reason, url=url) from error


def near_names(path: str) -> str:
    """Name what is called nearly so, as the end of a message: "" where nothing is."""
    parent, name = os.path.split(path.rstrip("/"))
    if glob.has_magic(parent):
        return ""
    if parent and not os.path.isdir(parent):
        return f"; there is no directory {shown(parent)!r}{near_names(parent)}"
    # Rarely needed.
    from difflib import get_close_matches

    try:
        with os.scandir(parent or ".") as entries:
            found = (entry.name for entry in islice(entries, _MAX_NAMES))
            names = sorted(each for each in found if not each.endswith(_BESIDE_SHARDS))
    except OSError:
        return ""
    near = [os.path.join(parent, each) for each in get_close_matches(name, names, n=2)]
    return f"; near it: {', '.join(repr(shown(each)) for each in near)}" if near else ""
