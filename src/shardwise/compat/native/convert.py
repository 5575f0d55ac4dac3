"""`from_webdataset`: convert a WebDataset pipeline to a dataset and options of its loader."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

from torch.utils.data import ChainDataset, default_collate, default_convert

from shardwise.base.arguments import suggest_names
from shardwise.base.ranks import discover
from shardwise.compat.native import stages
from shardwise.compat.native.decoders import decode_optional, list_decoders
from shardwise.compat.native.samples import Collate, RunStages, chosen
from shardwise.compat.native.stages import argument, refusal
from shardwise.compat.webdataset import cache, compat, filters, shardlists, tariterators
from shardwise.compat.webdataset.filters import default_collation_fn
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.pytorch import DataLoader
from shardwise.compat.webdataset.readers import as_seed
from shardwise.compat.webdataset.utils import FilterFunction, identity
from shardwise.dataset import Dataset
from shardwise.dataset.formats import tar
from shardwise.storage.options import CacheSettings
from shardwise.storage.urls import scheme_of

_SPLITTERS = (
    shardlists.split_by_node,
    shardlists.split_by_worker,
    shardlists.single_node_only,
    shardlists.non_empty,
    compat.check_empty,
)
# Stages that open tars and make samples of them.
_EXPANDERS = (tariterators.expand_samples, tariterators.tarfile_samples)


class ConvertedDataset(Dataset):
    """A `Dataset` like any other, which knows the loader's options that its pipeline held.

    Datasets that are made from it (`select`, `map`, ...) are plain ones: keep the options.

    Attributes:
        loader_options: keyword arguments of `shardwise.DataLoader`.
    """

    def __init__(self, dataset: Dataset, loader_options: dict[str, Any]) -> None:
        super().__init__(dataset.source, _transforms=dataset.transforms)
        self.loader_options = loader_options

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"loader_options": self.loader_options}


@suggest_names
def from_webdataset(pipeline: Any, *, world_size: int | None = None) -> ConvertedDataset:
    """Make a dataset of a WebDataset pipeline, with the options of its loader.

    Shards, decoding, and everything that treats one sample at a time (`map`, `map_dict`, `rename`,
    `to_tuple`, `map_tuple`, ...) become the dataset. Items of tuples are called by the fields that
    `to_tuple` named. Batches, shuffles, epochs, seed and error handlers become `loader_options`:

    - `batched(n, partial=False)`: batch_size=n, remainder="drop"; with partial, remainder="pad", or
      "uneven" where a `collation_fn` makes batches that can't say which rows are repeats;
    - `shuffle(n)`, `shardshuffle=n`: shuffle="window", over all shards and not through a buffer;
    - `select(predicate)`: a subset, chosen now: the predicate is called once per sample, and
      samples are read whose values it looks at; which fields there are the index knows;
    - `with_epoch(n)`: epoch_size, which counts the samples of all ranks; without it a pipeline
      that has no end has epochs of one pass;
    - `handler=warn_and_continue`, or a function that continues after `DataError`: on_error="skip",
      and the loader counts what it skipped;
    - a `WebLoader` or a torch DataLoader: its num_workers and its pipeline's options.

    Splitters are left out: the loader divides. Stages of the program's own are tried once: what
    permutes the list of shards is a shuffle, and what makes samples of shards must give the first
    sample as it is in the tar.

    Args:
        pipeline: a `WebDataset`, `DataPipeline` or `WebLoader` of `shardwise.compat.webdataset`, or
            a torch DataLoader or `ChainDataset` around one.
        world_size: how many ranks there are, for `with_epoch`; None finds it.

    Raises:
        ValueError: a stage has no counterpart; the message names it, the reason and a substitute.
        TypeError: `pipeline` is not a pipeline; the message suggests what to write.

    Examples:
        ```python
        dataset = sw.from_webdataset(pipeline)
        loader = sw.DataLoader(dataset, **dataset.loader_options)
        ```
    """
    while isinstance(pipeline, ChainDataset) and len(list(pipeline.datasets)) == 1:
        (pipeline,) = pipeline.datasets
    if not isinstance(pipeline, DataPipeline | DataLoader):
        raise TypeError(stages.why_no_pipeline(pipeline))
    reading = _Reading(pipeline)
    options = reading.options
    if reading.size is not None:
        num_ranks = discover().world_size if world_size is None else world_size
        options["epoch_size"] = reading.size * num_ranks
    elif reading.passes > 1:
        options["epoch_size"] = reading.passes * len(reading.dataset)
    return ConvertedDataset(reading.dataset, options)


class _Reading:
    def __init__(self, pipeline: DataPipeline | DataLoader[Any]) -> None:
        self.options: dict[str, Any] = {}
        self.dataset: Dataset
        self.size: int | None = None
        self.passes = 1
        # The fields of tuples, once samples are tuples; and the stages that are run as they are.
        self._names: tuple[str, ...] | None = None
        self._stages: list[Any] = []
        self._tuple_at_first: tuple[str, ...] | None = None
        self._decoded: set[str] = set()
        self._splitters: tuple[Any, ...] = ()
        if isinstance(pipeline, DataLoader):
            self._loader(pipeline)
        else:
            self._read(pipeline)
        self.dataset = self._make_dataset()
        if "batch_size" not in self.options:
            self.options.pop("collate", None)

    def _read(self, pipeline: DataPipeline) -> None:
        if not pipeline.pipeline:
            raise ValueError(stages.why_no_pipeline(pipeline))
        first, *rest = pipeline.pipeline
        if isinstance(first, DataLoader):
            self._loader(first)
        else:
            self._splitters = getattr(pipeline, "splitters", ())
            stages.warn_of_lists(pipeline)
            rest = self._source(first, rest)
            self.options["seed"] = as_seed(pipeline.seed)
        for number, stage in enumerate(rest):
            self._stage(stage, rest[number + 1 :])
        if pipeline.nsamples > 0:
            # Items at the end of the stages: samples, or batches of them.
            self.size = pipeline.nsamples * self.options.get("batch_size", 1)
        elif 1 < pipeline.repetitions < sys.maxsize:
            self.passes = pipeline.repetitions

    # The source of samples.

    def _loader(self, loader: Any) -> None:
        dataset: Any = getattr(loader, "dataset", None)
        if not isinstance(dataset, DataPipeline):
            raise ValueError(stages.why_no_pipeline(loader))  # noqa: TRY004 - as a stage
        self._read(dataset)
        if self.size is not None and not dataset.shares_epoch:
            # Each worker yields this number.
            self.size *= max(1, loader.num_workers)
        if loader.num_workers:
            self.options["num_workers"] = loader.num_workers
        if loader.pin_memory:
            self.options["pin_memory"] = True
        collate = loader.collate_fn
        if loader.batch_size is not None:
            collate = default_collation_fn if collate is default_collate else collate
            self._batch(loader, loader.batch_size, collate, partial=not loader.drop_last)
        elif collate is default_convert or collate is identity:
            pass
        elif "batch_size" in self.options:
            own = self.options.get("collate", Collate(default_collation_fn, self._names))
            self.options["collate"] = replace(own, after=collate)
            self._never_repeat()
        else:
            self._sample("sample", filters.map(collate), [])

    def _source(self, source: Any, rest: list[Any]) -> list[Any]:
        """Take the stages up to the one that makes samples; return those after it."""
        urls, is_shuffled = stages.urls_of(source)
        if is_shuffled:
            self.options["shuffle"] = "window"
        commands = [url for url in urls if scheme_of(url) == "pipe"]
        if commands:
            raise refusal(
                source,
                f"{commands[0]!r} is a command, and its output can't be read by byte ranges",
                "the URL that it reads, such as 's3://bucket/000.tar'",
            )
        settings = None
        for number, stage in enumerate(rest):
            if self._is_split(stage) or isinstance(stage, cache.StreamingOpen):
                pass
            elif isinstance(stage, cache.FileCache):
                size = stage.cleaner.cache_size if stage.cleaner is not None else 0
                bound: dict[str, Any] = {"max_bytes": int(size)} if 0 < size < 1 << 60 else {}
                settings = CacheSettings(str(stage.cache_dir), **bound)
            elif isinstance(stage, FilterFunction) and stage.f in _EXPANDERS:
                self._refuse_files(stage)
                self.dataset = tar(urls, cache=settings)
            elif stages.known_as(stage) is not None:
                if stages.kind_of(stage) != "shuffle":
                    raise refusal(
                        stage, "it changes the list of shards", "sw.tar(urls) with that list"
                    )
                self.options["shuffle"] = "window"
            elif (first := stages.first_sample(stage, urls)) is not None:
                self.dataset = tar(urls, cache=settings)
                stages.check_sample(stage, first, self.dataset)
            elif stages.is_reordered(stage, urls):
                self.options["shuffle"] = "window"
            self._note_handler(stage)
            if hasattr(self, "dataset"):
                return rest[number + 1 :]
        raise refusal(source, "no stage opens the shards", "wds.tarfile_to_samples() behind it")

    def _is_split(self, stage: Any) -> bool:
        return any(stage is split for split in (*_SPLITTERS, *self._splitters))

    @staticmethod
    def _refuse_files(stage: FilterFunction) -> None:
        for place, name in enumerate(("select_files", "rename_files"), 1):
            if argument(stage, place, name, None) is not None:
                raise refusal(
                    stage,
                    f"{name}= goes by names of files, and a dataset by fields",
                    "dataset.select('jpg', 'cls') for fields, .map(fn) to rename them",
                )

    # The stages that change samples.

    def _stage(self, stage: Any, behind: list[Any]) -> None:
        if self._is_split(stage):
            return
        kind = stages.kind_of(stage)
        self._note_handler(stage)
        if kind == "shuffle":
            self.options["shuffle"] = "window"
        elif kind == "unbatched":
            for name in ("batch_size", "remainder", "collate"):
                self.options.pop(name, None)
        elif kind == "batched":
            self._batch(
                stage,
                argument(stage, 0, "batchsize", 20),
                argument(stage, 1, "collation_fn", default_collation_fn),
                partial=argument(stage, 2, "partial", True),
            )
        elif kind != "nothing":
            if "batch_size" in self.options:
                raise refusal(
                    stage,
                    "it treats whole batches",
                    "it in front of .batched(), or a collation_fn, or what the training loop does",
                )
            if kind == "select":
                self._choose(stage)
            else:
                self._sample(kind, stage, behind)

    def _choose(self, stage: FilterFunction) -> None:
        """Leave samples out by a predicate of their content: now, and not while they are read."""
        mask = chosen(self._make_dataset(), stage, self._names, skips="on_error" in self.options)
        if not mask.all():
            self.dataset = self.dataset.subset(mask)

    def _make_dataset(self) -> Dataset:
        if not self._stages:
            return self.dataset
        run = RunStages(tuple(self._stages), self._tuple_at_first, self._names)
        return self.dataset.map(run)

    def _batch(self, stage: Any, size: int, collate: Any, *, partial: bool) -> None:
        if "batch_size" in self.options:
            raise refusal(
                stage, "it makes batches of batches", "one .batched(n) with the whole size"
            )
        self.options["batch_size"] = math.ceil(size)
        self.options["remainder"] = "pad" if partial else "drop"
        if collate is not default_collation_fn:
            self.options["collate"] = Collate(collate, self._names)
            self._never_repeat()

    def _never_repeat(self) -> None:
        """Leave the last batch short: results of a program's function can't mark repetitions."""
        if self.options["remainder"] == "pad":
            self.options["remainder"] = "uneven"

    def _sample(self, kind: str, stage: FilterFunction, behind: list[Any]) -> None:
        """Apply a stage that maps samples one by one, by the dataset's own method if it has one."""
        decoder = stages.decoder_of(kind, stage)
        if not self._stages:
            if decoder is not None and self._names is None and not self._decoded:
                is_last = not any(stages.is_function(later) for later in behind)
                found = list_decoders(decoder, self.dataset.fields, is_last=is_last)
                self.dataset = decode_optional(self.dataset, found)
                self._decoded.update(found)
                return
            if kind == "to_tuple" and self._select(stage):
                return
            if kind == "map_tuple" and self._decode_items(stage):
                return
            self._tuple_at_first = self._names
        if kind == "to_tuple":
            self._names = stages.tuple_names(stages.fields_of(stage))
        if self._names is not None and "__key__" in self._names:
            # A stage may change a key to another type, but the key of a sample must be a str.
            own = "key" if "key" not in self._names else str(self._names.index("__key__"))
            self._names = tuple(own if name == "__key__" else name for name in self._names)
        self._stages.append(stage)

    def _select(self, stage: FilterFunction) -> bool:
        """Turn `to_tuple` into a choice of fields, if each name means one field."""
        if self._names is not None or stage.kw.get("missing_is_error") is False:
            return False
        known = self.dataset.fields
        there = [[name for name in names if name in known] for names in stages.fields_of(stage)]
        names = [name for each in there for name in each]
        if any(len(each) != 1 for each in there) or len(set(names)) < len(names):
            return False
        self.dataset = self.dataset.select(*names)
        self._names = tuple(names)
        return True

    def _decode_items(self, stage: FilterFunction) -> bool:
        """Turn `map_tuple` into decoders, if its functions get bytes."""
        functions = dict(zip(self._names or (), stage.args, strict=False))
        wanted = {n: f for n, f in functions.items() if f is not None and f is not identity}
        if self._names is None or len(stage.args) > len(self._names):
            return False
        if self._decoded & wanted.keys() or "__key__" in wanted:
            return False
        if wanted:
            self.dataset = self.dataset.decode(**wanted)
            self._decoded.update(wanted)
        return True

    def _note_handler(self, stage: Any) -> None:
        if stages.skips_errors(stage):
            self.options["on_error"] = "skip"
