"""The API of WebDataset 1.0.2 on this library's storage, tar reader, codecs and ranks.

    import shardwise.compat.webdataset as wds

    dataset = wds.WebDataset("train-{000..099}.tar", shardshuffle=True).shuffle(1000).decode("rgb")
    loader = wds.WebLoader(dataset.to_tuple("jpg", "cls").batched(64), batch_size=None)

Names, arguments and modules are WebDataset's. What is different is what WebDataset gets wrong: see
the page on moving from WebDataset.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from shardwise.compat.finder import VERSIONS
from shardwise.compat.webdataset import old_names
from shardwise.compat.webdataset.compat import WebDataset

__version__ = VERSIONS["webdataset"]

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

_RENAMED = {
    "Dataset": (WebDataset, "WebDataset"),
    "PytorchShardList": (
        old_names.PytorchShardList,
        "SimpleShardList with split_by_node and split_by_worker",
    ),
    "ShardList": (old_names.ShardList, "SimpleShardList with split_by_node and split_by_worker"),
}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        found, instead = _RENAMED[name]
        warnings.warn(f"{name} is deprecated: use {instead}", DeprecationWarning, stacklevel=2)
        return found
    return old_names.find(__name__, name)


old_names.answer_for(__name__, _NAMES)
