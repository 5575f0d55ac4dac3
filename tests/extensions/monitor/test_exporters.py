"""Counts of a loader in Prometheus and OpenTelemetry."""

from __future__ import annotations

import gc

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import shardwise as sw


def loader(rank=1):
    return sw.DataLoader(
        sw.wrap(range(40)), batch_size=5, rank=rank, world_size=2, output="numpy", num_threads=0
    )


def test_prometheus_scrapes_the_sums_by_rank():
    registry = prometheus_client.CollectorRegistry()
    with loader() as made:
        sw.export_prometheus(made, registry)
        list(made)
        # A reset by the program takes nothing away.
        made.stats(reset=True)
        text = prometheus_client.generate_latest(registry).decode()
        assert 'shardwise_samples_total{rank="1"} 20.0' in text
        assert registry.get_sample_value("shardwise_batches_total", {"rank": "1"}) == 4
        assert registry.get_sample_value("shardwise_wait_seconds_total", {"rank": "1"}) > 0
        list(made)
        assert registry.get_sample_value("shardwise_wait_p99_ms", {"rank": "1"}) > 0
        assert registry.get_sample_value("shardwise_samples_total", {"rank": "1"}) == 40


def test_a_loader_that_is_gone_is_exported_no_more():
    registry = prometheus_client.CollectorRegistry()
    made = loader()
    sw.export_prometheus(made, registry)
    made.close()
    del made
    gc.collect()
    assert 'rank="1"' not in prometheus_client.generate_latest(registry).decode()


def test_opentelemetry_collects_sums_and_percentiles():
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with loader() as made:
        sw.export_opentelemetry(made, provider.get_meter("test"))
        list(made)
        [resource] = reader.get_metrics_data().resource_metrics
        [scope] = resource.scope_metrics
        points = {metric.name: metric.data.data_points[0] for metric in scope.metrics}
    assert points["shardwise.samples"].value == 20
    assert points["shardwise.batches"].value == 4
    assert points["shardwise.wait.p50"].value <= points["shardwise.wait.p99"].value
    assert dict(points["shardwise.wait_s"].attributes) == {"rank": 1}
    provider.shutdown()


@pytest.mark.parametrize(
    ("module", "name"),
    [("prometheus_client", "export_prometheus"), ("opentelemetry", "export_opentelemetry")],
)
def test_a_missing_package_names_its_extra(monkeypatch, module, name):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with loader() as made, pytest.raises(sw.MissingExtraError, match=r"shardwise\["):
        getattr(sw, name)(made)
