"""The API of WebDataset 1.0.2 on this library's storage, tar reader, codecs and ranks.

    import shardwise.compat.webdataset as wds

    dataset = wds.WebDataset("train-{000..099}.tar", shardshuffle=True).shuffle(1000).decode("rgb")
    loader = wds.WebLoader(dataset.to_tuple("jpg", "cls").batched(64), batch_size=None)

Names, arguments and modules are WebDataset's. What is different is what WebDataset gets wrong: see
the page on moving from WebDataset.
"""

from __future__ import annotations

from typing import Any

from shardwise.compat.webdataset import (
    autodecode,
    cache,
    compat,
    extradatasets,
    filters,
    gopen,
    handlers,
    mix,
    old_names,
    pipeline,
    pytorch,
    shardlists,
    tariterators,
    tenbin,
    utils,
    writer,
)

_NAMES = {
    autodecode: "Continue Decoder DecodingError gzfilter handle_extension imagehandler "
    "pytorch_weights_only torch_audio torch_loads torch_video",
    cache: "LRUCleanup cached_tarfile_samples cached_tarfile_to_samples pipe_cleaner",
    compat: "FluidInterface FluidWrapper WebDataset WebLoader",
    extradatasets: "MockDataset with_epoch with_length",
    filters: "Cached LMDBCached associate batched decode detshuffle extract_keys getfirst info "
    "log_keys map map_dict map_tuple pipelinefilter rename rename_keys rsample select shuffle "
    "slice to_tuple transform_with unbatched unlisted xdecode",
    # The function takes the name of its module, which is in `sys.modules`.
    gopen: "gopen gopen_schemes",
    handlers: "ignore_and_continue ignore_and_stop reraise_exception warn_and_continue "
    "warn_and_stop",
    mix: "RandomMix RoundRobin",
    pipeline: "DataPipeline",
    shardlists: "MultiShardSample ResampledShards SimpleShardList non_empty resampled shardspec "
    "single_node_only split_by_node split_by_worker",
    tariterators: "tarfile_samples tarfile_to_samples",
    utils: "PipelineStage repeatedly",
    writer: "ShardWriter TarWriter numpy_dumps torch_dumps",
}
globals().update(
    {name: getattr(module, name) for module, names in _NAMES.items() for name in names.split()}
)

__version__ = "1.0.2"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return old_names.find(name, list(globals()))
