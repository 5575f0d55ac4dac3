"""Samples of any source as tar takes them: names that are read back as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def as_tar_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with the values of a table as fields of a tar.

    Arrays and lists of numbers get the extension `.npy`, documents `.json`; dots in the last part
    of a key become `_`; names are in lower case. What is missing (None) is left out.

    >>> as_tar_sample({"__key__": "a.b", "Name": "x", "ids": [1, 2], "meta": {"n": 1}})
    {'__key__': 'a_b', 'name': 'x', 'ids.npy': array([1, 2]), 'meta.json': {'n': 1}}
    """
    made: dict[str, Any] = {"__key__": tar_key(str(sample["__key__"]))}
    for field, value in sample.items():
        if field == "__key__" or value is None:
            continue
        extension, encoded = _extension(field, value)
        made[f"{field.lower()}{extension}"] = encoded
    return made


def tar_key(key: str) -> str:
    """A key whose last part has no dots, at which fields start in a tar."""
    directory, slash, name = key.rpartition("/")
    return f"{directory}{slash}{name.replace('.', '_')}"


def _extension(field: str, value: Any) -> tuple[str, Any]:
    """The extension to append to a field's name, and the value that is written."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list):
        are_numbers = bool(value) and all(isinstance(each, int | float) for each in value)
        array = np.asarray(value) if are_numbers else None
        value = value if array is None or array.dtype.kind not in "biuf" else array
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biufcUSMm":
            return ("" if field.endswith("npy") else ".npy"), value
        value = value.tolist()
    if isinstance(value, Mapping | list | tuple | bool):
        return ("" if field.endswith("json") else ".json"), value
    return "", value
