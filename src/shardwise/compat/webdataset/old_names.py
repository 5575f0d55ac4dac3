"""Names of WebDataset 0.1 to 1.0 that its modules here do without: found elsewhere, or gone.

One function answers for all modules: a name that WebDataset's module imports is found where it is
defined, and any other raises an AttributeError that suggests what to use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from shardwise.base.arguments import near_name
from shardwise.compat.webdataset.filters import shuffle_shards
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.shardlists import SimpleShardList, split_by_node, split_by_worker

_PACKAGE = __name__.rpartition(".")[0]
# Names that WebDataset's modules import from each other and programs take from there.
_IMPORTED = {
    "cache": "filters group_by_keys tar_file_expander tarfile_to_samples",
    "compat": "tariterators",
    "extradatasets": "PipelineStage repeatedly utils",
    "filters": "autodecode identity utils",
    "pipeline": "DataLoader IterableDataset",
    "shardlists": "utils",
    "tariterators": "filters",
}
_HOMES = ("utils", "tariterators", "pytorch")
# Substitutes, the same in all modules.
_INSTEAD = {
    "WebDataset(...).with_epoch(n)": "ChoppedDataset ResizedDataset",
    "WebDataset(...).with_length(n)": "FakeLength",
    "WebLoader(dataset, num_workers=n)": "MultiDataset MultiDatasetIterator",
    "DataPipeline": "Pipeline",
    "DataPipeline(dataset, stage)": "Processor map_stream",
    "WebDataset(...).repeat(n)": "Repeatedly",
    "FluidInterface": "Shorthands",
    "associate": "associate_",
    "WebLoader": "parallel EOF all_pids the_protocol",
    "gopen": "reader",
    "tariterators.url_opener": "url_opener",
    "warnings.warn": "ObsoleteException deprecated obsolete",
    ".with_length(n)": "add_length_method",
    "RandomMix(datasets, probs)": "compute_sample_weights",
    "cache_size=": "default_cache_size",
    "SimpleShardList(urls, seed=n)": "default_rng",
    "tuple(sample.values())": "dict2tuple",
    "shutil.copyfileobj(gopen(url), file)": "download",
    "shardlists.envsubst": "envlookup",
    "shardlists.expand_urls": "fnmatch_with_braces glob_with_braces",
    "cache.FileCache(cache_dir).get_file(url)": "get_file_cached",
    "cache.check_tar_format(path)": "get_filetype magic_filetype",
    "isinstance(value, collections.abc.Iterable)": "is_iterable",
    "gopen.local_name(url) is not None": "islocal",
    "LRUCleanup(cache_dir, cache_size).cleanup()": "lru_cleanup",
    "cached_tarfile_to_samples, or tarfile_to_samples": "maybe_cached_tarfile_to_samples",
    "getattr or a dict: text is not evaluated": "safe_eval",
    "SimpleShardList": "shardlist",
    "verbose=True": "trace verbose_cache",
    "dict(enumerate(sample))": "tuple2dict",
}
_GONE = {name: instead for instead, names in _INSTEAD.items() for name in names.split()}
_CBOR = "a tar of .cbor fields with .decode(), or a generator of your own in DataPipeline"
_GONE |= {f"cbor{end}": _CBOR for end in ("_iterator", "2_iterator", "s_samples", "s_to_samples")}
_GONE |= {f"cbors2{end}": _CBOR for end in ("_samples", "_to_samples")}
_GONE_MODULES = {
    "bench": "the command `shardwise bench`",
    "cborsiterators": "a tar of .cbor fields with .decode()",
    "typecheck": "a type checker: the package has annotations",
}


def find(module: str, name: str) -> Any:
    short = module.removeprefix(_PACKAGE).lstrip(".")
    if name in _IMPORTED.get(short, "").split():
        place = f"{_PACKAGE}.{name}"
        if place in sys.modules:
            return sys.modules[place]
        homes = (vars(import_module(f"{_PACKAGE}.{home}")) for home in _HOMES)
        return next(home[name] for home in homes if name in home)
    instead = _GONE.get(name) or _GONE_MODULES.get(short)
    advice = f": use {instead}" if instead and not name.startswith("__") else ""
    if not advice and not name.startswith("__"):
        advice = near_name(name, vars(sys.modules[module]))
    shown = ".".join(filter(None, ("webdataset", short)))
    raise AttributeError(f"module {shown!r} has no attribute {name!r}{advice}")


def answer_for(package: str, modules: Iterable[str]) -> None:
    """Make `find` answer for the modules of the package, and for those that are gone."""
    for name in (*modules, *_GONE_MODULES, "multi"):
        full = f"{package}.{name}"
        if name in _GONE_MODULES:
            sys.modules[full] = ModuleType(full, f"Gone: use {_GONE_MODULES[name]}.")
            setattr(sys.modules[package], name, sys.modules[full])
        import_module(full).__dict__["__getattr__"] = partial(find, full)


def ShardList(  # noqa: N802 - WebDataset's name
    urls: Any,
    shuffle: bool = False,
    nodesplitter: Any = split_by_node,
    splitter: Any = split_by_worker,
    length: int | None = None,
) -> DataPipeline:
    first = shuffle_shards() if shuffle else None
    pipeline = DataPipeline(SimpleShardList(urls), first, nodesplitter, splitter)
    return pipeline if length is None else pipeline.with_length(length, silent=True)


def PytorchShardList(  # noqa: N802 - WebDataset's name
    urls: Any,
    epoch_shuffle: bool = False,
    shuffle: bool = True,
    split_by_worker: bool = True,
    split_by_node: bool = True,
    verbose: bool = False,  # noqa: ARG001 - nothing is printed
) -> DataPipeline:
    """Shards, shuffled alike on all readers and divided as the arguments say."""
    own = {} if split_by_worker else {"splitter": None}
    own |= {} if split_by_node else {"nodesplitter": None}
    return ShardList(urls, epoch_shuffle or shuffle, **own)
