"""Requests and batches as frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.request import Batch, BatchRequest, BatchRows
from shardwise.serving.frames import Encoded, Frame, FrameError, encoded
from shardwise.serving.values import Decoder, Encoder
from shardwise.stages import Stages

_MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


def encode_request(request: BatchRequest) -> Encoded:
    """A request as a frame."""
    arrays = [np.ascontiguousarray(request.ids)]
    if request.valid is not None:
        arrays.append(np.ascontiguousarray(request.valid))
    body = {"epoch": request.epoch, "step": request.step, "sizes": list(request.sizes)}
    return encoded(body, arrays)


def decode_request(frame: Frame) -> BatchRequest:
    """The request of a frame.

    Raises:
        FrameError: it is no request.
    """
    try:
        body = frame.body
        ids, *others = frame.arrays
        valid = others[0] if others else None
        numbers = [body["epoch"], body["step"], *body["sizes"]]
        is_sound = all(type(number) is int and number >= 0 for number in numbers)
        is_sound &= len(others) <= 1 and ids.dtype == np.int64 and ids.ndim == 1
        is_sound &= valid is None or (valid.dtype == np.bool_ and valid.shape == ids.shape)
        if not is_sound or (body["sizes"] and sum(body["sizes"]) != len(ids)):
            raise ValueError("request")
        return BatchRequest(body["epoch"], body["step"], ids, valid, tuple(body["sizes"]))
    except _MALFORMED:
        raise FrameError("a request that is none") from None


def encode_batch(batch: Batch) -> Encoded:
    """A batch, and what building it cost, as a frame.

    Raises:
        TypeError: a value that is no array, number, text, bytes, or list, tuple or dict of these.
    """
    encoder = Encoder()
    return encoded(_body(batch, encoder), encoder.arrays)


def _body(batch: Batch, encoder: Encoder) -> dict[str, Any]:
    rows, stages = batch.rows, batch.stages
    return {
        "data": _data(batch.data, encoder),
        "counts": [batch.num_rows, batch.num_skipped, batch.num_replaced, rows.num_padded],
        "rows": [encoder.array(ids) for ids in (rows.ids, rows.skipped, rows.replaced)],
        "seconds": stages.seconds,
        "costs": [stages.num_bytes, stages.cpu_s],
        "storage": stages.storage,
        "chunks": [[encoder.array(ids), seconds] for ids, seconds in batch.chunks],
        "parts": [_body(part, encoder) for part in batch.parts],
    }


def _data(data: Any, encoder: Encoder) -> Any:
    if type(data) is not dict:
        return _value("the batch", data, encoder)
    return {"dict": [[encoder.value(n), _value(n, each, encoder)] for n, each in data.items()]}


def _value(name: object, value: Any, encoder: Encoder) -> Any:
    try:
        return encoder.value(value)
    except TypeError as error:
        raise TypeError(
            f"a batch server sends arrays, tensors, numbers, text, bytes, and lists, tuples and "
            f"dicts of these, and {name!r} has {error}: make it one of them in a decoder or map(), "
            "or leave out executor=sw.service(...)"
        ) from None


def decode_batch(frame: Frame) -> Batch:
    """The batch of a frame.

    Raises:
        FrameError: it is no batch.
    """
    try:
        return _batch(frame.body, Decoder(frame.arrays))
    except _MALFORMED as error:
        raise FrameError(f"a batch that is none: {type(error).__name__}: {error}") from None


def _batch(body: Mapping[str, Any], decoder: Decoder) -> Batch:
    num_rows, num_skipped, num_replaced, num_padded = body["counts"]
    ids, skipped, replaced = (_ids(number, decoder) for number in body["rows"])
    num_bytes, cpu_s = body["costs"]
    return Batch(
        decoder.value(body["data"]),
        num_rows=num_rows,
        num_skipped=num_skipped,
        num_replaced=num_replaced,
        rows=BatchRows(ids, skipped, replaced, num_padded),
        stages=Stages(dict(body["seconds"]), num_bytes, cpu_s, dict(body["storage"])),
        chunks=[(_ids(number, decoder), seconds) for number, seconds in body["chunks"]],
        parts=[_batch(part, decoder) for part in body["parts"]],
    )


def _ids(number: int, decoder: Decoder) -> NDArray[np.int64]:
    ids = decoder.array(number)
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise ValueError("ids")
    return ids
