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
from shardwise.compat.webdataset.autodecode import (
    Continue,
    Decoder,
    DecodingError,
    gzfilter,
    handle_extension,
    imagehandler,
    pytorch_weights_only,
    torch_audio,
    torch_loads,
    torch_video,
)
from shardwise.compat.webdataset.cache import (
    LRUCleanup,
    cached_tarfile_samples,
    cached_tarfile_to_samples,
    pipe_cleaner,
)
from shardwise.compat.webdataset.compat import (
    FluidInterface,
    FluidWrapper,
    WebDataset,
    WebLoader,
)
from shardwise.compat.webdataset.extradatasets import MockDataset, with_epoch, with_length
from shardwise.compat.webdataset.filters import (
    Cached,
    LMDBCached,
    associate,
    batched,
    decode,
    detshuffle,
    extract_keys,
    getfirst,
    info,
    log_keys,
    map,  # noqa: A004 - WebDataset's name
    map_dict,
    map_tuple,
    pipelinefilter,
    rename,
    rename_keys,
    rsample,
    select,
    shuffle,
    slice,  # noqa: A004 - WebDataset's name
    to_tuple,
    transform_with,
    unbatched,
    unlisted,
    xdecode,
)

# Behind this line the attribute `gopen` is the function; the module is in `sys.modules`.
from shardwise.compat.webdataset.gopen import gopen, gopen_schemes
from shardwise.compat.webdataset.handlers import (
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_continue,
    warn_and_stop,
)
from shardwise.compat.webdataset.mix import RandomMix, RoundRobin
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.shardlists import (
    MultiShardSample,
    ResampledShards,
    SimpleShardList,
    non_empty,
    resampled,
    shardspec,
    single_node_only,
    split_by_node,
    split_by_worker,
)
from shardwise.compat.webdataset.tariterators import tarfile_samples, tarfile_to_samples
from shardwise.compat.webdataset.utils import PipelineStage, repeatedly
from shardwise.compat.webdataset.writer import (
    ShardWriter,
    TarWriter,
    numpy_dumps,
    torch_dumps,
)

__version__ = "1.0.2"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return old_names.find(name, list(globals()))
