"""The sources of shards."""

from __future__ import annotations

import glob
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass
from itertools import islice
from typing import Any

from shardwise.base.errors import MissingShardError
from shardwise.compat.environment import is_on, variable
from shardwise.compat.webdataset.mix import MSSource, MultiShardSample
from shardwise.compat.webdataset.pytorch import IterableDataset
from shardwise.compat.webdataset.readers import (
    CURRENT_PASS,
    as_seed,
    find_reader,
    generators,
    non_empty,
    single_node_only,
    split_by_node,
    split_by_worker,
)
from shardwise.compat.webdataset.utils import pipelinefilter
from shardwise.plan.permute import mix
from shardwise.storage import expand
from shardwise.storage.url_patterns import expand_braces
from shardwise.storage.urls import scheme_of
from shardwise.storage.write import is_running as check_pid_is_running

# Paths are text here: names are cut and glued.
# ruff: noqa: PTH104, PTH108, PTH112, PTH118, PTH207


def without_last_extension(fname: str) -> str:
    return re.sub(r"\.[^.]*$", "", fname)


def get_pid_from_filename(fname: str) -> int | None:
    found = re.search(r"\._(\d+)_$", fname)
    return int(found[1]) if found else None


@dataclass(eq=False, repr=False)
class DirectoryShardList(IterableDataset[Any]):
    """The shards of a directory, again and again, with those that come while it is read.

    A shard is renamed while it is in use, with its reader's process id, so that several readers
    share the directory.
    """

    path: str
    pattern: str = "*.{tar,tgz,tar.tgz}"
    poll: float | None = 1
    timeout: float = 1e12
    mode: str | None = "resample"
    select: str = "random"
    fate: Any = None

    def __post_init__(self) -> None:
        if not self.path.endswith("/") or not os.path.isdir(self.path):
            raise ValueError(f"path={self.path!r}: must be a directory, with a slash behind it")
        if self.select not in ("random", "oldest"):
            raise ValueError(f"select={self.select!r}: must be 'random' or 'oldest'")
        if self.mode not in ("unlink", "keep", "resample", None):
            raise ValueError(f"mode={self.mode!r}: must be 'unlink', 'keep' or 'resample'")

    def recycle(self, activename: str) -> None:
        if self.mode == "unlink":
            os.unlink(activename)
        else:
            ending = "._done_" if self.mode == "keep" else ""
            os.rename(activename, without_last_extension(activename) + ending)

    def cleanup_files_without_processes(self) -> None:
        for name in glob.glob(os.path.join(self.path, "*._*_")):
            pid = get_pid_from_filename(name)
            if pid is not None and not check_pid_is_running(pid):
                self.recycle(name)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start = time.monotonic()
        while time.monotonic() - start < self.timeout:
            patterns = expand_braces(self.path + self.pattern)
            found = sorted(name for pattern in patterns for name in glob.glob(pattern))
            active = self._take(found) if found else None
            if active is None:
                if self.poll is None and not found:
                    return
                time.sleep(self.poll or 0)
                continue
            yield {"url": active}
            self.recycle(active)
            self.cleanup_files_without_processes()

    def _take(self, found: list[str]) -> str | None:
        """Rename one of the shards to show that it is in use; None if another reader has it."""
        try:
            if self.select == "oldest":
                name = min(found, key=lambda path: os.stat(path).st_mtime_ns)  # noqa: PTH116
            else:
                # A reader's choice depends on the other readers anyway.
                name = random.choice(found)  # noqa: S311
            active = f"{name}._{os.getpid()}_"
            os.rename(name, active)
        except FileNotFoundError:
            return None
        return active


# Shards of a pass through an endless list. Between passes buffers run empty, so it should be many;
# a reader that continues inside a pass reads it again up to there, so it should be few.
PASS_SHARDS = 16
_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")


def envsubst(s: str, *, in_shell: bool = False) -> str:
    """Replace `${name}` with the value of `WDS_<name>`; with `in_shell` only if it is set."""

    def value_of(m: re.Match[str]) -> str:
        value = variable(f"WDS_{m[1]}", m[0] if in_shell else None)
        if value is None:
            raise ValueError(
                f"{m[0]} in a URL stands for the environment variable WDS_{m[1]}, which is not "
                "set: set it, or write the value"
            )
        return value

    return re.sub(r"\$\{(\w+)\}", value_of, s)


def _expand(text: str) -> list[str]:
    is_pipe = text.startswith("pipe:")
    for _ in range(10):
        # A value may name further variables.
        if "${" not in text:
            break
        text = envsubst(text, in_shell=is_pipe)
    if is_pipe and text.count("{") != text.count("}"):
        return [text]
    if scheme_of(text):
        return expand_braces(text)
    try:
        return expand([text], suffixes=_SUFFIXES)
    except MissingShardError:
        # A program's own notation, as 4M's for shards that are read together: `[rgb,depth]/0.tar`.
        if "[" not in text or "*" in text or "?" in text:
            raise
        return expand_braces(text)


def expand_source(source: Any, max_urls: int = int(1e9)) -> list[str]:
    """Expand a text, a path, or the first `max_urls` of a list of them to shards.

    `::` separates, `${X}` is the environment variable `WDS_X`, `{000..099}` is a range; globs and
    directories stand for the local shards in them. In a `pipe:`, `${X}` without `WDS_X` is left to
    the shell.
    """
    if isinstance(source, str | os.PathLike):
        return [url for part in os.fspath(source).split("::") for url in _expand(part)]
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise TypeError(f"shards must be a text, a path or a list of these, not {source!r}")
    urls: list[str] = []
    for item in islice(source, max_urls):
        if not isinstance(item, str | os.PathLike):
            raise TypeError(f"each shard must be a text or a path, not {item!r}")
        urls += _expand(os.fspath(item))
    return urls


expand_urls = expand_source


@dataclass(eq=False, repr=False)
class SimpleShardList(IterableDataset[Any]):
    """A list of shards (see `expand_urls`), in its order or shuffled.

    With a number as `seed` it is one shuffled order, which programs change by assigning `seed`;
    with True another one in each pass, the same on all ranks.
    """

    urls: Any
    seed: Any = None

    def __post_init__(self) -> None:
        self.urls = expand_source(self.urls)
        if not self.urls:
            raise ValueError("no shards: the list is empty")

    def __len__(self) -> int:
        return len(self.urls)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        urls = list(self.urls)
        if self.seed is True:
            generators()[0].shuffle(urls)
        elif self.seed is not None:
            random.Random(self.seed).shuffle(urls)  # noqa: S311
        return ({"url": url} for url in urls)


def resampled_(src: Iterable[Any], n: int = sys.maxsize) -> Iterator[Any]:
    _, rng = generators()
    items = list(src)
    if not items:
        return iter(())
    return (rng.choice(items) for _ in range(n))


resampled = pipelinefilter(resampled_)


@dataclass(eq=False, repr=False)
class ResampledShards(IterableDataset[Any]):
    """Shards without end: the whole list in random order, again and again in other orders.

    No shard comes a second time before all have come. Readers with the same seed share the list,
    so that together they read all of it; `deterministic` or a seed makes that so for all ranks.

    Args:
        nshards: shards that each reader gets.
        seed: a seed; 0 stands for none, unless `deterministic` is set.
        worker_seed: a function that gives each reader a number; readers then do not share. Passed
            as `seed` and followed by `deterministic`, it is read as WebDataset 0.2.86 does.
    """

    urls: Any
    nshards: int = sys.maxsize
    seed: Any = 0
    worker_seed: Any = None
    deterministic: bool = False
    max_urls: InitVar[int] = int(1e6)
    empty_check: InitVar[bool] = True

    def __post_init__(self, max_urls: int, empty_check: bool) -> None:
        if callable(self.seed):
            self.seed, self.worker_seed, self.deterministic = 0, self.seed, bool(self.worker_seed)
        self.urls = expand_source(self.urls, max_urls)
        if empty_check and not self.urls:
            raise ValueError("no shards: the list is empty (empty_check=False permits that)")
        self.epoch = -1
        # Drawn here, so that workers share it.
        is_known = self.deterministic or self.seed != 0
        self.entropy = 0 if is_known else random.SystemRandom().getrandbits(62)

    @property
    def in_passes(self) -> bool:
        """Whether a pipeline takes these shards pass by pass, so that its buffers run empty."""
        return self.nshards == sys.maxsize

    def __iter__(self) -> Iterator[dict[str, Any]]:
        current = CURRENT_PASS.get()
        self.epoch = self.epoch + 1 if current is None else max(self.epoch + 1, current.number)
        reader = find_reader() if current is None else current.reader
        words, turns = [as_seed(self.seed), self.entropy], range(self.nshards)
        num_readers, number = reader.num_workers, reader.worker
        if self.worker_seed is not None:
            words.append(as_seed(self.worker_seed()))
            num_readers, number = 1, 0
        elif not self.entropy:
            num_readers *= reader.world_size
            number += reader.rank * reader.num_workers
        if current is not None and self.in_passes:
            turns = range(current.number * PASS_SHARDS, (current.number + 1) * PASS_SHARDS)
        else:
            words.append(self.epoch)
        if is_on("WDS_SHOW_SEED"):
            sys.stderr.write(f"# ResampledShards seed {mix(*words)}\n")
        return self._draw(words, turns, number, num_readers)

    def _draw(
        self, words: list[int], turns: range, reader: int, num_readers: int
    ) -> Iterator[dict[str, Any]]:
        lap, order = -1, list[str]()
        for turn in turns if self.urls else ():
            place = turn * num_readers + reader
            if place // len(self.urls) != lap:
                lap = place // len(self.urls)
                order = list(self.urls)
                random.Random(mix(*words, lap)).shuffle(order)  # noqa: S311
            yield {"url": order[place % len(order)]}


ResampledShardList = ResampledShards


def shardspec(spec: str) -> IterableDataset[Any]:
    if spec.endswith((".yaml", ".yml")):
        return MultiShardSample(spec)
    return SimpleShardList(spec)
