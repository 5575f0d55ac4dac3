"""`shardwise verify` of what is no tar: each sample is read, as training would read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.sources.manifest import Shard
from shardwise.sources.protocol import Source
from shardwise.sources.tar.check.problems import Problem, problem_of

__all__ = ["SampleReport", "verify_files", "verify_samples"]

# A read takes 32 MiB, by the mean size of a sample, and 4,096 samples at most.
_READ_BYTES, _READ_SAMPLES = 32 << 20, 4096


@dataclass
class SampleReport:
    """What was read.

    Attributes:
        num_shards: files.
        num_samples: that were read without a problem.
        num_bytes: of these samples.
        problems: the first one of each shard that has any.
    """

    num_shards: int
    num_samples: int = 0
    num_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


def verify_samples(source: Source, progress: Callable[[float], None]) -> SampleReport:
    """Read all samples of all shards; the rest of a shard is skipped after its first problem.

    Args:
        source: what is read, with its own checks of sizes and sums.
        progress: is told the samples that are done.

    Raises:
        DataError: what lists the shards is damaged.
        StorageError: it could not be read.
    """
    shards = source.manifest.shards
    report = SampleReport(len(shards))
    begin = 0
    for shard in shards:
        end = begin + shard.num_samples
        try:
            for ids in _parts(shard, begin, end):
                report.num_bytes += source.read(ids).num_bytes
                report.num_samples += len(ids)
                progress(int(ids[-1]) + 1)
        except ShardwiseError as error:
            report.problems.append(problem_of(error, shard.url))
        begin = end
        progress(end)
    return report


def verify_files(sources: Mapping[str, Source], progress: Callable[[float], None]) -> SampleReport:
    """Read all samples of files that are opened one by one, so that each is judged by itself.

    Args:
        sources: by the file's URL.
        progress: is told the files that are done.
    """
    report = SampleReport(len(sources))
    for done, (url, source) in enumerate(sources.items(), 1):
        try:
            part = verify_samples(source, lambda _done: None)
        except ShardwiseError as error:
            part = SampleReport(1, problems=[problem_of(error, url)])
        report.num_samples += part.num_samples
        report.num_bytes += part.num_bytes
        report.problems += part.problems
        progress(done)
    return report


def _parts(shard: Shard, begin: int, end: int) -> Iterator[np.ndarray]:
    mean = max(shard.num_bytes // max(shard.num_samples, 1), 1)
    step = min(max(_READ_BYTES // mean, 1), _READ_SAMPLES)
    for start in range(begin, end, step):
        yield np.arange(start, min(start + step, end))
