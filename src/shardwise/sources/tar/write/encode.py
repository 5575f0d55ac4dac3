"""Encoding a sample for a tar: member names and bytes, pictures by the field's extension.

Refuses names that would be read back as other names: keys are split from fields at the first dot
of the base name, fields are lower-cased, and `__name__` members are skipped.
"""

from __future__ import annotations

import io
import json
import numbers
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.base.pillow_import import import_pillow
from shardwise.sources.tar.scan.names import MAX_NAME

# Extension -> Pillow's format, and its options. 95 is where JPEG's loss stops being seen; encode
# the picture yourself, and give bytes, for another quality.
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "jpg": ("JPEG", {"quality": 95}),
    "jpeg": ("JPEG", {"quality": 95}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"quality": 95}),
}
_CHANNELS = (1, 3, 4)


def is_picture(value: object) -> bool:
    """Whether it is a Pillow image or an array."""
    if isinstance(value, np.ndarray):
        return True
    # If the value is an image of Pillow, Pillow is imported already.
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def encode_picture(value: Any, extension: str, where: str) -> bytes:
    """The file (one of `PICTURES`) of a Pillow image or uint8 `[height, width(, 1 | 3 | 4)]`."""
    pillow = import_pillow()
    if isinstance(value, np.ndarray):
        value = pillow.fromarray(_pixels(value, extension, where))
    name, options = PICTURES[extension]
    file = io.BytesIO()
    try:
        value.save(file, format=name, **options)
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: Pillow can't write this as {name}: {error}") from error
    return file.getvalue()


def _pixels(array: np.ndarray[Any, Any], extension: str, where: str) -> np.ndarray[Any, Any]:
    is_plane = array.ndim == 2
    is_image = array.ndim == 3 and array.shape[2] in _CHANNELS
    if array.dtype != np.uint8 or not (is_plane or is_image) or 0 in array.shape:
        raise ValueError(
            f"{where}: an array of {array.dtype} {list(array.shape)} is no picture: give uint8 "
            f"[height, width] or [height, width, 1, 3 or 4] for {extension}, or a field that ends "
            "in npy"
        )
    return np.ascontiguousarray(array[:, :, 0] if is_image and array.shape[2] == 1 else array)


_BOOKKEEPING = re.compile(r"__.*__", re.DOTALL)


def encode_sample(sample: Mapping[str, Any]) -> tuple[str, list[tuple[str, bytes]]]:
    """Turn a sample into its key and its members, `(name, bytes)`, sorted by field."""
    if "__key__" not in sample:
        raise ValueError(f"a sample needs a '__key__'; this one has {sorted(sample, key=str)}")
    key = sample["__key__"]
    _check_key(key)
    fields = [field for field in sample if field != "__key__"]
    if not fields:
        raise ValueError(f"the sample {key!r} has no field: nothing of it would be in the shard")
    for field in fields:
        _check_field(field, key)
    return key, [
        (f"{key}.{field}", _encode(sample[field], field, f"sample {key!r}, field {field!r}"))
        for field in sorted(fields)
    ]


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"'__key__' must be a str, not {key!r}: str(...) or f'{{n:08d}}' makes one")
    parts = key.split("/")
    problem = None
    if key.startswith("/"):
        problem = "is absolute: leave out the leading '/'"
    elif "" in parts:
        problem = "is empty or has an empty part: give it a name that does not end in '/'"
    elif ".." in parts or "." in parts:
        problem = "has a part '.' or '..': use plain names"
    elif "." in parts[-1]:
        end = key.index(".", len(key) - len(parts[-1]))
        problem = (
            f"has a dot in {parts[-1]!r}: it would be read as the key {key[:end]!r}, since a field "
            "begins at the first dot; replace the dot, for example by '_'"
        )
    elif any(_BOOKKEEPING.fullmatch(part) for part in parts):
        problem = "has a part of the form '__name__', which readers of tar shards skip: rename it"
    elif "\0" in key or not _is_utf8(key):
        problem = "can't be a name in a tar: leave out NUL and lone surrogates"
    if problem:
        raise ValueError(f"the key {key!r} {problem}")


def _check_field(field: object, key: str) -> None:
    if not isinstance(field, str):
        raise TypeError(f"sample {key!r}: a field's name must be a str, not {field!r}")
    problem = None
    if field.startswith("__") and field.endswith("__"):
        problem = "is a reader's own entry and no field: remove it from the sample"
    elif field.startswith("."):
        problem = f"begins with a dot: write {field.lstrip('.')!r}"
    elif "" in field.split("."):
        problem = "is empty or has an empty part: name it by an extension, such as 'jpg'"
    elif field != field.lower():
        problem = (
            f"has upper-case letters, and fields are read in lower case: use {field.lower()!r}"
        )
    elif _BOOKKEEPING.fullmatch(f"{key.rpartition('/')[2]}.{field}"):
        problem = "makes a name of the form '__name__', which readers of tar shards skip: rename it"
    elif "/" in field or "\0" in field or not _is_utf8(field):
        problem = "can't be an extension: leave out '/', NUL and lone surrogates"
    elif (num_bytes := len(f"{key}.{field}".encode())) > MAX_NAME:
        problem = f"and the key make a name of {num_bytes} bytes: at most {MAX_NAME} are read"
    if problem:
        raise ValueError(f"sample {key!r:.200}: the field {field!r} {problem}")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode(value: object, field: str, where: str) -> bytes:  # noqa: PLR0911 - one a kind
    """The bytes of a value; `where` names it in errors."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return _encode_text(value, where)
    extension = field.rpartition(".")[2]
    given, value = type(value), _without_torch(value, where)
    if extension in PICTURES and is_picture(value):
        return encode_picture(value, extension, where)
    if extension == "json" and not isinstance(value, np.ndarray):
        return _encode_json(value, where)
    if extension == "npy" and isinstance(value, np.ndarray | np.generic):
        return _encode_npy(value, where)
    if isinstance(value, numbers.Integral | np.bool_):
        return str(int(value)).encode()
    if isinstance(value, numbers.Real):
        return repr(float(value)).encode()
    kind = f"{given.__module__}.{given.__qualname__}"
    raise TypeError(
        f"{where}: can't write a {kind.removeprefix('builtins.')}; give bytes, str, int or float, "
        "a dict or list in a field that ends in json, an array or a tensor in one that ends in "
        "npy, or a Pillow image or pixels in one that ends in jpg, png or webp"
    )


def _without_torch(value: Any, where: str) -> Any:
    """A torch tensor as a NumPy array, one of no dimensions as a number."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != "torch" or not hasattr(value, "detach"):
        return value
    try:
        array = value.detach().cpu().numpy()
    except TypeError as error:
        raise TypeError(f"{where}: {error}: NumPy has no such type, convert the tensor") from error
    return array if array.ndim else array[()]


def _encode_text(value: str, where: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: the text is not UTF-8: {error}") from error


def _encode_json(value: object, where: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: not JSON: {error}") from error


def _encode_npy(value: np.ndarray[Any, Any] | np.generic, where: str) -> bytes:
    if value.dtype.hasobject:
        raise TypeError(
            f"{where}: an array of dtype {value.dtype} would be pickled: use numbers or strings "
            "of fixed length"
        )
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(value), allow_pickle=False)
    return file.getvalue()
