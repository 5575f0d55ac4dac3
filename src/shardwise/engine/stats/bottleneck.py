"""Bottleneck analysis: from a loader's numbers to one line of advice.

A pure function. Threads or worker processes read, decode and transform; the caller's thread hands
over, and one thread at a time collates unless the workers do. The busiest of them is the
bottleneck, and is named after its largest stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from shardwise.engine.request import Concurrency

_LOADING = ("read", "demux", "decode", "convert", "transform")
_DOING = {
    "read": "reading", "demux": "demuxing", "decode": "decoding", "convert": "converting",
    "transform": "transforming", "collate": "collating", "hand over": "handing over",
}  # fmt: skip
# If the caller waits for less than 10 % of the time, the trainer is the bottleneck.
_MIN_WAIT = 0.1
# If a store did not answer for more than 20 % of the time, it is the bottleneck.
_MAX_OUTAGE = 0.2
# If workers and caller are both busy for less than 30 % of the time, no stage is the bottleneck.
_MIN_BUSY = 0.3
# Threads of a loader that decode images on a device.
_DEVICE_THREADS = 2
# A wait share near 1 shows that servers are too few, not how many: at most 4 times as many.
_MAX_WANTED = 4
# CPU share of the loading time: above 80 % reads do not block, below 50 % workers wait for a core.
_ON_CORE, _CROWDED = 0.8, 0.5
# Reads are not being coalesced if they take one request for two samples, or more.
_MIN_REQUESTS_A_SAMPLE = 0.5


class Bottleneck(NamedTuple):
    """The bottleneck of a loader.

    Attributes:
        bound_by: a stage ("read", "decode", "transform", "collate", "hand over"; of media also
            "demux" and "convert"), or "trainer", "overhead" where no stage is busy, "nothing"
            where there is too little to tell.
        text: the same in one line, with the numbers and what would help.
    """

    bound_by: str
    text: str


def find_bottleneck(
    stats: Mapping[str, Any], *, concurrency: Concurrency, num_cores: int, pin_memory: bool = False
) -> Bottleneck:
    """Find what limits a loader.

    Args:
        stats: `batches`, `samples`, `bytes`, `requests`, `hits`, `misses`, `outage_s`, `wait_s`,
            `wall_s`, `cpu_s` and `seconds` (by stage, summed over threads), as `loader.stats()`
            has them.
        concurrency: the threads and processes that built the batches.
        num_cores: cores that they may use.
        pin_memory: whether handing over copies batches into page-locked memory.
    """
    wall_s: float = stats["wall_s"]
    if stats["batches"] < 2 or wall_s <= 0:
        return Bottleneck("nothing", "too little to judge: less than two batches were handed out")
    seconds: Mapping[str, float] = {"hand over": 0.0, "collate": 0.0, **stats["seconds"]}
    waited = (stats["wait_s"] + seconds["hand over"]) / wall_s
    if waited < _MIN_WAIT:
        return Bottleneck(
            "trainer",
            f"trainer-bound: the loader waited for the consumer {_percent(1 - waited)} of the "
            "time; it is fast enough",
        )
    if stats["outage_s"] > _MAX_OUTAGE * wall_s:
        return Bottleneck(
            "read",
            f"store-bound: a store did not answer for {stats['outage_s']:.0f} s of "
            f"{wall_s:.0f} s; the log names it",
        )
    by_loaders = {stage: seconds.get(stage, 0.0) for stage in _LOADING}
    by_caller = {"hand over": seconds["hand over"]}
    if concurrency.executor == "inline":
        by_loaders |= {"collate": seconds["collate"]} | by_caller
        by_caller = {}
    else:
        (by_loaders if concurrency.collate else by_caller)["collate"] = seconds["collate"]
    loaders_busy = sum(by_loaders.values()) / (wall_s * concurrency.count)
    caller_busy = max(by_caller.values(), default=0.0) / wall_s
    device_busy = seconds.get("device decode", 0.0) / (wall_s * _DEVICE_THREADS)
    if device_busy > max(loaders_busy, caller_busy, _MIN_BUSY):
        return Bottleneck(
            "device decode",
            f"device-bound: its {_DEVICE_THREADS} threads busy {_percent(device_busy)} of the time "
            "decoding images on the device; decode_on='auto' or 'cpu' would help if cores idle",
        )
    if max(loaders_busy, caller_busy) < _MIN_BUSY:
        return Bottleneck(
            "overhead",
            f"bound by no one stage: {concurrency} busy {_percent(loaders_busy)} of the time; a "
            "larger batch_size or prefetch_factor would help, or fewer threads where samples are "
            "tiny",
        )
    if caller_busy > loaders_busy:
        stage = max(by_caller, key=by_caller.__getitem__)
        who = f"{_DOING[stage]} took {_percent(by_caller[stage] / wall_s)} of one thread's time"
    else:
        stage = max(by_loaders, key=by_loaders.__getitem__)
        share = by_loaders[stage] / (sum(by_loaders.values()) or 1.0)
        part = f"{_percent(share)} of it {_DOING[stage]}"
        who = f"{concurrency} busy {_percent(loaders_busy)} of the time, {part}"
    advice = _advice(
        stage, stats, concurrency=concurrency, num_cores=num_cores, pin_memory=pin_memory
    )
    return Bottleneck(stage, f"{stage.replace(' ', '-')}-bound: {who}; {advice}")


def wanted_servers(stats: Mapping[str, Any], num_servers: int) -> int:
    """The batch servers needed to keep up with the trainer, at most 4 times as many as there are.

    While it waits a share w of the time, they make in all of it what it could use in 1 - w of it:
    num_servers / (1 - w) would do. Where no stage of theirs is the bottleneck, more would not help.

    Args:
        stats: `wait_s`, `wall_s` and `bound_by`, as `loader.stats()` has them.
        num_servers: how many made the batches.
    """
    if stats["bound_by"] not in (*_LOADING, "collate"):
        return num_servers
    wall_s: float = stats["wall_s"]
    used_s: float = max(wall_s - stats["wait_s"], wall_s / _MAX_WANTED)
    # Not by the share, whose rounding would ask for one more.
    needed: float = num_servers * wall_s / used_s
    return math.ceil(needed)


def _advice(
    stage: str,
    stats: Mapping[str, Any],
    *,
    concurrency: Concurrency,
    num_cores: int,
    pin_memory: bool,
) -> str:
    """The advice against a stage that limits."""
    more = "num_workers" if concurrency.num_workers else "num_threads"
    if stage == "hand over" and not pin_memory:
        advice = (
            "making tensors of arrays copies only what torch can't share (read-only arrays, lists "
            "of tensors): return arrays of your own, or select() fewer fields"
        )
    elif stage == "hand over":
        advice = "inline, pin_memory copies each batch here: leave it out, or use threads"
    elif concurrency.executor == "service":
        waited = stats["wait_s"] / stats["wall_s"]
        needed = wanted_servers({**stats, "bound_by": stage}, concurrency.num_threads)
        advice = f"the trainer waited {_percent(waited)} of it: {needed} servers would keep up"
    elif concurrency.executor == "inline":
        advice = "nothing is made ahead: leave out executor='inline' or num_threads=0"
    elif stage == "read" and not stats["bytes"] and not concurrency.num_workers:
        # A dataset of the user's is read by its own functions; all others count bytes.
        advice = f"num_workers={max(2, num_cores)} would help where these functions hold the GIL"
    elif stage == "read" and _cpu_share(stats) > _ON_CORE:
        advice = (
            "they hardly wait for storage: fewer fields (select), larger samples or more cores "
            "would help"
        )
    elif stage == "read" and _is_not_coalesced(stats):
        advice = (
            f"{stats['requests']:,} requests brought {stats['samples']:,} samples: with cache= (a "
            "directory on a local disk) shuffled shards come in blocks, and once for all epochs"
        )
    elif stage == "read":
        advice = (
            f"{stats['bytes'] / stats['wall_s'] / 1e6:.1f} MB/s came in; faster storage or fewer "
            f"fields (select) would help, or more {more} where storage is far away"
        )
    elif stage == "transform" and not concurrency.num_workers:
        advice = f"num_workers={max(2, num_cores)} would help (the transform holds the GIL)"
    elif stage == "collate" and not concurrency.collate:
        advice = (
            "a collate= of your own is run by worker processes with num_workers; without one, "
            "fields that are decoded to a fixed shape need no collating"
        )
    elif concurrency.count < num_cores:
        advice = f"more {more} would help: there are {num_cores} cores"
    else:
        advice = f"more cores would help{_core_shortage(stats)}"
    return advice


def _is_not_coalesced(stats: Mapping[str, Any]) -> bool:
    """Whether samples are requested from a store one by one, and no cache is in use."""
    is_cached = stats["hits"] + stats["misses"] > 0
    return not is_cached and stats["requests"] > _MIN_REQUESTS_A_SAMPLE * stats["samples"] > 0


def _core_shortage(stats: Mapping[str, Any]) -> str:
    """That the workers wait for a core, if they do."""
    share = _cpu_share(stats)
    if share > _CROWDED:
        return ""
    return f" (they had one only {_percent(share)} of that time: other programs, or the GIL)"


def _cpu_share(stats: Mapping[str, Any]) -> float:
    """The share of the seconds of loading that were spent on a core."""
    busy: float = sum(stats["seconds"].get(stage, 0.0) for stage in _LOADING)
    return float(stats["cpu_s"]) / busy if busy else 1.0


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.0f} %"
