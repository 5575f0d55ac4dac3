"""Requests and batches as frames."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import Stages
from shardwise.base.shown import escaped
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import Batch, BatchRequest, BatchRows
from shardwise.extensions.service.frames import (
    Encoded,
    Frame,
    FrameError,
    decoding,
    encoded,
    shape_of,
)

_PLAIN = frozenset({type(None), bool, int, float, str})


class Encoder:
    """Encodes values."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        # The values are kept, so that no other one gets the id of one that is gone.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def array(self, array: NDArray[Any]) -> int:
        known = self._numbers.get(id(array))
        if known is not None:
            return known[0]
        if array.dtype.kind not in "biufcSUmM" or not array.dtype.itemsize:
            raise TypeError(f"an array of {array.dtype}")
        number = len(self.arrays)
        self.arrays.append(array if array.flags.c_contiguous else array.copy(order="C"))
        self._numbers[id(array)] = (number, array)
        return number

    def value(self, value: Any) -> Any:  # noqa: PLR0911 - one for each type
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            kinds = set(map(type, value))
            if kinds <= _PLAIN:
                return value
            if kinds == {bytes}:
                sizes = np.fromiter(map(len, value), dtype=np.int64, count=len(value))
                return {"bytes": [self.array(sizes), self._add_bytes(b"".join(value))]}
            return [self.value(each) for each in value]
        if kind is tuple:
            return {"tuple": [self.value(each) for each in value]}
        if kind is dict:
            return {"dict": [[self.value(key), self.value(each)] for key, each in value.items()]}
        if kind is bytes:
            return {"byte": self._add_bytes(value)}
        if isinstance(value, np.generic):
            return {"scalar": self.array(np.asarray(value))}
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            if value.dtype.hasobject and value.dtype.kind == "O":
                items = [self.value(each) for each in value.reshape(-1).tolist()]
                return {"objects": [list(value.shape), items]}
            return self._array(np.asarray(value) if kind is not np.ndarray else value)
        if kind.__module__ == "torch" and kind.__name__ == "Tensor":
            # As bytes: numpy lacks some of torch's dtypes.
            flat = value.detach().cpu().contiguous().reshape(-1)
            raw = flat.view(sys.modules["torch"].uint8).numpy()
            name = str(value.dtype).partition(".")[2]
            return {"tensor": [name, list(value.shape), self.array(raw)]}
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__}")

    def _array(self, array: NDArray[Any]) -> Any:
        if array.ndim == 4 and not array.flags.c_contiguous:
            last = np.moveaxis(array, 1, -1)
            if last.flags.c_contiguous:
                return {"channels_last": self.array(last)}
        return {"array": self.array(array)}

    def _add_bytes(self, data: bytes) -> int:
        return self.array(np.frombuffer(data, dtype=np.uint8))


class Decoder:
    """Decodes what `Encoder` made; malformed JSON raises an error of any type."""

    def __init__(self, arrays: list[NDArray[Any]]) -> None:
        self._arrays = arrays

    def array(self, number: int) -> NDArray[Any]:
        if type(number) is not int or number < 0:
            raise ValueError(number)
        return self._arrays[number]

    def value(self, code: Any) -> Any:  # noqa: PLR0911, PLR0912 - one for each type
        if type(code) is list:
            if set(map(type, code)) <= _PLAIN:
                return code
            return [self.value(each) for each in code]
        if type(code) is not dict:
            return code
        [(tag, content)] = code.items()
        match tag:
            case "array":
                return self.array(content)
            case "channels_last":
                return np.moveaxis(self.array(content), -1, 1)
            case "bytes":
                return self._split(*content)
            case "byte":
                return self.array(content).tobytes()
            case "tuple":
                return tuple(self.value(each) for each in content)
            case "dict":
                return {self.value(key): self.value(each) for key, each in content}
            case "scalar":
                return self.array(content).reshape(())[()]
            case "objects":
                shape, items = content
                values = np.empty(len(items), dtype=object)
                for place, item in enumerate(items):
                    values[place] = self.value(item)
                return values.reshape(shape_of(shape))
            case "tensor":
                return self._tensor(*content)
        raise ValueError(tag)

    def _split(self, sizes: int, joined: int) -> list[bytes]:
        lengths, data = self.array(sizes), self.array(joined).tobytes()
        ends = np.cumsum(lengths).tolist()
        if lengths.dtype != np.int64 or (lengths < 0).any() or [0, *ends][-1] != len(data):
            raise ValueError("lengths that are not those of the bytes")
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _tensor(self, dtype: str, shape: list[int], number: int) -> Any:
        import torch

        kind = vars(torch)[dtype]  # not by getattr(), which may import
        if not isinstance(kind, torch.dtype):
            raise TypeError(dtype)
        return torch.from_numpy(self.array(number)).view(kind).reshape(shape_of(shape))


# Above any epoch, step and count; the account adds them up.
_MOST = 1 << 62


def encode_request(request: BatchRequest) -> Encoded:
    """A request as a frame."""
    arrays = [np.ascontiguousarray(request.ids)]
    if request.valid is not None:
        arrays.append(np.ascontiguousarray(request.valid))
    body = {"epoch": request.epoch, "step": request.step, "sizes": list(request.sizes)}
    return encoded(body, arrays)


def decode_request(frame: Frame) -> BatchRequest:
    """The request of a frame."""
    with decoding("request"):
        body = frame.body
        ids, *others = frame.arrays
        valid = others[0] if others else None
        sizes = _counts(body["sizes"])
        epoch, step = _counts([body["epoch"], body["step"]])
        is_sound = len(others) <= 1 and ids.dtype == np.int64 and ids.ndim == 1
        is_sound &= valid is None or (valid.dtype == np.bool_ and valid.shape == ids.shape)
        is_sound &= not sizes or sum(sizes) == len(ids)
    if not is_sound:
        raise FrameError("an invalid request: its ids, or sizes that are not theirs")
    return BatchRequest(epoch, step, ids, valid, sizes)


def encode_batch(batch: Batch) -> Encoded:
    """A batch, and what building it cost, as a frame."""
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
        "missing": stages.missing,
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
    """The batch of a frame."""
    with decoding("batch"):
        return _batch(frame.body, Decoder(frame.arrays))


def check_batch(batch: Batch, request: BatchRequest, builder: BatchBuilder) -> None:
    """Compare the rows that a server names with those of the request: each has one fate."""
    sizes = request.sizes or (len(request.ids),)
    parts = batch.parts if request.sizes else [batch]
    if len(parts) != len(sizes) or (request.sizes and (batch.num_rows or batch.data is not None)):
        raise FrameError(f"a batch in {len(batch.parts)} parts, of {len(request.sizes)}")
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        rows = slice(start, start + size)
        valid = None if request.valid is None else request.valid[rows]
        _check_part(part, request.ids[rows], valid, builder)
        start += size


def _check_part(
    batch: Batch, ids: NDArray[np.int64], valid: NDArray[np.bool_] | None, builder: BatchBuilder
) -> None:
    rows, on_error = batch.rows, builder.on_error
    asked = ids if valid is None else ids[valid]
    fates = (rows.ids, rows.skipped, rows.replaced)
    fits = np.array_equal(rows.ids, asked)
    if on_error != "raise":
        fits = np.array_equal(np.sort(np.concatenate(fates)), np.sort(asked))
        fits &= not len(rows.skipped if on_error == "replace" else rows.replaced)
    # Rows of the padding may be skipped and replaced, too.
    num_extra = batch.num_replaced - len(rows.replaced)
    fits &= batch.num_rows == len(rows.ids) + len(rows.replaced) + rows.num_padded
    fits &= batch.num_rows + batch.num_skipped == len(ids) and 0 <= num_extra <= rows.num_padded
    fits &= len(rows.skipped) <= batch.num_skipped
    if builder.collate is None and fits:
        data: Any = batch.data if type(batch.data) is dict else {}
        index, marks = data.get("__index__"), data.get("__valid__")
        if not isinstance(index, np.ndarray) or index.dtype != np.int64:
            index = np.empty((0, 0))
        fits = index.shape == (batch.num_rows,)
        if not batch.num_skipped and not batch.num_replaced:
            fits = np.array_equal(index, ids) and np.array_equal(marks, np.asarray(valid))
    num_samples = len(builder.dataset)
    fits &= sum(len(each) for each, _ in batch.chunks) <= len(ids) and not batch.parts
    fits &= all(((each >= 0) & (each < num_samples)).all() for each, _ in batch.chunks)
    if not fits:
        raise FrameError(
            f"another batch than was asked for: {batch.num_rows} rows, {batch.num_skipped} skipped "
            f"and {batch.num_replaced} replaced, with the samples {rows.ids[:8].tolist()}, where "
            f"{len(ids)} rows with {asked[:8].tolist()} were asked for"
        )


def _batch(body: Mapping[str, Any], decoder: Decoder) -> Batch:
    num_rows, num_skipped, num_replaced, num_padded = _counts(body["counts"])
    ids, skipped, replaced = (_ids(number, decoder) for number in body["rows"])
    num_bytes, cpu_s = body["costs"]
    _counts([num_bytes, *body["storage"].values(), *body["missing"].values()])
    names = [*body["seconds"], *body["storage"]]
    times = [cpu_s, *body["seconds"].values(), *(seconds for _, seconds in body["chunks"])]
    if not all(len(name) < 40 and name.isascii() and name.isprintable() for name in names):
        raise ValueError("names of stages or counts")
    # The difference of two clocks may be a little below 0.
    if not all(type(each) in (int, float) and -1 < each < _MOST for each in times):
        raise ValueError("seconds")
    missing = {escaped(name): count for name, count in body["missing"].items()}
    return Batch(
        decoder.value(body["data"]),
        num_rows=num_rows,
        num_skipped=num_skipped,
        num_replaced=num_replaced,
        rows=BatchRows(ids, skipped, replaced, num_padded),
        stages=Stages(dict(body["seconds"]), num_bytes, cpu_s, dict(body["storage"]), missing),
        chunks=[(_ids(number, decoder), seconds) for number, seconds in body["chunks"]],
        parts=[_batch(part, decoder) for part in body["parts"]],
    )


def _counts(numbers: list[Any]) -> tuple[int, ...]:
    if not all(type(each) is int and 0 <= each < _MOST for each in numbers):
        raise ValueError(f"counts of {numbers}")
    return tuple(numbers)


def _ids(number: int, decoder: Decoder) -> NDArray[np.int64]:
    ids = decoder.array(number)
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise ValueError("ids")
    return ids
