"""From stored rows to values: missing fields, decoders, and errors that name the sample.

Rows are decoded one by one into sample dicts, or column by column for a batch: both give the same
values, a keyed decoder's included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.protocol import DrawingDecoder
from shardwise.columns import BytesColumn, Column, Layout, values_of
from shardwise.dataset.keyed_random import SampleKeys, takes_rng
from shardwise.dataset.raw_rows import RawRows
from shardwise.errors import DataError

__all__ = [
    "Field",
    "Layout",
    "copied",
    "decode_columns",
    "decode_row",
    "decode_rows",
    "in_place",
    "is_plain_function",
]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataset's samples.

    Attributes:
        name: what it is called in a sample.
        decoder: bytes -> value, or None for the bytes themselves.
        required: it was asked for by name, so a sample without it is an error.
        layout: shape and dtype of a row, where the source has arrays of values; else None.
        number: its place among the fields that are read.
        takes_rng: the decoder has a parameter called `rng`.
    """

    name: str
    decoder: Callable[..., Any] | None
    required: bool
    layout: Layout | None = None
    number: int = 0
    takes_rng: bool = False

    @classmethod
    def of(
        cls, name: str, decoder: Any, *, required: bool, layout: Layout | None, number: int
    ) -> Field:
        """Look at the decoder's signature once."""
        return cls(name, decoder, required, layout, number, takes_rng(decoder))

    @property
    def stream(self) -> int:
        """Which of a sample's generators the decoder gets; decoders of one stream draw alike."""
        return int(getattr(self.decoder, "stream", 0))

    def decode(self, value: Any, random: SampleKeys, source_id: int) -> Any:
        """Call the decoder, which must be there, with the sample's generator if it takes one."""
        assert self.decoder is not None
        if self.takes_rng:
            return self.decoder(value, rng=random.generator(source_id, self.stream))
        return self.decoder(value)

    @property
    def has_no_null(self) -> bool:
        """Whether no row of a batch may lack it: it was asked for, or is an array in all others."""
        return self.required or self.layout is not None

    @property
    def cast(self) -> np.dtype[Any] | None:
        """The dtype that `int` or `float` as the decoder gives a column of numbers at once."""
        if self.layout is None or self.layout[0] != () or self.decoder not in (int, float):
            return None
        dtype = self.layout[1]
        if self.decoder is float:
            return np.dtype(np.float64)
        # Of floats int() may fail, and uint64 has numbers that int64 has not.
        fits = dtype.kind in "bi" or (dtype.kind == "u" and dtype.itemsize < 8)
        return np.dtype(np.int64) if fits else None


def is_plain_function(decoder: Callable[..., Any]) -> bool:
    """Whether a decoder is any callable: none of this library's, and without their abilities."""
    return not (
        type(decoder).__module__.startswith("shardwise.")
        or hasattr(decoder, "decode_into")
        or hasattr(decoder, "decode_column")
    )


def in_place(field: Field) -> Layout | None:
    """Shape and dtype of a row, if the field can be written straight into the rows of an array.

    A field that samples may lack can't: nothing would be written to their rows.
    """
    if field.decoder is None:
        return field.layout if field.required else None
    if field.cast is not None:
        return ((), field.cast) if field.required else None
    row: Layout | None = getattr(field.decoder, "row", None)
    if row is None or not field.required or not hasattr(field.decoder, "decode_into"):
        return None
    return tuple(row[0]), np.dtype(row[1])


def decode_row(rows: RawRows, row: int, fields: Sequence[Field]) -> dict[str, Any]:
    """One sample, in less time than `decode_rows` takes; a field that it lacks is left out."""
    sample: dict[str, Any] = {"__key__": rows.columns.keys[row]}
    for field in fields:
        column = rows.columns.fields[field.name]
        if isinstance(column, np.ndarray):
            value = values_of(_own(column[row : row + 1]))[0]
        else:
            value = column[row]
        if value is not None:
            own = bytes(value) if isinstance(column, BytesColumn) else value
            sample[field.name] = _decoded(rows, row, field, own)
        elif field.required:
            raise _missing(rows, row, field)
    return sample


def decode_rows(rows: RawRows, fields: Sequence[Field]) -> Iterator[dict[str, Any]]:
    """Yield one dict a sample; a field that it lacks is left out."""
    names = ("__key__", *(field.name for field in fields))
    owned = []
    pending = []
    for field in fields:
        column = rows.columns.fields[field.name]
        owned.append(_owned(column))
        if field.decoder is not None or not _is_whole(column):
            pending.append(field)
    if not pending:
        yield from [dict(zip(names, row)) for row in zip(rows.columns.keys, *owned, strict=True)]  # noqa: B905 - it costs a tenth of the time, and the lengths are equal
        return
    for row, values in enumerate(zip(rows.columns.keys, *owned, strict=True)):
        sample = dict(zip(names, values, strict=True))
        for field in pending:
            value = sample[field.name]
            if value is not None:
                sample[field.name] = _decoded(rows, row, field, value)
            elif field.required:
                raise _missing(rows, row, field)
            else:
                del sample[field.name]
        yield sample


def decode_columns(
    rows: RawRows, fields: Sequence[Field], out: Mapping[str, NDArray[Any]]
) -> dict[str, Column]:
    """Decode rows by column.

    A column is an array `[rows, ...]` where the decoder makes one, or the source has one and there
    is no decoder; the array of `out` where there is one for the field; else a list with None for
    samples that lack the field.

    Raises:
        DataError: of the first row that is damaged, lacks a field that was asked for, or has a null
            where other batches have an array; and of its first field.
    """
    decoded: dict[str, Column] = {"__key__": list(rows.columns.keys)}
    for number, field in enumerate(fields):
        try:
            decoded[field.name] = _decoded_column(rows, field, out.get(field.name))
        except DataError as error:
            first = _first_error(rows, error, fields[number + 1 :])
            break
    else:
        return decoded
    raise first


def _decoded_column(rows: RawRows, field: Field, out: NDArray[Any] | None) -> Column:
    column = rows.columns.fields[field.name]
    whole = _is_whole(column)
    if field.has_no_null and not whole:
        row = next(row for row, value in enumerate(column) if value is None)
        # Of a decoder that raises on a row before, that error is the first.
        for before in range(row):
            _decoded(rows, before, field, _owned(column[before : before + 1])[0])
        raise _missing(rows, row, field)
    if out is not None:
        _decode_into(rows, field, column, out)
        return out
    if field.decoder is None and isinstance(column, np.ndarray):
        return _own(column)
    values: Any = _decode_at_once(rows, field, column) if whole else None
    if values is None:
        values = _owned(column)
        if field.decoder is not None:
            for row, value in enumerate(values):
                values[row] = value if value is None else _decoded(rows, row, field, value)
    return values  # type: ignore[no-any-return]


def _first_error(rows: RawRows, error: DataError, fields: Sequence[Field]) -> DataError:
    """The error that going row by row would have met: maybe one of these fields, in a row before.

    No decoder is called twice for a row.
    """
    bad = np.flatnonzero(rows.ids == error.index)
    row = int(bad[0]) if len(bad) else 0
    for field in fields:
        for before, value in enumerate(_owned(rows.columns.fields[field.name])[:row]):
            try:
                if value is not None:
                    _decoded(rows, before, field, value)
                elif field.has_no_null:
                    raise _missing(rows, before, field)
            except DataError as earlier:
                error, row = earlier, before
                break
    return error


def _is_whole(column: Column) -> bool:
    """Whether no sample lacks the field."""
    if isinstance(column, BytesColumn):
        return int(column.lengths.min(initial=0)) >= 0
    if isinstance(column, np.ndarray) and column.dtype.kind != "O":
        return True
    return all(value is not None for value in column)


def _owned(column: Column) -> list[Any]:
    """The values; stored bytes as bytes: a view would keep all that was read in memory."""
    return values_of(_own(column) if isinstance(column, np.ndarray) else column)


def _own(column: NDArray[Any]) -> NDArray[Any]:
    """An array that may be written to: a source may hand out views of what it holds."""
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
            f"no field {field.name!r}, which select() or decode() names: leave the field out there"
        )
    else:  # an array, in all batches without a null
        lack = f"no value of {field.name!r}, and an array can't hold a null: leave the field out"
    fill = "" if field.layout is None else f", give a table fill={{{field.name!r}: ...}}"
    return rows.error(
        row,
        f"the sample has {lack}{fill}, or take the samples that have it with subset()",
        field=field.name,
    )


def _decoded(rows: RawRows, row: int, field: Field, value: Any) -> Any:
    if field.decoder is None:
        return value
    try:
        rows.begin(row, field.number, value)
        if field.takes_rng:
            return field.decoder(value, rng=rows.generator(row, field.stream))
        return field.decoder(value)
    except Exception as exc:  # noqa: BLE001 - decoders are the user's code: anything may come
        rows.blame(row, field.decoder, exc, field=field.name)


def _decode_at_once(rows: RawRows, field: Field, column: Column) -> Any:
    """Decode a whole column to an array or a list, or return None: do it row by row.

    So it is done with damaged values too: the row's own error then names the sample. Keyed
    decoders get a generator a sample, so they are called row by row.
    """
    if isinstance(column, np.ndarray):
        return None if field.cast is None else column.astype(field.cast)
    return _by_column(rows, field, column, "decode_column")


def _by_column(rows: RawRows, field: Field, column: Column, method: str, *out: Any) -> Any:
    """What a decoder's method makes of a whole column, or fills `out` with; None if it can't.

    `out` means nothing then.
    """
    decode = getattr(field.decoder, method, None)
    if decode is None or field.takes_rng or not isinstance(column, BytesColumn):
        return None
    try:
        rows.begin_column(field.number)
        values = decode(column, *out)
    except Exception:  # noqa: BLE001 - decoders are the user's code; the rows will tell
        return None
    return out[0] if out else values


def _drawn_at_once(rows: RawRows, field: Field, column: Column) -> list[Any] | None:
    """What a keyed decoder draws for each row, if it can draw before it decodes; else None.

    In one go a draw costs a fifth of what it costs between two images, whose pixels push code and
    objects of Python out of the CPU's caches.
    """
    decoder: Any = field.decoder
    if not field.takes_rng or not isinstance(decoder, DrawingDecoder):
        return None
    try:
        rows.begin_column(field.number)
        return [
            decoder.draw(value, rows.generator(row, field.stream))
            for row, value in enumerate(column)
        ]
    except Exception:  # noqa: BLE001 - decoders are the user's code; the rows will tell
        return None


def _decode_into(rows: RawRows, field: Field, column: Column, out: NDArray[Any]) -> None:
    """Decode into the rows of `out`: by one copy where a whole column comes at once."""
    if _by_column(rows, field, column, "decode_column_into", out) is not None:
        return
    values = column if field.decoder is None else _decode_at_once(rows, field, column)
    if isinstance(values, np.ndarray) and (values.shape, values.dtype) == (out.shape, out.dtype):
        np.copyto(out, values)
        return
    decoder: Any = field.decoder
    drawn = _drawn_at_once(rows, field, column)
    for row, value in enumerate(column):
        if decoder is None:
            raise rows.error(row, _odd_value(value, out), field=field.name)
        try:
            rows.begin(row, field.number, value)
            # With the dots a scalar's row is a view too.
            if drawn is not None:
                decoder.decode_drawn_into(value, out[row, ...], drawn[row])
            elif field.takes_rng:
                rng = rows.generator(row, field.stream)
                decoder.decode_into(value, out[row, ...], rng=rng)
            else:
                decoder.decode_into(value, out[row, ...])
        except Exception as exc:  # noqa: BLE001 - as above
            rows.blame(row, decoder, exc, field=field.name)


def _odd_value(value: Any, out: NDArray[Any]) -> str:
    """What is wrong with a value that should have been a row of `out`."""
    form = f"{value.dtype} of shape {value.shape}" if hasattr(value, "dtype") else repr(value)
    return f"the source gave {form:.80}, and its layout says {out.dtype} of shape {out.shape[1:]}"
