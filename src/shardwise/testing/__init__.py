"""Conformance kits of sources, samplers, decoders, executors, stores and training loops.

Each kit is one function that raises `AssertionError` with the difference; none needs pytest.
"""

from shardwise.testing.decoders import check_decoder
from shardwise.testing.executors import assert_batches_equal, check_executor, check_resume
from shardwise.testing.samplers import check_sampler
from shardwise.testing.sources import check_source
from shardwise.testing.stores import check_store
from shardwise.testing.trainers import check_trainer

__all__ = [
    "assert_batches_equal", "check_decoder", "check_executor", "check_resume", "check_sampler",
    "check_source", "check_store", "check_trainer",
]  # fmt: skip
