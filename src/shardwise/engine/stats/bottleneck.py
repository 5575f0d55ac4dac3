"""What limits a loader, in words: from its numbers to one line of advice.

A pure function. Reading, decoding and transforming is the work of the hands (threads or worker
processes); collating, unless the hands do it, and handing over are the caller's. Whichever of the
two is busier is the limit, and its largest stage gives it the name. Imports the hands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shardwise.engine.concurrency import Hands

__all__ = ["Verdict", "verdict"]

_LOADING = ("read", "decode", "transform")
_DOING = {
    "read": "reading",
    "decode": "decoding",
    "transform": "transforming",
    "collate": "collating",
    "hand over": "handing over",
}
# Below this share of its time the caller does not wait for the loader in earnest.
_NO_WAIT = 0.1
# Above this share of the time, a store that does not answer is the limit.
_OUT = 0.2
# Hands and caller that are all less busy than this are held up by neither's stages.
_IDLE = 0.3
# Above this share of its time on a core, loading does not wait; below that one, it hardly runs.
_ON_CORE, _CROWDED = 0.8, 0.5
# Requests a sample, from which on a store is asked for samples one by one.
_SINGLY = 0.5


class Verdict(NamedTuple):
    """What limits a loader.

    Attributes:
        bound_by: a stage ("read", "decode", "transform", "collate", "hand over"), or "trainer",
            "overhead" where no stage is busy, "nothing" where there is too little to tell.
        text: the same in one line, with the numbers and what would help.
    """

    bound_by: str
    text: str


def verdict(
    stats: Mapping[str, Any], *, hands: Hands, num_cores: int, pin_memory: bool = False
) -> Verdict:
    """Say what limits a loader.

    Args:
        stats: `batches`, `samples`, `bytes`, `requests`, `hits`, `misses`, `outage_s`, `wait_s`,
            `wall_s`, `cpu_s` and `seconds` (by stage, summed over the hands), as `loader.stats()`
            has them.
        hands: who made the batches.
        num_cores: cores that the hands may use.
        pin_memory: whether handing over copies batches into page-locked memory.
    """
    wall_s: float = stats["wall_s"]
    if stats["batches"] < 2 or wall_s <= 0:
        return Verdict("nothing", "too little to judge: less than two batches were handed out")
    seconds: Mapping[str, float] = {"hand over": 0.0, "collate": 0.0, **stats["seconds"]}
    waited = (stats["wait_s"] + seconds["hand over"]) / wall_s
    if waited < _NO_WAIT:
        return Verdict(
            "trainer",
            f"trainer-bound: the loader waited for the consumer {_percent(1 - waited)} of the "
            "time; it is fast enough",
        )
    if stats["outage_s"] > _OUT * wall_s:
        return Verdict(
            "read",
            f"store-bound: a store did not answer for {stats['outage_s']:.0f} s of "
            f"{wall_s:.0f} s; the log names it",
        )
    by_hands = {stage: seconds.get(stage, 0.0) for stage in _LOADING}
    by_caller = {"hand over": seconds["hand over"]}
    if hands.executor == "inline":
        by_hands |= {"collate": seconds["collate"]} | by_caller
        by_caller = {}
    else:
        (by_hands if hands.collate else by_caller)["collate"] = seconds["collate"]
    hands_busy = sum(by_hands.values()) / (wall_s * hands.count)
    caller_busy = sum(by_caller.values()) / wall_s
    if max(hands_busy, caller_busy) < _IDLE:
        return Verdict(
            "overhead",
            f"bound by no one stage: {hands} busy {_percent(hands_busy)} of the time; a larger "
            "batch_size or prefetch_factor would help, or fewer hands where samples are tiny",
        )
    if caller_busy > hands_busy:
        stage = max(by_caller, key=by_caller.__getitem__)
        who = f"{_DOING[stage]} took {_percent(by_caller[stage] / wall_s)} of the caller's time"
    else:
        stage = max(by_hands, key=by_hands.__getitem__)
        share = by_hands[stage] / (sum(by_hands.values()) or 1.0)
        part = f"{_percent(share)} of it {_DOING[stage]}"
        who = f"{hands} busy {_percent(hands_busy)} of the time, {part}"
    told = _advice(stage, stats, hands=hands, num_cores=num_cores, pin_memory=pin_memory)
    return Verdict(stage, f"{stage.replace(' ', '-')}-bound: {who}; {told}")


def _advice(
    stage: str, stats: Mapping[str, Any], *, hands: Hands, num_cores: int, pin_memory: bool
) -> str:
    """What would help against a stage that limits."""
    more = "num_workers" if hands.num_workers else "num_threads"
    if stage == "hand over" and not pin_memory:
        advice = (
            "making tensors of arrays copies only what torch can't share (read-only arrays, lists "
            "of tensors): return arrays of your own, or select() fewer fields"
        )
    elif stage == "hand over":
        advice = "pin_memory copies each batch here: leave it out where that does not pay"
    elif hands.executor == "inline":
        advice = "nothing is made ahead: leave out executor='inline' or num_threads=0"
    elif stage == "read" and _cpu_share(stats) > _ON_CORE:
        advice = (
            "they hardly wait for storage: fewer fields (select), larger samples or more cores "
            "would help"
        )
    elif stage == "read" and _is_singly(stats):
        advice = (
            f"{stats['requests']:,} requests brought {stats['samples']:,} samples: with cache= (a "
            "directory on a local disk) shuffled shards come in blocks, and once for all epochs"
        )
    elif stage == "read":
        advice = (
            f"{stats['bytes'] / stats['wall_s'] / 1e6:.1f} MB/s came in; faster storage or fewer "
            f"fields (select) would help, or more {more} where storage is far away"
        )
    elif stage == "transform" and not hands.num_workers:
        advice = f"num_workers={max(2, num_cores)} would help (the transform holds the GIL)"
    elif stage == "collate" and not hands.collate:
        advice = (
            "a collate= of your own is run by worker processes with num_workers; without one, "
            "fields that are decoded to a fixed shape need no collating"
        )
    elif hands.count < num_cores:
        advice = f"more {more} would help: there are {num_cores} cores"
    else:
        advice = f"more cores would help{_crowd(stats)}"
    return advice


def _is_singly(stats: Mapping[str, Any]) -> bool:
    """Whether a store is asked for samples one by one, and no cache is in use."""
    is_cached = stats["hits"] + stats["misses"] > 0
    return not is_cached and stats["requests"] > _SINGLY * stats["samples"] > 0


def _crowd(stats: Mapping[str, Any]) -> str:
    """Whether those who load get the cores that they want."""
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
