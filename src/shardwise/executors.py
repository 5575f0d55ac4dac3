"""Executors of your own: what builds the batches of a loader, anywhere.

The loader calls `executor=` with a `BatchBuilder`. The executor gets `BatchRequest`s and yields
`Batch`es in their order. All own executors keep this protocol and no other;
`shardwise.testing.check_executor` holds an executor to it.
"""

from shardwise.base.errors import StallError, WorkerError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.processes.pickling import pickle_by_value
from shardwise.engine.request import Batch, BatchRequest, Concurrency, Executor

__all__ = [
    "Batch", "BatchBuilder", "BatchRequest", "Concurrency", "Executor", "StallError", "WorkerError",
    "pickle_by_value",
]  # fmt: skip
