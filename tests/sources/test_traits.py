"""What a source says of itself, and what follows from it."""

import numpy as np

import shardwise as sw
from shardwise.plan import WindowShape
from shardwise.sources import SourceTraits
from shardwise.sources.protocol import traits_of, value_fields_of
from tests.support.memory_source import MemorySource, numbered_samples


def source_of(**traits):
    source = MemorySource(numbered_samples(4))
    source.traits = SourceTraits(**traits)
    return source


def test_a_source_that_says_nothing_has_no_traits():
    source = MemorySource(numbered_samples(4))
    assert traits_of(source) == SourceTraits()
    assert set(value_fields_of(source)) == set()


def test_all_fields_of_a_source_of_objects_are_values():
    source = source_of(holds_objects=True)
    assert set(value_fields_of(source)) == set(source.fields)


def test_the_cost_of_loading_follows_from_traits_and_decoders():
    data = sw.Dataset(
        source_of(
            value_fields=("label",),
            layouts={"label": ((), np.dtype(np.int64))},
            random_reads_are_requests=True,
            read_is_one_request=True,
            counts_waits=True,
            window_shape=WindowShape(lanes=2, window=8),
        )
    )
    assert data.cost.row_bytes is not None
    assert data.cost.one_thread_suffices
    assert data.cost.random_reads_are_requests
    assert data.cost.batch_is_one_request
    assert not data.cost.runs_python
    assert data.window_shape == WindowShape(lanes=2, window=8)
    mapped = data.map(dict)
    assert mapped.cost.row_bytes is None
    assert not mapped.cost.one_thread_suffices
    assert mapped.cost.runs_python
