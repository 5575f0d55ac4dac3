"""The API of WebDataset 1.0.2 on this library's storage, tar reader, codecs and ranks.

    import shardwise.compat.webdataset as wds

    dataset = wds.WebDataset("train-{000..099}.tar", shardshuffle=True).shuffle(1000).decode("rgb")
    loader = wds.WebLoader(dataset.to_tuple("jpg", "cls").batched(64), batch_size=None)

Names, arguments and modules are WebDataset's. What is different is what WebDataset gets wrong: see
the page on moving from WebDataset.
"""

from __future__ import annotations

import difflib
import warnings
from importlib import import_module
from typing import Any

from shardwise.compat.webdataset.compat import WebDataset
from shardwise.compat.webdataset.filters import shuffle_shards
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.shardlists import SimpleShardList, split_by_node, split_by_worker

__version__ = "1.0.2"

# WebDataset's modules, and the names that the package has from each.
_NAMES = {
    "autodecode": "Continue Decoder DecodingError gzfilter handle_extension imagehandler "
    "pytorch_weights_only torch_audio torch_loads torch_video",
    "cache": "LRUCleanup cached_tarfile_samples cached_tarfile_to_samples pipe_cleaner",
    "compat": "FluidInterface FluidWrapper WebDataset WebLoader",
    "extradatasets": "MockDataset with_epoch with_length",
    "filters": "Cached LMDBCached associate batched decode detshuffle extract_keys getfirst info "
    "log_keys map map_dict map_tuple pipelinefilter rename rename_keys rsample select shuffle "
    "slice to_tuple transform_with unbatched unlisted xdecode",
    # The function takes the name of its module, which is in `sys.modules`.
    "gopen": "gopen gopen_schemes",
    "handlers": "ignore_and_continue ignore_and_stop reraise_exception warn_and_continue "
    "warn_and_stop",
    "mix": "RandomMix RoundRobin",
    "pipeline": "DataPipeline",
    "pytorch": "",
    "shardlists": "MultiShardSample ResampledShards SimpleShardList non_empty resampled shardspec "
    "single_node_only split_by_node split_by_worker",
    "tariterators": "tarfile_samples tarfile_to_samples",
    "tenbin": "",
    "utils": "PipelineStage repeatedly",
    "writer": "ShardWriter TarWriter numpy_dumps torch_dumps",
}
for _module, _names in _NAMES.items():
    _found = import_module(f"{__name__}.{_module}")
    globals().update({_name: getattr(_found, _name) for _name in _names.split()})

# Names of older versions: what to use instead.
_GONE = {
    "ChoppedDataset": "WebDataset(...).with_epoch(n)",
    "FakeLength": "WebDataset(...).with_length(n)",
    "MultiDataset": "WebLoader(dataset, num_workers=n)",
    "MultiDatasetIterator": "WebLoader(dataset, num_workers=n)",
    "Pipeline": "DataPipeline",
    "Processor": "DataPipeline(dataset, stage)",
    "Repeatedly": "WebDataset(...).repeat(n)",
    "ResizedDataset": "WebDataset(...).with_epoch(n)",
    "Shorthands": "FluidInterface",
    "associate_": "associate",
    "map_stream": "DataPipeline(dataset, stage)",
    "parallel": "WebLoader",
    "reader": "gopen",
    "url_opener": "tariterators.url_opener",
}


def _shard_list(
    urls: Any,
    shuffle: bool = False,
    nodesplitter: Any = split_by_node,
    splitter: Any = split_by_worker,
    length: int | None = None,
) -> DataPipeline:
    """What `ShardList` and `PytorchShardList` were: shards, shuffled and divided."""
    stages = [nodesplitter, splitter]
    if shuffle:
        stages.insert(0, shuffle_shards())
    pipeline = DataPipeline(SimpleShardList(urls), *stages)
    return pipeline if length is None else pipeline.with_length(length, silent=True)


_RENAMED = {
    "Dataset": (WebDataset, "WebDataset"),
    "PytorchShardList": (_shard_list, "SimpleShardList with split_by_node and split_by_worker"),
    "ShardList": (_shard_list, "SimpleShardList with split_by_node and split_by_worker"),
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _RENAMED:
        found, instead = _RENAMED[name]
        warnings.warn(f"{name} is deprecated: use {instead}", DeprecationWarning, stacklevel=2)
        return found
    advice = f": use {_GONE[name]}" if name in _GONE else ""
    if not advice:
        by_case = {other.lower(): other for other in list(globals())}
        alike = difflib.get_close_matches(name.lower(), list(by_case), n=1, cutoff=0.8)
        advice = f": did you mean {by_case[alike[0]]!r}?" if alike else ""
    raise AttributeError(f"module 'webdataset' has no attribute {name!r}{advice}")
