"""Names of wids' modules that are gone, and what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_DOWNLOAD = "download_file(url, path), or download_and_open(url, path)"
_TARS = "tarfile.TarInfo, or MMIndexedTar for a tar in memory"
_GONE = {
    "AtomicJsonUpdate": "the command `widsindex update`",
    "T": "typing.TypeVar",
    "TarHeader": _TARS,
    "copy_file": _DOWNLOAD,
    "default_cmds": _DOWNLOAD,
    "download_file_no_log": _DOWNLOAD,
    "format_with_suffix": "the command `widsindex info`",
    "main_create": "the command `widsindex create`",
    "main_info": "the command `widsindex info`",
    "main_sample": "the command `widsindex sample`",
    "main_update": "the command `widsindex update`",
    "main_wds": "the command `shardwise bench`",
    "main_wids": "the command `shardwise bench`",
    "max_open_objects": "LRUCache(capacity)",
    "maybe_decode": "wids_decode.default_decoder",
    "maybe_read": "wids_decode.default_decoder",
    "next_header": _TARS,
    "open_itfs": "IndexedTarSamples(path=...)",
    "open_objects": "LRUCache(capacity)",
    "parse_tar_header": _TARS,
    "pipe_download": _DOWNLOAD,
    "print_long_info": "the command `widsindex info`",
    "set_all": "a loop over the dicts",
    "shorten_name": "the command `widsindex info`",
    "urldirbase": "wids_specs.urldir",
    "urlfile": "posixpath.basename",
    "vcmd": _DOWNLOAD,
    "verbose_cmd": _DOWNLOAD,
}
# What wids' modules import from each other.
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
