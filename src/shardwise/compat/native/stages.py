"""The stages of a WebDataset pipeline as options of a dataset and loader, or why they can't be.

WebDataset's own stages are recognized by their type or function. A program's own stages are tried
once, on the list of shards.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import ChainDataset, DataLoader

from shardwise.base.errors import DataError
from shardwise.base.ranks import explicit_ranks
from shardwise.compat.webdataset import autodecode, filters, handlers, mapping, shardlists
from shardwise.compat.webdataset.autodecode import Decoder
from shardwise.compat.webdataset.compat import WebDataset
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.utils import FilterFunction, PipelineStage
from shardwise.dataset import Dataset

# Stages by what they are here. "sample": one sample for each, run as they are. Of what is cached
# nothing is kept: a dataset reads it again.
_KINDS: dict[Any, str] = {
    mapping._map: "sample",
    mapping._map_dict: "sample",
    mapping._map_tuple: "map_tuple",
    mapping._to_tuple: "to_tuple",
    mapping._decode: "decode",
    mapping._associate: "sample",
    mapping._extract_keys: "sample",
    mapping._rename: "sample",
    mapping._rename_keys: "sample",
    mapping._xdecode: "sample",
    mapping._select: "select",
    mapping._info: "nothing",
    filters._shuffle: "shuffle",
    filters._batched: "batched",
    filters._unbatched: "unbatched",
    filters._unlisted: "unbatched",
    filters.detshuffle: "shuffle",
    filters._shuffle_shards: "shuffle",
    filters.Cached: "nothing",
    filters.LMDBCached: "nothing",
}
_ADVICE: dict[Any, tuple[str, str]] = {
    filters._rsample: (
        "it leaves samples out at random while they are read",
        "DataLoader(dataset, epoch_size=n) for shorter epochs",
    ),
    itertools.islice: (
        "it counts what one worker reads, not what the dataset holds",
        "dataset.subset(range(n))",
    ),
    mapping._log_keys: (
        "it counts what one worker reads",
        'the batch\'s "__key__" and "__index__", which say what was read',
    ),
}
_OWN = (
    "it is a function of the whole stream, and a dataset has single samples",
    "a function of one sample, in .map(fn)",
)
_LIST = "sw.tar(urls) with the list that all ranks share; the loader divides and shuffles it"
_MANY_LAPS = 10


def known_as(stage: Any) -> Any:
    """The function or class of WebDataset's that a stage is of; None for the program's own."""
    kinds = (stage.f,) if isinstance(stage, FilterFunction) else type(stage).__mro__
    return next((kind for kind in kinds if kind in _KINDS or kind in _ADVICE), None)


def kind_of(stage: Any) -> str:
    known = known_as(stage)
    if getattr(stage, "__module__", "").startswith("shardwise.compat.video2dataset."):
        clips = "sw.tar(urls).decode(mp4=sw.video(frames=8, fps=10, start='random', size=224))"
        raise refusal(stage, "it makes the samples of video2dataset's loader", clips)
    if known not in _KINDS:
        raise refusal(stage, *_ADVICE.get(known, _OWN))
    return _KINDS[known]


def refusal(stage: Any, why: str, instead: str) -> ValueError:
    """The error for a stage that can't be converted: its name, the reason and a substitute."""
    return ValueError(f"from_webdataset: the stage {name_of(stage)}: {why}; instead: {instead}")


def why_no_pipeline(value: Any) -> str:
    """The message for a value that is not a pipeline: what to write for pipelines that it holds."""
    held = value.dataset if isinstance(value, DataLoader) else value
    parts = getattr(held, "datasets", None)
    names = [
        name for name, each in vars(held).items() if isinstance(each, DataPipeline | DataLoader)
    ] if hasattr(held, "__dict__") else []  # fmt: skip
    if isinstance(held, ChainDataset):
        advice = "sw.concat([sw.from_webdataset(each) for each in it.datasets])"
    elif isinstance(parts, list | tuple):
        advice = (
            "sw.mix({str(i): (sw.from_webdataset(each), 1.0) for i, each in "
            "enumerate(it.datasets)}), with each one's weight for 1.0"
        )
    elif names:
        advice = f"sw.from_webdataset(it.{names[0]})"
    elif type(held).__module__.partition(".")[0] == "webdataset":
        advice = "shardwise.compat.install() before the first import of webdataset"
    else:
        advice = "sw.wrap(it), if it has a length and items by index"
    kind = f"a {type(held).__module__}.{type(held).__qualname__}"
    if isinstance(held, DataPipeline):
        kind = f"the pipeline has no stages, {kind}"
    elif held is not value:
        kind = f"a {type(value).__qualname__} around {kind}"
    return (
        f"from_webdataset: {kind}; it takes pipelines of shardwise.compat.webdataset (see "
        "shardwise.compat.install) that open shards; instead, where `it` is the "
        f"{type(held).__name__}: {advice}"
    )


def name_of(stage: Any) -> str:
    if not isinstance(stage, FilterFunction):
        return getattr(stage, "__name__", None) or type(stage).__name__
    name = "slice" if stage.f is itertools.islice else _name(stage.f).removeprefix("_")
    shown = [_name(value) for value in stage.args]
    for key, value in stage.kw.items():
        if value is not handlers.reraise_exception:
            shown.append(f"{key}={_name(value)}")
    return f"{name}({', '.join(shown)})"


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def argument(stage: FilterFunction, place: int, name: str, default: Any) -> Any:
    return stage.args[place] if len(stage.args) > place else stage.kw.get(name, default)


def skips_errors(stage: Any) -> bool:
    """Whether a stage's error handler continues with the next sample."""
    given: Callable[..., Any] | None = getattr(stage, "handler", None)
    if isinstance(stage, FilterFunction) and stage.f is not itertools.islice:
        bound = inspect.signature(stage.f).bind_partial(None, *stage.args, **stage.kw)
        given = bound.arguments.get("handler")
    if given in (None, handlers.reraise_exception):
        return False
    if given in (handlers.ignore_and_continue, handlers.warn_and_continue):
        return True
    goes_on = given not in (handlers.ignore_and_stop, handlers.warn_and_stop)
    try:
        # Strict: a handler that continues after some errors only has all others raised.
        goes_on = goes_on and given(DataError("from_webdataset asks if this handler goes on"))
    except Exception:  # noqa: BLE001 - the border to the user's handler
        return False
    if not goes_on:
        raise refusal(
            stage,
            f"handler={getattr(given, '__name__', given)} may end the epoch",
            "on_error='raise', 'skip' or 'replace' of the DataLoader",
        )
    return True


def decoder_of(kind: str, stage: FilterFunction) -> Decoder | None:
    """The decoder of a `.decode(...)`, which is a `map` of it, or of a stage `decode(...)`."""
    if kind == "decode":
        options = {name: value for name, value in stage.kw.items() if name != "handler"}
        return autodecode.make_decoder(*stage.args, **options)
    found = argument(stage, 0, "f", None) if stage.f is mapping._map else None
    return found if isinstance(found, Decoder) else None


def is_function(stage: Any) -> bool:
    """Whether a function of the user sees the values of the stages before."""
    if not isinstance(stage, FilterFunction):
        return False
    kind = kind_of(stage)
    collate = argument(stage, 1, "collation_fn", filters.default_collation_fn)
    if kind == "batched":
        return collate is not filters.default_collation_fn
    return kind not in ("shuffle", "nothing", "to_tuple", "unbatched")


def fields_of(stage: FilterFunction) -> list[list[str]]:
    given = stage.args
    fields = given[0].split() if len(given) == 1 and isinstance(given[0], str) else given
    return [name.split(";") if isinstance(name, str) else list(name) for name in fields]


def tuple_names(fields: list[list[str]]) -> tuple[str, ...] | None:
    """The names of a tuple's items; None if two would be equal."""
    names = tuple(alternatives[0] for alternatives in fields)
    return names if len(set(names)) == len(names) else None


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
    # At this length it is not a list with repetitions: the shards are drawn without end.
    return urls, len(given) == most or _is_another_order(source, given, urls)


def first_sample(stage: Any, urls: list[str]) -> dict[str, Any] | None:
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
    there = {name: value for name, value in first.items() if name[:2] != "__" or name == "__key__"}
    if not len(dataset) or there != {name: _raw(value) for name, value in dataset[0].items()}:
        raise refusal(
            stage,
            f"its first sample, {first['__key__']!r}, is not the first one in the tar",
            "wds.tarfile_to_samples() to open the shards, and .map(fn) for what is done to samples",
        )


def is_reordered(stage: Any, urls: list[str]) -> bool:
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
    """Warn if each rank may have its own list of shards, which the loader would divide."""
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
