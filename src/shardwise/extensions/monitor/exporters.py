"""A loader's counts for Prometheus and OpenTelemetry, which read them from their own threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from shardwise.base.arguments import suggest_names
from shardwise.base.errors import imports_of

# Keys of `stats()["totals"]`; the others are gauges of the time since the last reading.
_SUMS = (
    *("samples", "batches", "wait_s", "bytes", "bytes_fetched", "requests", "retries"),
    *("hits", "misses", "skipped", "replaced"),
)
_GAUGES = ("p50", "p95", "p99")


def _reader(loader: Any) -> Callable[[str], Iterator[tuple[Any, float]]]:
    """Returns a function of a name that yields the rank and the value, while the loader lives."""
    alive, last = weakref.ref(loader), dict[str, Any]()

    def read(name: str) -> Iterator[tuple[Any, float]]:
        loader = alive()
        if loader is not None:
            last[name] = stats = loader.stats(since=last.get(name, {}))
            yield loader.rank, stats["totals"][name] if name in _SUMS else stats["wait_ms"][name]

    return read


@suggest_names
def export_prometheus(loader: Any, registry: Any = None) -> None:
    """Add the counts of a loader to a registry of `prometheus_client`, by default the global one.

    Counters `shardwise_*_total`, and gauges `shardwise_wait_p50_ms`, p95 and p99 of the waits since
    the last scrape, have a label `rank`. Serve them as `prometheus_client` does.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """
    with imports_of("prometheus", "prometheus_client is not here"):
        from prometheus_client import REGISTRY
        from prometheus_client import metrics_core as core
    read = _reader(loader)

    class Collector:
        def describe(self) -> list[Any]:
            return []

        def collect(self) -> Iterator[Any]:
            for key in (*_SUMS, *_GAUGES):
                kind = core.CounterMetricFamily if key in _SUMS else core.GaugeMetricFamily
                name = f"wait_{key}_ms" if key in _GAUGES else key.replace("wait_s", "wait_seconds")
                family = kind(f"shardwise_{name}", f"{key} of loader.stats()", labels=["rank"])
                for rank, value in read(key):
                    family.add_metric([str(rank)], value)
                yield family

    (REGISTRY if registry is None else registry).register(Collector())


@suggest_names
def export_opentelemetry(loader: Any, meter: Any = None) -> None:
    """Add the counts of a loader to a meter of OpenTelemetry, by default the global provider's.

    Counters `shardwise.*`, and gauges `shardwise.wait.p50`, p95 and p99 of the waits since the last
    collection, in milliseconds, have an attribute `rank`.

    Raises:
        MissingExtraError: the API of OpenTelemetry is not installed.
    """
    with imports_of("opentelemetry", "opentelemetry-api is not here"):
        from opentelemetry import metrics
    meter, read = metrics.get_meter("shardwise") if meter is None else meter, _reader(loader)

    def observe(key: str, _options: Any) -> list[Any]:
        return [metrics.Observation(value, {"rank": rank}) for rank, value in read(key)]

    for key in _SUMS:
        meter.create_observable_counter(f"shardwise.{key}", [partial(observe, key)])
    for key in _GAUGES:
        meter.create_observable_gauge(f"shardwise.wait.{key}", [partial(observe, key)], "ms")
