"""From what a source read to values: missing fields, decoders, and whose fault it was.

A block is read once and decoded twice over: row by row into sample dicts, or column by column for
a batch. Both give the same values. Every failure becomes a `DataError` that names url, key, field
and index (I6). Imports columns, errors and numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import BytesColumn, Columns
from shardwise.errors import DataError, ShardwiseError

__all__ = ["Block", "Field", "Layout", "decode_columns", "decode_rows", "in_place", "name_of"]

Layout = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataset's samples.

    Attributes:
        name: what it is called in a sample.
        decoder: bytes -> value, or None for the bytes themselves.
        required: it was asked for by name, so a sample without it is an error.
    """

    name: str
    decoder: Callable[[Any], Any] | None
    required: bool


@dataclass(slots=True)  # not frozen: that would cost a single sample a microsecond
class Block:
    """Samples as they were read, and what they are called in messages.

    Attributes:
        ids: int64 `[rows]`, the samples' ids in the dataset; `columns.ids` has the source's.
        columns: what the source read.
        url_of: the url of the shard that holds a sample, by its id in the source.
    """

    ids: NDArray[np.int64]
    columns: Columns
    url_of: Callable[[int], str]

    def error(self, row: int, message: str, *, field: str | None = None) -> DataError:
        """Make the error that says where the sample in this row lies."""
        return DataError(
            message,
            url=self.url_of(int(self.columns.ids[row])),
            key=self.columns.keys[row],
            field=field,
            index=int(self.ids[row]),
        )

    def blame(
        self, row: int, fn: Callable[..., Any], exc: Exception, *, field: str | None = None
    ) -> NoReturn:
        """Raise the error for `exc`, which a decoder or transform raised on the sample in this row.

        What is no fault of the data, such as a package that is not installed, stays as it is.
        """
        if isinstance(exc, ShardwiseError) and not isinstance(exc, DataError):
            raise exc
        told = exc.reason if isinstance(exc, DataError) else str(exc)
        message = f"{name_of(fn)} raised {type(exc).__name__}: {told}"
        raise self.error(row, message, field=field) from exc


def name_of(fn: Callable[..., Any]) -> str:
    """What a decoder or transform is called in messages."""
    return getattr(fn, "__qualname__", None) or repr(fn)


def in_place(field: Field) -> Layout | None:
    """Shape and dtype of a row, if the field can be decoded straight into the rows of an array.

    A field that samples may lack can't: nothing would be written to their rows.
    """
    row: Layout | None = getattr(field.decoder, "row", None)
    if row is None or not field.required or not hasattr(field.decoder, "decode_into"):
        return None
    return tuple(row[0]), np.dtype(row[1])


def decode_row(block: Block, row: int, fields: Sequence[Field]) -> dict[str, Any]:
    """One sample of a block; a field that it lacks is left out."""
    sample: dict[str, Any] = {"__key__": block.columns.keys[row]}
    columns = block.columns.fields
    for field in fields:
        column = columns[field.name]
        value = column[row]
        if value is not None:
            owned = bytes(value) if isinstance(column, BytesColumn) else value
            sample[field.name] = _decoded(block, row, field, owned)
        elif field.required:
            raise _missing(block, row, field)
    return sample


def decode_rows(block: Block, fields: Sequence[Field]) -> Iterator[dict[str, Any]]:
    """Yield one dict a sample; a field that it lacks is left out."""
    names = ("__key__", *(field.name for field in fields))
    owned = []
    pending = []
    for field in fields:
        column = block.columns.fields[field.name]
        whole = _is_whole(column)
        owned.append(_owned(column))
        if field.decoder is not None or not whole:
            pending.append(field)
    if not pending:
        for values in zip(block.columns.keys, *owned, strict=True):
            yield dict(zip(names, values, strict=True))
        return
    for row, values in enumerate(zip(block.columns.keys, *owned, strict=True)):
        sample = dict(zip(names, values, strict=True))
        for field in pending:
            value = sample[field.name]
            if value is not None:
                sample[field.name] = _decoded(block, row, field, value)
            elif field.required:
                raise _missing(block, row, field)
            else:
                del sample[field.name]
        yield sample


def decode_columns(
    block: Block, fields: Sequence[Field], out: Mapping[str, NDArray[Any]]
) -> dict[str, Sequence[Any]]:
    """Decode a block by column.

    A column is an array `[rows, ...]` where the decoder makes one; the array of `out` where there
    is one for the field, else a list with None for samples that lack the field.
    """
    decoded: dict[str, Sequence[Any]] = {"__key__": list(block.columns.keys)}
    for field in fields:
        column = block.columns.fields[field.name]
        whole = _is_whole(column)
        if field.required and not whole:
            row = next(row for row, value in enumerate(column) if value is None)
            raise _missing(block, row, field)
        if field.name in out:
            _decode_into(block, field, column, out[field.name])
            decoded[field.name] = out[field.name]  # type: ignore[assignment]
            continue
        values = _decode_at_once(field, column) if whole else None
        if values is None:
            values = _owned(column)
            if field.decoder is not None:
                for row, value in enumerate(values):
                    values[row] = value if value is None else _decoded(block, row, field, value)
        decoded[field.name] = values
    return decoded


def _is_whole(column: Sequence[Any]) -> bool:
    """Whether no sample lacks the field."""
    if isinstance(column, BytesColumn):
        # Blocks are short, many of one row: a list costs less than numpy's call.
        return min(column.lengths.tolist(), default=0) >= 0
    return all(value is not None for value in column)


def _owned(column: Sequence[Any]) -> list[Any]:
    """The values; stored bytes as bytes: a view would keep all that was read in memory."""
    return column.to_list() if isinstance(column, BytesColumn) else list(column)


def _missing(block: Block, row: int, field: Field) -> DataError:
    return block.error(
        row,
        f"the sample has no field {field.name!r}, which select() or decode() names: leave the "
        "field out there, or take the samples that have it with subset()",
        field=field.name,
    )


def _decoded(block: Block, row: int, field: Field, value: Any) -> Any:
    if field.decoder is None:
        return value
    try:
        return field.decoder(value)
    except Exception as exc:  # noqa: BLE001 - decoders are the user's code: anything may come
        block.blame(row, field.decoder, exc, field=field.name)


def _decode_at_once(field: Field, column: Sequence[Any]) -> Any:
    """Decode a whole column to an array or a list, or return None: do it row by row.

    So it is done with damaged values too: the row's own error then names the sample.
    """
    decode_column = getattr(field.decoder, "decode_column", None)
    if decode_column is None or not isinstance(column, BytesColumn):
        return None
    try:
        return decode_column(column)
    except Exception:  # noqa: BLE001 - decoders are the user's code; the rows will tell
        return None


def _decode_into(block: Block, field: Field, column: Sequence[Any], out: NDArray[Any]) -> None:
    """Decode into the rows of `out`: by one copy where a whole column comes at once."""
    values = _decode_at_once(field, column)
    if isinstance(values, np.ndarray) and (values.shape, values.dtype) == (out.shape, out.dtype):
        np.copyto(out, values)
        return
    decoder: Any = field.decoder
    for row, value in enumerate(column):
        try:
            # With the dots a scalar's row is a view too.
            decoder.decode_into(value, out[row, ...])
        except Exception as exc:  # noqa: BLE001 - as above
            block.blame(row, decoder, exc, field=field.name)
