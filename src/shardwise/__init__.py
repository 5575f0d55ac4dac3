"""shardwise: distributed training data for PyTorch, every sample exactly once, in one order.

    import shardwise as sw

    ds = sw.tar("train/{000..099}.tar").decode(jpg=sw.image(size=224), cls=int)
    for batch in sw.DataLoader(ds, batch_size=64, shuffle=True):
        ...

Names are imported when they are first used, so that `import shardwise` costs next to nothing and
never imports torch.
"""

# ruff: noqa: I001 - it would give each `x as x` an import of its own
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardwise.base.plugins import find, has, own_names

# The names of `_NAMES` for type checkers, to which `x as x` says that x is public.
if TYPE_CHECKING:
    from shardwise import compat as compat, testing as testing, torch as torch
    from shardwise.extensions.buckets.buckets import buckets as buckets
    from shardwise.extensions.build import (
        BuildReport as BuildReport,
        build as build,
        fetch as fetch,
    )
    from shardwise.codecs import (
        array as array,
        image as image,
        json as json,
        msgpack as msgpack,
        npy as npy,
        optional as optional,
        text as text,
        torch_tensor as torch_tensor,
        unpickle as unpickle,
    )
    from shardwise.extensions.media.decoders.audio import audio as audio
    from shardwise.extensions.media.decoders.media import media as media
    from shardwise.extensions.media.decoders.video import video as video
    from shardwise.compat.native import from_webdataset as from_webdataset
    from shardwise.dataset import Dataset as Dataset
    from shardwise.dataset.concatenation import concat as concat
    from shardwise.engine.batch.padding import pad as pad
    from shardwise.base.errors import (
        DataError as DataError,
        DecodeTimeoutError as DecodeTimeoutError,
        FrameworkError as FrameworkError,
        MissingExtraError as MissingExtraError,
        MissingShardError as MissingShardError,
        RankError as RankError,
        ServiceError as ServiceError,
        ShardwiseError as ShardwiseError,
        StaleIndexError as StaleIndexError,
        StallError as StallError,
        StateError as StateError,
        StorageError as StorageError,
        WorkerError as WorkerError,
    )
    from shardwise.extensions.fields.join import join as join
    from shardwise.extensions.mixtures.mix import mix as mix
    from shardwise.extensions.monitor.exporters import (
        export_opentelemetry as export_opentelemetry,
        export_prometheus as export_prometheus,
    )
    from shardwise.extensions.monitor.trace import trace as trace
    from shardwise.extensions.packs.pack import pack as pack
    from shardwise.extensions.show.show import show as show
    from shardwise.extensions.series.lerobot import lerobot as lerobot
    from shardwise.extensions.series.windows import windows as windows
    from shardwise.extensions.tables.functions import lance as lance, parquet as parquet
    from shardwise.extensions.formats.functions import (
        jsonl as jsonl,
        litdata as litdata,
        mds as mds,
        tfrecord as tfrecord,
        tokens as tokens,
    )
    from shardwise.dataset.formats import (
        files as files,
        tar as tar,
        wrap as wrap,
    )
    from shardwise.loader import DataLoader as DataLoader
    from shardwise.plan import (
        FullSampler as FullSampler,
        Plan as Plan,
        SequentialSampler as SequentialSampler,
        WeightedSampler as WeightedSampler,
        WindowSampler as WindowSampler,
    )
    from shardwise.extensions.service.service import service as service
    from shardwise.sources.tar.write.writer import TarWriter as TarWriter
    from shardwise.loader.returned_types import (
        Batch as Batch,
        Certificate as Certificate,
        Stats as Stats,
    )
    from shardwise.storage.options import CacheSettings as CacheSettings
    from shardwise.storage.options import StorageOptions as StorageOptions

    __version__: str


_PACKAGES = ("compat", "testing", "torch")
_NAMES = {
    "shardwise.codecs": (
        "array",
        "image",
        "json",
        "msgpack",
        "npy",
        "optional",
        "text",
        "torch_tensor",
        "unpickle",
    ),
    "shardwise.dataset.concatenation": ("concat",),
    "shardwise.dataset": ("Dataset",),
    "shardwise.engine.batch.padding": ("pad",),
    "shardwise.base.errors": (
        "DataError",
        "DecodeTimeoutError",
        "FrameworkError",
        "MissingExtraError",
        "MissingShardError",
        "RankError",
        "ServiceError",
        "ShardwiseError",
        "StaleIndexError",
        "StallError",
        "StateError",
        "StorageError",
        "WorkerError",
    ),
    "shardwise.dataset.formats": ("files", "tar", "wrap"),
    "shardwise.loader": ("DataLoader",),
    "shardwise.loader.returned_types": ("Batch", "Certificate", "Stats"),
    "shardwise.plan": (
        "FullSampler",
        "Plan",
        "SequentialSampler",
        "WeightedSampler",
        "WindowSampler",
    ),
    "shardwise.sources.tar.write.writer": ("TarWriter",),
    "shardwise.storage.options": ("CacheSettings", "StorageOptions"),
    "shardwise.base.version": ("__version__",),
}

_PUBLIC = [*(name for own in _NAMES.values() for name in own), *own_names("names")]
__all__ = [*_PACKAGES, *_PUBLIC]  # noqa: PLE0604 - all are str


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    module = next((module for module, own in _NAMES.items() if name in own), None)
    if module is not None:
        value: Any = getattr(import_module(module), name)
    elif has("names", name):
        value = find("names", name)
    else:
        from shardwise.base.hints import hint_for_name

        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{hint_for_name(name, __all__)}"
        )
    # The next look-up finds it at once.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
