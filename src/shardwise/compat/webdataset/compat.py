"""`WebDataset`, `WebLoader` and `FluidWrapper`: pipelines with the stages as methods.

Keeps I1: shards are shuffled alike on all ranks and divided afterwards, so that each is read once
an epoch, by another rank each time.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from shardwise.compat.environment import variable
from shardwise.compat.webdataset import autodecode, cache, filters, shardlists, utils
from shardwise.compat.webdataset.filters import detshuffle
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.loader import LoaderPipeline, StatefulLoader
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.pytorch import DataLoader, IterableDataset
from shardwise.compat.webdataset.readers import find_ranks, require_items
from shardwise.compat.webdataset.tariterators import (
    expand_samples,
    group_by_keys,
    tar_file_expander,
)
from shardwise.compat.webdataset.utils import pipelinefilter


def _method(make_stage: Callable[..., Any]) -> Any:
    def method(self: FluidInterface, *args: Any, **kw: Any) -> Any:
        return self.compose(make_stage(*args, **kw))

    method.__doc__ = make_stage.__doc__
    return method


class FluidInterface:
    """Methods for a class with `compose(*stages)`."""

    def compose(self, *args: Any) -> Self:
        raise NotImplementedError(f"{type(self).__name__} has no compose(*stages)")

    associate = _method(filters.associate)
    batched = _method(filters.batched)
    extract_keys = _method(filters.extract_keys)
    info = _method(filters.info)
    lmdb_cached = _method(filters.LMDBCached)
    log_keys = _method(filters.log_keys)
    map = _method(filters.map)
    map_dict = _method(filters.map_dict)
    map_tuple = _method(filters.map_tuple)
    mcached = _method(filters.Cached)
    rename = _method(filters.rename)
    rename_keys = _method(filters.rename_keys)
    rsample = _method(filters.rsample)
    select = _method(filters.select)
    slice = _method(filters.slice)
    to_tuple = _method(filters.to_tuple)
    unbatched = _method(filters.unbatched)
    unlisted = _method(filters.unlisted)
    xdecode = _method(filters.xdecode)

    def listed(self, batchsize: int, partial: bool = True) -> Self:
        return self.compose(filters.batched(batchsize, collation_fn=None, partial=partial))

    def shuffle(self, size: int, **kw: Any) -> Self:
        """Shuffle through a buffer of `size` samples; below 1 it has no effect."""
        return self if size < 1 else self.compose(filters.shuffle(size, **kw))

    def decode(self, *args: Any, handler: Any = reraise_exception, **kw: Any) -> Self:
        """Decode fields by names such as "rgb" and by functions; see `autodecode.Decoder`."""
        return self.compose(filters.map(autodecode.make_decoder(*args, **kw), handler=handler))

    def ddp_equalize(self, length: int, with_length: bool = True) -> Self:
        """Give each rank length // world_size items per epoch. Deprecated: use `with_epoch`."""
        warnings.warn(
            "ddp_equalize is deprecated: use .with_epoch(length // world_size)",
            DeprecationWarning,
            stacklevel=2,
        )
        num = length // find_ranks().world_size
        if num < 1:
            raise ValueError(f"ddp_equalize({length}): fewer items than ranks")
        result: Any = self.compose()
        result = result.with_epoch(num)
        return result.with_length(num, silent=True) if with_length else result  # type: ignore[no-any-return]


_GONE = {
    "length": "use .with_length(n) or .with_epoch(n)",
    "epoch": "use .with_epoch(n)",
    "shuffle": "use shardshuffle=n for shards, .shuffle(n) for samples",
    "decoder": "use .decode(...)",
    "transforms": "use .map_tuple(...)",
    "extensions": "use .to_tuple(...)",
    "pipeline": "use DataPipeline(...)",
    "tarhandler": "use handler=",
}


def check_empty(source: Iterable[Any]) -> Iterator[Any]:
    return require_items(
        source,
        "this reader got no samples: there are fewer shards than readers (ranks times workers), "
        "or handler= left all of them out. Use fewer workers or more shards, or look at "
        "the errors that the handler got; empty_check=False permits readers without samples",
    )


class WebDataset(DataPipeline, FluidInterface):
    """The samples of tar shards, divided among ranks and workers.

    Arguments are WebDataset's; described are those that mean more, or something else.

    Args:
        urls: a text, a path, a list of them (see `expand_urls`), or a dict or YAML file that names
            several sets. A dataset of shards is taken as it is: nothing divides it.
        mode: "resampled" is `resampled=True`; "unlink", "keep" or "resample" for a directory that
            other programs fill: see `DirectoryShardList`.
        resampled: no end; all shards are read once before one is read again.
        repeat: has no effect, as in WebDataset: use `.repeat()`.
        shardshuffle: another order of shards each epoch; a number is the same as True.
        cache_size: bytes for the cache; -1 for no limit, 0 for no cache.
        nodesplitter: a stage that gives each rank its shards; None for all shards on all ranks.
            The default is `split_by_node`, with one warning about how many shards a rank gets.
        seed: drives shuffles and resampling, together with the number of the epoch; None for the
            environment's `WDS_SEED`, or 0. It must be the same on all ranks.

    Raises:
        ValueError: the cache directory does not exist.
        TypeError: `urls` is of another type, or an argument is not known.
    """

    shares_epoch = True

    def __init__(
        self,
        urls: Any,
        handler: Any = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,  # noqa: ARG002
        shardshuffle: int | bool | None = None,
        cache_size: int = -1,
        cache_dir: str | os.PathLike[str] | None = None,
        url_to_name: Callable[[str], str] | None = None,
        detshuffle: bool = False,
        nodesplitter: Any = "default",
        workersplitter: Any = shardlists.split_by_worker,
        select_files: Callable[[str], Any] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: Any = None,
        **old: Any,
    ) -> None:
        super().__init__(seed=seed)
        if old:
            workersplitter = _old_arguments(old, workersplitter)
        resampled = resampled or mode == "resampled"
        if resampled and shardshuffle:
            warnings.warn("shardshuffle has no effect with resampled=True", stacklevel=2)
        cache_dir, cache_size = _cache_settings(cache_dir, cache_size)
        source = _source(urls, mode, resampled, self.seed)
        self.append(source)
        self.is_split_asked = nodesplitter != "default"
        if source is urls:
            nodesplitter, workersplitter = nodesplitter if self.is_split_asked else None, None
        elif not self.is_split_asked:
            nodesplitter = shardlists.split_by_node
        # The stages that divide, by their role and whatever their type.
        self.splitters = tuple(stage for stage in (nodesplitter, workersplitter) if stage)
        if not resampled:
            is_endless = isinstance(source, shardlists.DirectoryShardList)
            if shardshuffle:
                self.append(_shard_shuffle(shardshuffle, self.seed, detshuffle, is_endless))
            self.pipeline += self.splitters
        opening: dict[str, Any] = {"handler": handler, "verbose": verbose}
        if cache_dir is None or cache_size == 0:
            self.append(cache.StreamingOpen(**opening))
        else:
            opening["url_to_name"] = url_to_name or cache.url_to_cache_name
            self.append(cache.FileCache(os.fspath(cache_dir), cache_size=cache_size, **opening))
        self.append(_expander(handler, select_files=select_files, rename_files=rename_files))
        if empty_check:
            self.append(check_empty)

    def __enter__(self) -> WebDataset:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class FluidWrapper(DataPipeline, FluidInterface):
    """A pipeline of any iterable, with the stages as methods."""

    shares_epoch = True

    def __init__(self, initial: Any, *, seed: Any = None) -> None:
        super().__init__(seed=seed)
        is_stage = callable(initial) or isinstance(initial, IterableDataset | DataLoader | list)
        self.append(initial if is_stage else partial(iter, initial))


class WebLoader(LoaderPipeline, FluidInterface):
    """torch's DataLoader as a pipeline with stages as methods, epochs in workers, and a state."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(StatefulLoader(*args, **kw))


_expander = pipelinefilter(expand_samples)


def _source(urls: Any, mode: str | None, resampled: bool, seed: Any) -> Any:
    if isinstance(urls, IterableDataset):
        return urls
    if isinstance(urls, dict) or (isinstance(urls, str) and urls.endswith((".yaml", ".yml"))):
        return shardlists.MultiShardSample(urls)
    if isinstance(urls, str) and urls.endswith(".json"):
        raise ValueError(
            f"{urls!r} is an index of wids: read it with wids.ShardListDataset, or give the shards"
        )
    if mode in ("unlink", "keep", "resample") and isinstance(urls, str) and urls.endswith("/"):
        return shardlists.DirectoryShardList(urls, mode=mode)
    if resampled:
        return shardlists.ResampledShards(urls, seed=seed, deterministic=True)
    return shardlists.SimpleShardList(urls)


def _shard_shuffle(size: int | bool, seed: Any, is_buffered: bool, is_endless: bool) -> Any:
    num = 100 if size is True else int(size)
    if is_buffered:
        return detshuffle(num, initial=num, seed=seed)
    # A list is shuffled as a whole, shards without an end through a buffer.
    return filters.shuffle(num, initial=num) if is_endless else filters.shuffle_shards()


def _cache_settings(
    cache_dir: str | os.PathLike[str] | None, cache_size: int
) -> tuple[Path | None, int]:
    cache_size = int(float(variable("WDS_CACHE_SIZE") or cache_size))
    named = variable("WDS_CACHE") or cache_dir
    if named is None:
        return None, cache_size
    directory = Path(named).expanduser()
    if not directory.exists():
        raise ValueError(f"the cache directory {str(directory)!r} does not exist: make it first")
    return directory, cache_size


def _old_arguments(old: dict[str, Any], workersplitter: Any) -> Any:
    """Take `splitter`, WebDataset's old name; refuse what is gone."""
    if "splitter" in old:
        warnings.warn(
            "splitter= is deprecated: use workersplitter=", DeprecationWarning, stacklevel=3
        )
        workersplitter = old.pop("splitter")
    for name in old:
        advice = _GONE.get(name, "no version of WebDataset that is still in use has it")
        raise TypeError(f"WebDataset has no argument {name!r}: {advice}")
    return workersplitter
