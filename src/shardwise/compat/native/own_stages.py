"""What a program's own stages on the list of shards do: each is tried once, on that list."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from shardwise.compat.native.stages import refusal
from shardwise.compat.webdataset import shardlists
from shardwise.compat.webdataset.compat import WebDataset
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.utils import PipelineStage
from shardwise.dataset import Dataset
from shardwise.ranks import explicit_ranks

_MANY_LAPS = 10
_LIST = "sw.tar(urls) with the list that all ranks share; the loader divides and shuffles it"


def urls_of(source: Any) -> tuple[list[str], bool]:
    """The shards of a source, and whether it gives them in another order or again and again."""
    if isinstance(source, shardlists.SimpleShardList):
        return source.urls, source.seed is not None
    if isinstance(source, shardlists.ResampledShards):
        return source.urls, True
    urls = getattr(source, "urls", source)
    if isinstance(urls, list) and urls and all(isinstance(url, dict) for url in urls):
        urls = [url.get("url") for url in urls]
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise refusal(
            source,
            "it is no list of shards",
            "sw.tar(urls) for tar shards, sw.wrap(dataset) for what has a length, sw.mix for "
            "mixtures",
        )
    if getattr(source, "weights", None) is not None:
        raise refusal(
            source,
            "it draws some shards more often than others",
            "sw.mix of one sw.tar(urls) for each weight",
        )
    if isinstance(source, list):
        return urls, False
    most = _MANY_LAPS * (len(urls) + 100)
    given = _urls(copy.copy(source), most)
    # At this length it is no list with repetitions: the shards are drawn without end.
    return urls, len(given) == most or _is_another_order(source, given, urls)


def first_sample(stage: Any, urls: list[str]) -> dict[str, Any] | None:
    """The first sample that a stage of the program makes of shards; None if it gives shards."""
    first = next(_run(stage, urls), None)
    if isinstance(first, dict) and "__key__" in first:
        return first
    if isinstance(first, dict) and "url" in first and "stream" not in first:
        return None
    raise refusal(
        stage,
        "of a list of shards it makes neither samples nor shards",
        "wds.tarfile_to_samples() to open them",
    )


def check_sample(stage: Any, first: dict[str, Any], dataset: Dataset) -> None:
    """Hold the first sample that a stage made against the one in the tar."""
    there = {name: value for name, value in first.items() if name[:2] != "__" or name == "__key__"}
    if not len(dataset) or there != {name: _raw(value) for name, value in dataset[0].items()}:
        raise refusal(
            stage,
            f"its first sample, {first['__key__']!r}, is not the first one in the tar",
            "wds.tarfile_to_samples() to open the shards, and .map(fn) for what is done to samples",
        )


def is_reordered(stage: Any, urls: list[str]) -> bool:
    """Whether a stage of the program's own gives the list of shards in another order."""
    return _is_another_order(stage, _urls(_run(stage, urls), len(urls) + 1), urls)


def _urls(shards: Iterable[Any], most: int) -> list[Any]:
    return [shard.get("url") if isinstance(shard, dict) else None for shard in islice(shards, most)]


def _is_another_order(stage: Any, given: list[Any], urls: list[str]) -> bool:
    if Counter(given) != Counter(urls):
        raise refusal(stage, f"it gives {len(given)} shards of {len(urls)}", _LIST)
    return given != urls


def _run(stage: Any, urls: list[str]) -> Iterator[Any]:
    shards = iter([{"url": url} for url in urls])
    # A copy: many count their runs.
    own: Any = copy.copy(stage)
    found: Iterable[Any] = own.run(shards) if isinstance(stage, PipelineStage) else stage(shards)
    return iter(found)


def _raw(value: Any) -> Any:
    return value if isinstance(value, str) else bytes(value)


def warn_of_lists(pipeline: DataPipeline) -> None:
    """Warn where each rank may have a list of shards of its own, which the loader would divide."""
    is_drawn = isinstance(pipeline.pipeline[0], shardlists.ResampledShards)
    if not isinstance(pipeline, WebDataset) or not pipeline.is_split_asked or is_drawn:
        return
    if shardlists.split_by_node not in pipeline.splitters:
        ranks = explicit_ranks()
        if ranks.world_size > 1:
            warnings.warn(
                f"the pipeline divides among the {ranks.world_size} ranks by itself, and a "
                "shardwise.DataLoader divides too: give all ranks the same list of shards, or "
                "rank=0, world_size=1 to the loaders of ranks with their own",
                stacklevel=6,
            )
