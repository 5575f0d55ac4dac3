"""Decodes stored rows into values: missing fields, decoders, and errors that name the sample.

Rows are decoded one by one into sample dicts, or column by column for a batch: both give the same
values, a keyed decoder's included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Column, num_missing, values_of
from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import is_signal
from shardwise.dataset.field import Field, put
from shardwise.dataset.raw_rows import RawRows


def decode_row(rows: RawRows, row: int, fields: Sequence[Field]) -> dict[str, Any]:
    """One sample, in less time than `decode_rows` takes; a field that it lacks is left out."""
    sample: dict[str, Any] = {"__key__": rows.columns.keys[row]}
    for field in fields:
        column = rows.columns.fields[field.name]
        if isinstance(column, np.ndarray):
            value = values_of(_own(column[row : row + 1]))[0]
        else:
            value = column[row]
        if value is not None or field.takes_missing:
            is_stored = isinstance(column, BytesColumn) and value is not None
            own = bytes(value) if is_stored else value
            put(sample, field, _decode_value(rows, row, field, own))
        elif field.required:
            raise _missing(rows, row, field)
    return sample


def decode_rows(rows: RawRows, fields: Sequence[Field]) -> Iterable[dict[str, Any]]:
    """One dict a sample; a field that it lacks is left out."""
    columns = [rows.columns.fields[field.name] for field in fields]
    owned = [_own_values(column) for column in columns]
    pending = [
        field
        for field, column in zip(fields, columns, strict=True)
        if field.decoder is not None or num_missing(column)
    ]
    if pending:
        return _decode_each(rows, fields, owned, pending)
    # Field by field: less than half the time of a `dict(zip(...))` a sample.
    samples: list[dict[str, Any]] = [{"__key__": key} for key in rows.columns.keys]
    for field, values in zip(fields, owned, strict=True):
        name = field.name
        for sample, value in zip(samples, values, strict=True):
            sample[name] = value
    return samples


def _decode_each(
    rows: RawRows, fields: Sequence[Field], owned: list[list[Any]], pending: list[Field]
) -> Iterator[dict[str, Any]]:
    """Yield samples; some fields may be missing or have decoders."""
    names = ("__key__", *(field.name for field in fields))
    for row, values in enumerate(zip(rows.columns.keys, *owned, strict=True)):
        sample = dict(zip(names, values, strict=True))
        for field in pending:
            value = sample[field.name]
            if value is not None or field.takes_missing:
                put(sample, field, _decode_value(rows, row, field, value))
            elif field.required:
                raise _missing(rows, row, field)
            else:
                del sample[field.name]
        yield sample


def decode_columns(
    rows: RawRows, fields: Sequence[Field], out: Mapping[str, NDArray[Any]]
) -> dict[str, Column]:
    """Decode rows by column: an array of the decoder, the source or `out`, or a list with None.

    Raises:
        DataError: of the first row that is damaged, lacks a field that was requested, or has a null
            where other batches have an array; and of its first field.
    """
    decoded: dict[str, Column] = {"__key__": list(rows.columns.keys)}
    for number, field in enumerate(fields):
        try:
            if field.has_mask:
                decoded |= _masked_columns(rows, field, out)
            else:
                decoded[field.name] = _decoded_column(rows, field, out.get(field.name))
        except DataError as error:
            first = _first_error(rows, error, fields[number + 1 :])
            break
    else:
        return decoded
    raise first


def _decoded_column(rows: RawRows, field: Field, out: NDArray[Any] | None) -> Column:
    column = rows.columns.fields[field.name]
    whole = _whole_or_error(rows, field, column)
    if out is not None:
        _decode_into(rows, field, column, out)
        return out
    if field.decoder is None and isinstance(column, np.ndarray):
        return _own(column)
    values: Any = _by_column(rows, field, column, "decode_column") if whole else None
    if values is None:
        values = _own_values(column)
        if field.decoder is not None:
            for row, value in enumerate(values):
                values[row] = value if value is None else _decode_value(rows, row, field, value)
        # Values that are decoded elsewhere, and travel in one buffer.
        if (pack := getattr(field.decoder, "pack_column", None)) is not None:
            values = pack(values)
    return values  # type: ignore[no-any-return]


def _masked_columns(
    rows: RawRows, field: Field, out: Mapping[str, NDArray[Any]]
) -> dict[str, Column]:
    """The column of a field and that of its masks, which one decoder makes together."""
    column = rows.columns.fields[field.name]
    _whole_or_error(rows, field, column)
    values, masks = out.get(field.name), out.get(field.mask_name)
    pairs = []
    for row, value in enumerate(column):
        place = None if values is None else values[row, ...]
        # A sample may lack a field that was not requested by name.
        is_there = value is not None or field.takes_missing
        pair = _decode_value(rows, row, field, value, place) if is_there else (None, None)
        pairs.append(pair)
        if masks is not None:
            masks[row] = pair[1]
    return {
        field.name: [value for value, _ in pairs] if values is None else values,
        field.mask_name: [mask for _, mask in pairs] if masks is None else masks,
    }


def _whole_or_error(rows: RawRows, field: Field, column: Column) -> bool:
    """Whether no sample lacks the field; an error where none may."""
    whole = not num_missing(column)
    if field.has_no_null and not whole:
        row = next(row for row, value in enumerate(column) if value is None)
        # If the decoder raises on a row before, that error comes first.
        for before in range(row):
            _decode_value(rows, before, field, _own_values(column[before : before + 1])[0])
        raise _missing(rows, row, field)
    return whole


def _first_error(rows: RawRows, error: DataError, fields: Sequence[Field]) -> DataError:
    """The error that going row by row would have met first; no decoder runs twice for a row."""
    bad = np.flatnonzero(rows.ids == error.index)
    row = int(bad[0]) if len(bad) else 0
    for field in fields:
        for before, value in enumerate(_own_values(rows.columns.fields[field.name])[:row]):
            try:
                if value is not None:
                    _decode_value(rows, before, field, value)
                elif field.has_no_null:
                    raise _missing(rows, before, field)
            except DataError as earlier:
                error, row = earlier, before
                break
    return error


def _own_values(column: Column) -> list[Any]:
    """The values; stored bytes as bytes: a view would keep all that was read in memory."""
    return values_of(_own(column) if isinstance(column, np.ndarray) else column)


def _own(column: NDArray[Any]) -> NDArray[Any]:
    """An array that may be written to: a source may return views of its data."""
    return column if column.flags.writeable else column.copy()


def copied(value: Any) -> Any:
    """An object of the user's as one that may be written to: arrays and containers are copied."""
    if isinstance(value, np.ndarray | bytearray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {name: copied(each) for name, each in value.items()}
    if hasattr(value, "clone") and hasattr(value, "detach"):  # torch's, which is not imported here
        return value.clone()
    return value


def _missing(rows: RawRows, row: int, field: Field) -> DataError:
    if field.required:
        lack = (
            f"no field {field.name!r}, which select(), decode() or a table's columns= names: leave "
            "the field out there, decode it by sw.optional(decoder)"
        )
    else:  # an array, in all batches without a null
        lack = f"no value of {field.name!r}, and an array can't hold a null: leave the field out"
    fill = "" if field.layout is None else f", give a table fill={{{field.name!r}: ...}}"
    return rows.error(
        row,
        f"the sample has {lack}{fill}, or take the samples that have it with subset()",
        field=field.name,
    )


def _decode_value(
    rows: RawRows, row: int, field: Field, value: Any, out: NDArray[Any] | None = None
) -> Any:
    """Decode a value; with `has_mask`, return its mask too and fill `out`."""
    if field.decoder is None:
        return value
    try:
        if rows.watch is not None:
            rows.begin(row, field.number, value)
        if field.has_mask:
            return field.decode_masked(value, lambda: rows.generator(row, field.stream), out)
        if field.takes_rng:
            return field.decoder(value, rng=rows.generator(row, field.stream))
        return field.decoder(value)
    except BaseException as exc:  # noqa: BLE001 - decoders are the user's code: anything may come
        rows.blame(row, field.decoder, exc, field=field.name)


def _by_column(rows: RawRows, field: Field, column: Column, method: str, *out: Any) -> Any:
    """Decode a whole column with a method of its decoder, into `out` if given; None if it can't.

    So it is with damaged values, whose row's own error names the sample, and keyed decoders.
    """
    if isinstance(column, np.ndarray):
        return None if field.cast is None or out else column.astype(field.cast)
    decode = getattr(field.decoder, method, None)
    if decode is None or field.takes_rng or not isinstance(column, BytesColumn):
        return None
    try:
        rows.begin_column(field.number)
        values = decode(column, *out)
    except BaseException as exc:
        if is_signal(exc):
            raise
        return None  # decoders are the user's code; the rows will raise their errors
    return out[0] if out else values


def _drawn_at_once(rows: RawRows, field: Field, column: Column) -> list[Any] | None:
    """What an image decoder draws for each row, and reads in its header; None if it can't.

    In one go this costs a fifth of what it costs between two images, whose pixels push code and
    objects of Python out of the CPU's caches.
    """
    draw: Any = getattr(field.decoder, "draw", None)
    if draw is None or not hasattr(field.decoder, "decode_drawn_into"):
        return None
    try:
        rows.begin_column(field.number)
        if not field.takes_rng:
            return list(map(draw, column))
        return [draw(value, rows.generator(row, field.stream)) for row, value in enumerate(column)]
    except BaseException as exc:
        if is_signal(exc):
            raise
        return None  # decoders are the user's code; the rows will raise their errors


def _decode_into(rows: RawRows, field: Field, column: Column, out: NDArray[Any]) -> None:
    if _by_column(rows, field, column, "decode_column_into", out) is not None:
        return
    values = column if field.decoder is None else _by_column(rows, field, column, "decode_column")
    if isinstance(values, np.ndarray) and (values.shape, values.dtype) == (out.shape, out.dtype):
        np.copyto(out, values)
        return
    decoder: Any = field.decoder
    drawn = _drawn_at_once(rows, field, column)
    is_watched, takes_rng = rows.watch is not None, field.takes_rng
    # Rows of an array of one axis would be numbers, not views.
    places = out if out.ndim > 1 else [out[row, ...] for row in range(len(out))]
    for row, (value, place) in enumerate(zip(column, places, strict=True)):
        if decoder is None:
            raise rows.error(row, _odd_value(value, out), field=field.name)
        try:
            if is_watched:
                rows.begin(row, field.number, value)
            if drawn is not None:
                decoder.decode_drawn_into(value, place, drawn[row])
            elif takes_rng:
                decoder.decode_into(value, place, rng=rows.generator(row, field.stream))
            else:
                decoder.decode_into(value, place)
        except BaseException as exc:  # noqa: BLE001 - as above
            rows.blame(row, decoder, exc, field=field.name)


def _odd_value(value: Any, out: NDArray[Any]) -> str:
    form = f"{value.dtype} of shape {value.shape}" if hasattr(value, "dtype") else repr(value)
    return f"the source gave {form:.80}, and its layout says {out.dtype} of shape {out.shape[1:]}"
