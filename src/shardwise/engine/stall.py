"""The errors of what is late: a batch, with the sample and the worker; a sample's decoding."""

from __future__ import annotations

from shardwise.base.errors import DecodeTimeoutError, StallError
from shardwise.engine.processes.worker_status import Decoding, timeout_error
from shardwise.engine.request import BatchRequest
from shardwise.sources.samples import Samples
from shardwise.storage import outages


def stall_error(
    samples: Samples, request: BatchRequest, start: int, timeout: float, worker: str
) -> StallError:
    """The error of a batch that took longer than `timeout` seconds.

    `worker` loads the chunk that is missing, whose first row is `start`.
    """
    message = (
        f"no batch for {timeout:g} s: step {request.step} of epoch {request.epoch} waits for "
        f"{worker}"
    )
    if start < len(request.ids):
        message += f", whose first row is {samples.describe(int(request.ids[start]))}"
    for outage in outages():
        message += f"; {outage}"
    return StallError(f"{message}; raise timeout= if reading or decoding may take this long")


def stuck_error(samples: Samples, decoding: Decoding, timeout: float) -> DecodeTimeoutError:
    """The error of a sample on which a decoder or function took longer than `timeout` seconds."""
    error = timeout_error(timeout, decoding.detail)
    error.url, error.key = samples.url_of(decoding.sample), decoding.key
    error.index = decoding.sample
    error.field = samples.fields[decoding.part] if decoding.part >= 0 else None
    return error
