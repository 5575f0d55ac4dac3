"""shardwise: distributed training data for PyTorch, every sample exactly once, in one order.

    import shardwise as sw

    ds = sw.tar("train/{000..099}.tar").decode(jpg=sw.image(size=224), cls=int)
    for batch in sw.DataLoader(ds, batch_size=64, shuffle=True):
        ...

Names are imported when they are first used, so that `import shardwise` costs next to nothing and
never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise import compat, testing, torch
    from shardwise.codecs import (
        array,
        image,
        json,
        msgpack,
        npy,
        text,
        torch_tensor,
        unpickle,
    )
    from shardwise.compat.native import from_webdataset
    from shardwise.dataset import Dataset
    from shardwise.dataset.concatenation import concat
    from shardwise.errors import (
        DataError,
        FrameworkError,
        MissingExtraError,
        MissingShardError,
        RankError,
        ShardwiseError,
        StaleIndexError,
        StallError,
        StateError,
        StorageError,
        WorkerError,
    )
    from shardwise.formats import files, lance, parquet, tar, wrap
    from shardwise.loader import DataLoader
    from shardwise.plan import FullSampler, Plan, SequentialSampler, WindowSampler
    from shardwise.sources.tar.write.writer import TarWriter
    from shardwise.storage.cache import CacheSettings
    from shardwise.storage.options import StorageOptions

    __version__: str

__all__ = [
    # Datasets.
    "Dataset",
    "concat",
    "from_webdataset",
    "lance",
    "files",
    "parquet",
    "tar",
    "wrap",
    # Decoders.
    "array",
    "image",
    "json",
    "msgpack",
    "npy",
    "text",
    "torch_tensor",
    "unpickle",
    # Loading.
    "DataLoader",
    "FullSampler",
    "Plan",
    "SequentialSampler",
    "WindowSampler",
    # Remote files.
    "CacheSettings",
    "StorageOptions",
    # Writing.
    "TarWriter",
    # Errors.
    "DataError",
    "FrameworkError",
    "MissingExtraError",
    "MissingShardError",
    "RankError",
    "ShardwiseError",
    "StaleIndexError",
    "StallError",
    "StateError",
    "StorageError",
    "WorkerError",
    # Packages.
    "compat",
    "testing",
    "torch",
    "__version__",
]

_PACKAGES = ("compat", "testing", "torch")
_NAMES = {
    "shardwise.codecs": (
        "array",
        "image",
        "json",
        "msgpack",
        "npy",
        "text",
        "torch_tensor",
        "unpickle",
    ),
    "shardwise.compat.native": ("from_webdataset",),
    "shardwise.dataset.concatenation": ("concat",),
    "shardwise.dataset": ("Dataset",),
    "shardwise.errors": (
        "DataError",
        "FrameworkError",
        "MissingExtraError",
        "MissingShardError",
        "RankError",
        "ShardwiseError",
        "StaleIndexError",
        "StallError",
        "StateError",
        "StorageError",
        "WorkerError",
    ),
    "shardwise.formats": ("files", "lance", "parquet", "tar", "wrap"),
    "shardwise.loader": ("DataLoader",),
    "shardwise.plan": ("FullSampler", "Plan", "SequentialSampler", "WindowSampler"),
    "shardwise.sources.tar.write.writer": ("TarWriter",),
    "shardwise.storage.cache": ("CacheSettings",),
    "shardwise.storage.options": ("StorageOptions",),
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version(__name__)
    else:
        module = next((module for module, names in _NAMES.items() if name in names), None)
        if module is None:
            from shardwise.hints import CLASSES

            told = f"; {CLASSES[name]}" if name in CLASSES else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{told}")
        value = getattr(import_module(module), name)
    # The next look-up finds it at once.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
