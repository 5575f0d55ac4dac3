"""Fields whose values can't be stacked as they are: nested ones, and ragged ones.

Nested values travel as torch's `default_collate` does: a column of dicts with the same keys becomes
a dict of columns, one of tuples of one length a tuple of columns, under dotted names until the end.
Ragged fields are warned of once, refused, or padded: decided by the values of a batch alone, after
its chunks are joined, so that every executor decides alike (I5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice
from shardwise.base.errors import DataError
from shardwise.engine.batch.padding import Padding, description_of, form_of, holds_lists

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


Ragged = Literal["list", "error", "pad", "nested"]
RAGGED: tuple[Ragged, ...] = get_args(Ragged)

_logger = logging.getLogger("shardwise")
# Most lists hold only these, and are not searched value by value.
_NEVER_STACKED = (str, bytes, dict)


class RaggedFields:
    """The policy for fields whose values differ in shape.

    "list" leaves them lists and warns once per field; "error" raises; "pad" pads every field of
    arrays whose shape no decoder fixes; "nested" leaves them to `Output`. Whatever it is, fields
    of `rules` are padded with those values, see `SourceTraits.padding`.
    """

    def __init__(
        self,
        ragged: Ragged,
        describe: Callable[[int], str],
        padding: Padding | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        check_choice("ragged", ragged, RAGGED)
        self.ragged = ragged
        self.padding = padding or Padding()
        self._rules = rules or {}
        self._describe = describe
        self._warned: set[str] = set()

    def settle(
        self,
        data: Mapping[str, Any],
        *,
        fixed: Collection[str],
        keys: Sequence[str],
        ids: NDArray[np.int64],
    ) -> dict[str, Any]:
        """The collated columns of a batch, with the policy applied; DataError if it refuses them.

        The shape of `fixed` fields is known before; `keys` and `ids` are the samples'.
        """
        own = {name: rule for name, rule in self._rules.items() if name in data}
        if own:
            padded = {name: Padding.by_rule(rule, data[name]) for name, rule in own.items()}
            data, fixed = {**data, **padded}, {*fixed, *own}
        if self.ragged == "pad":
            return self.padding.columns(data, fixed=fixed)
        for name, column in data.items() if self.ragged != "nested" else ():
            if name not in fixed and isinstance(column, list) and name not in self._warned:
                odd = odd_value(column)
                if odd is not None:
                    self._warn(name, *odd, remedy=remedy_for(column), keys=keys, ids=ids)
        return dict(data)

    def _warn(
        self,
        name: str,
        row: int,
        why: str,
        *,
        remedy: str,
        keys: Sequence[str],
        ids: NDArray[np.int64],
    ) -> None:
        reason = f"the values of {name!r} can't be stacked: {why}"
        if self.ragged == "error":
            raise DataError(f"{reason}; {remedy}", key=keys[row], field=name, index=int(ids[row]))
        self._warned.add(name)
        _logger.warning(
            "%s (%s, key %r), so it is a list in such batches and an array in others; %s; "
            "ragged='error' refuses them",
            reason,
            self._describe(int(ids[row])),
            keys[row],
            remedy,
        )


def remedy_for(values: Sequence[Any]) -> str:
    """The change that would make a tensor of a field's values, as the end of a sentence."""
    forms = list(map(form_of, values))
    if any(value is None for value in values):
        return (
            "say what stands for a null, by fill= of sw.parquet and sw.lance or in a map(), or "
            "leave such samples out with subset()"
        )
    shapes = [form[0] for form in forms if isinstance(form, tuple)]
    if len(shapes) < len(values) or len(set(map(len, shapes))) > 1:
        return "give all of them one type and number of dimensions, in decode() or a map()"
    if len({form[1] for form in forms if form[0] != (0,)}) > 1:
        return "give all of them one dtype, in decode() or a map()"
    return "give its decoder a size= or shape, so that all are alike, or pad them with ragged='pad'"


def odd_value(values: Sequence[Any]) -> tuple[int, str] | None:
    """The first value that keeps numbers or arrays from being stacked: its row, and why.

    None without one, and for fields that are lists in every batch.
    """
    if not values or isinstance(values[0], _NEVER_STACKED):
        return None
    forms = list(map(form_of, values))
    first = next((form for form in forms if form is not None), None)
    row = next((row for row, form in enumerate(forms) if form != first), None)
    if first is None or row is None or holds_lists(values):
        return None
    return row, f"{description_of(values[row])} beside {description_of(values[forms.index(first)])}"
