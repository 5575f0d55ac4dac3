"""Nested values: columns of dicts and tuples, as columns of what they hold.

As torch's `default_collate` does: a column of dicts with the same keys becomes a dict of columns,
one of tuples of one length a tuple of columns, a list where they are tensors. Inner columns are
collated like any other, under dotted names, and joined again at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

# A name, or a dict of forms, or the type of a tuple and the forms of its entries.
_Form = Any


def split_nested(
    columns: Mapping[str, Any], whole: Collection[str]
) -> tuple[dict[str, Any], dict[str, _Form]]:
    """The columns with nested ones split into several, and the form of each that was nested.

    Columns in `whole` stay as they are, and so do those whose values differ in keys or length.

    >>> split_nested({"x": [{"a": 1}, {"a": 2}]}, ())
    ({'x.a': [1, 2]}, {'x': {'a': 'x.a'}})
    """
    flat: dict[str, Any] = {}
    forms: dict[str, _Form] = {}
    for name, column in columns.items():
        if name in whole or not (type(column) is list and _is_nested(column)):
            flat[name] = column
        else:
            forms[name] = _split(name, column, flat, columns)
    return flat, forms


def join_nested(batch: dict[str, Any], forms: Mapping[str, _Form]) -> dict[str, Any]:
    """The collated columns with the nested ones in their forms; a mask stays under its own name."""
    joined = {name: _join_value(form, batch) for name, form in forms.items()}
    return {**batch, **joined}


def _split(name: str, values: list[Any], flat: dict[str, Any], taken: Collection[str]) -> _Form:
    if not _is_nested(values):
        while name in taken or name in flat:
            name += "'"
        flat[name] = values
        return name
    first = values[0]
    if isinstance(first, Mapping):
        return {
            key: _split(f"{name}.{key}", [value[key] for value in values], flat, taken)
            for key in first
        }
    entries = enumerate(zip(*values, strict=True))
    return type(first), [
        _split(f"{name}.{number}", list(entry), flat, taken) for number, entry in entries
    ]


def _is_nested(values: Sequence[Any]) -> bool:
    first = values[0] if values else None
    if isinstance(first, Mapping) and first:
        return all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values)
    if isinstance(first, tuple) and first:
        return all(type(v) is type(first) and len(v) == len(first) for v in values)
    return False


def _join_value(form: _Form, batch: dict[str, Any]) -> Any:
    if isinstance(form, str):
        return batch.pop(form)
    if isinstance(form, dict):
        return {key: _join_value(each, batch) for key, each in form.items()}
    kind, forms = form
    entries = [_join_value(each, batch) for each in forms]
    return kind(*entries) if hasattr(kind, "_fields") else tuple(entries)
