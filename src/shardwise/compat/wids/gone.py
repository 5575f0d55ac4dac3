"""Names of wids' modules that are gone, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_INSTEAD = {
    "LRUCache(capacity)": "max_open_objects open_objects",
    "IndexedTarSamples(path=...)": "open_itfs",
    "a loop over the dicts": "set_all",
    "keep_most_recent_files(pattern) now and then": "create_cleanup_background_process",
    "download_file(url, path), or download_and_open(url, path)": "copy_file default_cmds "
    "download_file_no_log pipe_download vcmd verbose_cmd",
    "posixpath.basename": "urlfile",
    "tarfile.TarInfo, or MMIndexedTar for a tar in memory": "TarHeader next_header "
    "parse_tar_header",
    "the command `shardwise bench`": "main_wds main_wids",
    "the command `widsindex create`": "main_create",
    "the command `widsindex info`": "format_with_suffix main_info print_long_info shorten_name",
    "the command `widsindex sample`": "main_sample",
    "the command `widsindex update`": "AtomicJsonUpdate main_update",
    "typing.TypeVar": "T",
    "wids_decode.default_decoder": "maybe_decode maybe_read",
    "wids_specs.urldir": "urldirbase",
}
_GONE = {name: instead for instead, names in _INSTEAD.items() for name in names.split()}
# Names that wids' modules import from each other.
_IMPORTED = {"download_and_open": "wids_dl", "wids": "", "wids_dl": ""}


def finder(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: what it imported in wids, or what to use instead."""
    package, _, short = module.rpartition(".")

    def find(name: str) -> Any:
        if name in _IMPORTED:
            home = _IMPORTED[name]
            found = import_module(f"{package}.{home or name}")
            return getattr(found, name) if home else found
        advice = f": use {_GONE[name]}" if name in _GONE else ""
        raise AttributeError(f"module 'wids.{short}' has no attribute {name!r}{advice}")

    return find
