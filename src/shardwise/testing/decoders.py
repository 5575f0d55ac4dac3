"""Conformance of decoders: what `shardwise.codecs.Decoder` promises, tried on samples."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from shardwise.base.arguments import suggest_names
from shardwise.base.columns import BytesColumn
from shardwise.codecs.protocol import (
    ColumnDecoder,
    Decoder,
    KeyedDecoder,
    KeyedRowDecoder,
    RowDecoder,
    takes_rng,
)
from shardwise.dataset.keyed_random import SampleKeys

_NUM_THREADS = 4
_NUM_CUTS = 12
# Ids of the samples whose generators a keyed decoder gets, one per epoch.
_SAMPLE_IDS = (0, 1, 2**40)


@suggest_names
def check_decoder(decoder: Decoder | KeyedDecoder, samples: Sequence[bytes]) -> None:
    """Check that a decoder keeps what the engine relies on.

    It is pure and may run in threads; bytes and memoryviews give the same; its value owns its
    data; it pickles; `row`, `decode_into` and `decode_column`, where it has them, agree with the
    call bit by bit; a cut payload raises ValueError or gives a value of the same kind. One with a
    parameter `rng` keeps this for equal generators, of several samples and epochs.

    Args:
        decoder: the decoder, or any callable of bytes and memoryviews.
        samples: payloads that it decodes, best of different lengths and contents.

    Raises:
        AssertionError: it does not; the message names the difference and the sample.
    """
    if not samples:
        raise ValueError("check_decoder needs at least one sample")
    if takes_rng(decoder):
        for epoch, sample_id in enumerate(_SAMPLE_IDS):
            _check(_key_decoder(decoder, epoch, sample_id), samples)
    else:
        _check(decoder, samples)  # type: ignore[arg-type]  # no parameter rng


def _check(decoder: Decoder, samples: Sequence[bytes]) -> None:
    values = [decoder(data) for data in samples]
    _check_calls(decoder, samples, values)
    if isinstance(decoder, RowDecoder) and decoder.row is not None:
        _check_rows(decoder, samples, values)
    if isinstance(decoder, ColumnDecoder):
        _check_column(decoder, samples, values)
    for number, (data, value) in enumerate(zip(samples, values, strict=True)):
        _check_cut(decoder, number, data, value)


class _KeyedCall:
    """A keyed decoder as one without `rng`: for the bytes of one sample of one epoch."""

    def __init__(self, decoder: Any, epoch: int, sample_id: int) -> None:
        self._decoder = decoder
        self._key = epoch, sample_id

    @property
    def _rng(self) -> np.random.Generator:
        epoch, sample_id = self._key
        return SampleKeys(0, epoch).generator(sample_id, int(getattr(self._decoder, "stream", 0)))

    def __call__(self, data: bytes | memoryview) -> Any:
        return self._decoder(data, rng=self._rng)


class _KeyedRows(_KeyedCall):
    """The same for a decoder that writes into rows."""

    @property
    def row(self) -> Any:
        return self._decoder.row

    def decode_into(self, data: bytes | memoryview, out: Any) -> None:
        self._decoder.decode_into(data, out, rng=self._rng)


def _key_decoder(decoder: Any, epoch: int, sample_id: int) -> Decoder:
    kind = _KeyedRows if isinstance(decoder, KeyedRowDecoder) else _KeyedCall
    return kind(decoder, epoch, sample_id)


def same_value(one: Any, other: Any) -> bool:
    """Whether two decoded values are of one type and equal to the bit; NaN equals itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return bool(
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)
    equal = one == other
    # Tensors, and whatever else compares element by element.
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _expect(condition: bool, what: str, number: int, one: Any = None, other: Any = None) -> None:
    assert condition, f"sample {number}: {what} ({_short(one)} against {_short(other)})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _check_calls(decoder: Decoder, samples: Sequence[bytes], values: list[Any]) -> None:
    """Every way to call it gives the same values."""
    ways: dict[str, Callable[[bytes], Any]] = {
        "two calls differ": decoder,
        # A read-only view at an odd offset, as sources give.
        "bytes and memoryview differ": lambda data: decoder(memoryview(b"\xff" + data)[1:]),
        "the value changed with the input's buffer": lambda data: _overwritten(decoder, data),
        "a pickled copy differs": pickle.loads(pickle.dumps(decoder)),  # noqa: S301 - made here
    }
    for what, decode in ways.items():
        for number, (data, value) in enumerate(zip(samples, values, strict=True)):
            other = decode(data)
            _expect(same_value(value, other), what, number, value, other)
    numbers = list(range(len(samples))) * _NUM_THREADS
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        decoded = pool.map(decoder, [samples[number] for number in numbers])
        for number, other in zip(numbers, decoded, strict=True):
            value = values[number]
            _expect(same_value(value, other), "threads differ", number, value, other)


def _overwritten(decoder: Decoder, data: bytes) -> Any:
    """The value, after its input's buffer was overwritten."""
    buffer = bytearray(data)
    value = decoder(memoryview(buffer))
    buffer[:] = b"\xa5" * len(buffer)
    return value


def _check_rows(decoder: RowDecoder, samples: Sequence[bytes], values: list[Any]) -> None:
    assert decoder.row is not None
    shape, dtype = decoder.row
    # Filled with ones first: a byte that is not written shows.
    batch = np.full((len(samples), *shape), 1, dtype)
    for number, (data, value) in enumerate(zip(samples, values, strict=True)):
        form = (np.shape(value), np.asarray(value).dtype)
        what = "the value is not what `row` says"
        _expect(form == (shape, dtype), what, number, form, decoder.row)
        decoder.decode_into(memoryview(data), batch[number, ...])
    for number, value in enumerate(values):
        _expect(
            batch[number, ...].tobytes() == np.asarray(value).tobytes(),
            "decode_into differs from the call",
            number,
            batch[number, ...],
            value,
        )


def _check_column(decoder: ColumnDecoder, samples: Sequence[bytes], values: list[Any]) -> None:
    packed = BytesColumn.of(samples)
    buffer = packed.buffer.copy()
    columns = {
        "decode_column": range(len(samples)),
        "decode_column of a reversed column": range(len(samples))[::-1],
        "decode_column of one row": range(1),
    }
    for what, order in columns.items():
        rows = list(order)
        decoded = decoder.decode_column(
            BytesColumn(buffer, packed.starts[rows], packed.lengths[rows])
        )
        buffer[:] = 0xA5
        assert len(decoded) == len(rows), f"{what}: {len(decoded)} values for {len(rows)} rows"
        for value, number in zip(decoded, rows, strict=True):
            expected = values[number]
            same = np.asarray(value).tobytes() == np.asarray(expected).tobytes()
            _expect(
                same and np.shape(value) == np.shape(expected),
                f"{what} differs from the call, or changed with the input's buffer",
                number,
                value,
                expected,
            )
        buffer[:] = packed.buffer
    empty = decoder.decode_column(packed[:0])
    assert len(empty) == 0, f"decode_column of no row gives {len(empty)} values"


def _check_cut(decoder: Decoder, number: int, data: bytes, value: Any) -> None:
    for length in sorted({len(data) * cut // _NUM_CUTS for cut in range(_NUM_CUTS)}):
        if length == len(data):
            continue
        try:
            cut = decoder(data[:length])
        except ValueError:
            continue
        except Exception as exc:
            raise AssertionError(
                f"sample {number}: cut to {length} of {len(data)} bytes it raises {exc!r}, "
                "not a ValueError"
            ) from exc
        _expect(
            type(cut) is type(value),
            f"cut to {length} bytes it gives another kind of value",
            number,
            cut,
            value,
        )
