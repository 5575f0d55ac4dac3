"""Several sets of shards, named in a YAML file or a dict, with a number of each for an epoch.

WebDataset calls this obsolete and refuses it; here it works, with a DeprecationWarning.
"""

from __future__ import annotations

import importlib
import os
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.compat.webdataset.pytorch import IterableDataset
from shardwise.compat.webdataset.readers import generator
from shardwise.storage.braces import expand_braces

_KEYS = {"prefix", "datasets", "buckets"}
_SET_KEYS = {"buckets", "name", "shards", "resample", "choose"}


def expand(s: str) -> str:
    """Expand `~` and environment variables."""
    return os.path.expanduser(os.path.expandvars(s))  # noqa: PTH111 - URLs, not only paths


@dataclass
class MSSource:
    """One set: `perepoch` shards of it without replacement, or `resample` with; -1 for all."""

    name: str = ""
    perepoch: int = -1
    resample: int = -1
    urls: list[str] = field(default_factory=list)


class MultiShardSample(IterableDataset[Any]):
    """Shards of several sets, in a new random order each pass, alike on all ranks."""

    def __init__(self, fname: Any) -> None:
        super().__init__()
        warnings.warn(
            "MultiShardSample is deprecated: mix datasets with RandomMix, or give one list of "
            "shards",
            DeprecationWarning,
            stacklevel=2,
        )
        self.epoch = -1
        self.rng: random.Random | None = None
        self.sources: list[MSSource] = []
        self.parse_spec(fname)

    def parse_spec(self, fname: Any) -> None:
        """Read the sets."""
        if isinstance(fname, dict):
            spec = fname
        else:
            spec = importlib.import_module("yaml").safe_load(Path(fname).read_text())
        _refuse_unknown(spec, _KEYS)
        prefix = expand(spec.get("prefix", ""))
        for one in spec["datasets"]:
            _refuse_unknown(one, _SET_KEYS)
            buckets = _listed(one.get("buckets", spec.get("buckets", []))) or [""]
            if len(buckets) != 1:
                raise ValueError(f"buckets={buckets}: one for each set of shards")
            bucket = expand(buckets[0])
            urls = [
                prefix + os.path.join(bucket, url)  # noqa: PTH118 - URLs
                for shard in _listed(one["shards"])
                for url in expand_braces(expand(shard))
            ]
            choose, resample = one.get("choose", -1), one.get("resample", -1)
            if choose > len(urls) or (choose > 0 and resample > 0):
                raise ValueError(
                    f"choose={choose}, resample={resample} of {len(urls)} shards: give one of the "
                    "two, and choose no more than there are"
                )
            self.sources.append(MSSource(one.get("name", "@" + bucket), choose, resample, urls))

    def set_epoch(self, seed: int) -> None:
        """Draw from this seed on."""
        self.rng = random.Random(seed)  # noqa: S311

    def get_shards_for_epoch(self) -> list[str]:
        """The shards of one pass."""
        rng = generator() if self.rng is None else self.rng
        result: list[str] = []
        for source in self.sources:
            if source.resample > 0:
                result += rng.choices(source.urls, k=source.resample)
            elif source.perepoch > 0:
                result += rng.sample(source.urls, source.perepoch)
            else:
                result += source.urls
        rng.shuffle(result)
        return result

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"url": url} for url in self.get_shards_for_epoch())


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _refuse_unknown(spec: dict[str, Any], known: set[str]) -> None:
    unknown = set(spec) - known
    if unknown:
        raise ValueError(f"unknown entries {sorted(unknown)}: known are {sorted(known)}")
