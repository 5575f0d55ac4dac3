"""The types of what a loader returns, for type checkers and editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

# Columns by field; with `as_tuple`, batches are tuples, so what iterating gives is Any, too.
Batch = dict[Any, Any]

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers have it, and Python 3.12 no `default=`

    # The return type of the loader's `collate`.
    B = TypeVar("B", default=Batch)
else:
    from typing import TypeVar

    B = TypeVar("B")

Stats = TypedDict("Stats", {  # noqa: UP013 - a class has one line per key
    "samples": int, "batches": int, "skipped": int, "replaced": int, "dropped": int, "padded": int,
    "seconds": dict[str, float], "wall_s": float, "wait_s": float, "waiting_s": float,
    "cpu_s": float, "outage_s": float, "wait_ms": dict[str, float], "rate": float,
    "queue_depth": float, "bound_by": str, "verdict": str,
    "bytes": int, "bytes_fetched": int, "bytes_from": dict[str, int], "missing": dict[str, int],
    "requests": int, "retries": int, "hedges": int, "waits": int, "hits": int, "misses": int,
    "evictions": int, "damaged": int, "degraded": int, "removed": int,
    "decoded_on_device": int, "decoded_on_cpu": int, "slowest_shards": list[dict[str, Any]],
    "executor": str, "executor_reason": str, "next_executor": str | None,
    "num_workers": int, "num_threads": int, "totals": dict[str, Any],
    "sources": NotRequired[dict[str, dict[str, float]]], "service": NotRequired[dict[str, Any]],
})  # fmt: skip
Stats.__doc__ = "Counts and seconds of `DataLoader.stats`: docs/performance.md has the keys."
Certificate = TypedDict("Certificate", {
    "epoch": int, "count": int, "word": str, "expected": str, "ok": bool, "from": int, "to": int,
    "num_samples": int, "skipped": int, "replaced": int, "padded": int, "dropped": int,
    "left_out": int, "removed": int, "given": int, "ranks": int, "verdict": str,
})  # fmt: skip
Certificate.__doc__ = "The proof of `loader.certificate()`: docs/certificate.md has its keys."
