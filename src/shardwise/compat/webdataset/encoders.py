"""Encode a sample's values by the extension of their field; bytes and text stay as they are."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch

from shardwise.base.pillow_import import import_pillow
from shardwise.compat.webdataset import tenbin

_PILLOW_NAMES = {"JPG": "JPEG", "TIF": "TIFF", "IMG": "PPM", "IMAGE": "PPM", "PNM": "PPM"}
# Three names of one family: Pillow writes them all as "PPM", by the image's mode.
_NETPBM_MODES = {"PBM": "1", "PGM": "L", "PPM": "RGB"}
# The tolerance for float pixels outside of 0 to 1: rounding, not another scale.
_TOLERANCE = 1e-3


def imageencoder(image: Any, format: str = "PNG") -> bytes:  # noqa: A002 - WebDataset's name
    """Encode an image: JPEG and TIFF at the quality 100, the others without loss."""
    pillow = import_pillow()
    if isinstance(image, np.ndarray):
        image = pillow.fromarray(_as_pixels(image))
    elif not isinstance(image, pillow.Image):
        raise TypeError(f"an image must be an array or a Pillow image, not {type(image).__name__}")
    name = format.upper()
    if name in _NETPBM_MODES:
        image, name = image.convert(_NETPBM_MODES[name]), "PPM"
    name = _PILLOW_NAMES.get(name, name)
    options: dict[str, Any] = {"quality": 100} if name in ("JPEG", "TIFF") else {}
    with io.BytesIO() as file:
        image.save(file, format=name, **options)
        return file.getvalue()


def _as_pixels(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if image.dtype in (np.float32, np.float64):
        low, high = float(image.min(initial=0)), float(image.max(initial=0))
        # Written so that NaN, too, is out of range.
        if not (low > -_TOLERANCE and high < 1 + _TOLERANCE):
            raise ValueError(f"image values out of range {low} {high}: scale them to 0 ... 1")
        # Rounded: pixels that went through arithmetic come out as they were.
        image = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    if image.ndim == 3 and image.shape[2] == 1:
        return image[:, :, 0]
    if image.ndim != 2 and not (image.ndim == 3 and image.shape[2] in (3, 4)):
        raise ValueError(
            f"an array of shape {image.shape} is no image: [height, width(, 1, 3 or 4)]"
        )
    return image


def bytestr(data: Any) -> bytes:
    return data if isinstance(data, bytes) else str(data).encode("ascii")


def torch_dumps(data: Any) -> bytes:
    file = io.BytesIO()
    torch.save(data, file)
    return file.getvalue()


def numpy_dumps(data: np.ndarray[Any, Any]) -> bytes:
    """Encode an array as `numpy.save` does; one of Python objects is refused."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(data), allow_pickle=False)
    return file.getvalue()


def numpy_npz_dumps(data: dict[str, np.ndarray[Any, Any]]) -> bytes:
    if not isinstance(data, dict) or not all(
        isinstance(name, str) and isinstance(array, np.ndarray) for name, array in data.items()
    ):
        raise TypeError("a field .npz needs a dict of str to arrays")
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **data)
    return file.getvalue()


def tenbin_dumps(x: Any) -> memoryview:
    return memoryview(tenbin.encode_buffer(x if isinstance(x, list) else [x]))


def cbor_dumps(x: Any) -> bytes:
    return bytes(importlib.import_module("cbor").dumps(x))


def mp_dumps(x: Any) -> bytes:
    return bytes(importlib.import_module("msgpack").packb(x))


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    d.update(dict.fromkeys(keys.split() if isinstance(keys, str) else keys, value))


def make_handlers() -> dict[str, Callable[[Any], Any]]:
    handlers: dict[str, Callable[[Any], Any]] = {}
    for keys, encoder in (
        ("cls cls2 class count index inx id", lambda x: str(x).encode("ascii")),
        ("txt text transcript html htm", str.encode),
        ("pyd pickle", pickle.dumps),
        ("pth", torch_dumps),
        ("npy", numpy_dumps),
        ("npz", numpy_npz_dumps),
        ("ten tenbin tb", tenbin_dumps),
        ("json jsn", lambda x: json.dumps(x).encode("utf-8")),
        ("mp msgpack msg", mp_dumps),
        ("cbor", cbor_dumps),
    ):
        add_handlers(handlers, keys, encoder)
    for keys in ("jpg jpeg img image", "png", "pbm", "pgm", "ppm", "tiff tif"):
        add_handlers(handlers, keys, partial(imageencoder, format=keys.split()[0]))
    return handlers


default_handlers = make_handlers()


def encode_based_on_extension1(data: Any, tname: str, handlers: dict[str, Any]) -> Any:
    if tname.startswith("_"):
        if not isinstance(data, str):
            raise ValueError(f"the values of metadata must be of string type: {tname}={data!r}")
        return data
    field = tname.removesuffix(".gz")
    if isinstance(data, str):
        data = data.encode("utf-8")
    elif not isinstance(data, bytes):
        extension = field.rpartition(".")[2].lower()
        if extension not in handlers:
            raise ValueError(
                f"no handler found for {extension}: give bytes, or an encoder, as in "
                f"TarWriter(..., encoder={{{extension!r}: function}})"
            )
        data = handlers[extension](data)
    # Without a time in it, equal values give equal bytes.
    return gzip.compress(data, mtime=0) if field != tname else data


def encode_based_on_extension(sample: dict[str, Any], handlers: dict[str, Any]) -> dict[str, Any]:
    encoded = {}
    for field, value in sample.items():
        try:
            encoded[field] = encode_based_on_extension1(value, field, handlers)
        except Exception as error:
            where = f"sample {sample.get('__key__')!r}, field {field!r}, a {type(value).__name__}"
            if isinstance(error, UnicodeError):  # its text is made of its attributes
                raise ValueError(f"{where}: {error}") from error  # noqa: TRY004
            # The error stays of its class: programs catch those of their encoders.
            if len(error.args) < 2:
                error.args = (f"{where}: {error}" if error.args else where,)
            if where not in str(error):
                error.add_note(f"in the {where}")
            raise
    return encoded


def make_encoder(spec: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    if spec is False or spec is None:
        return lambda sample: sample
    if callable(spec):
        encoder: Callable[[dict[str, Any]], dict[str, Any]] = spec
        return encoder
    if spec is not True and not isinstance(spec, dict):
        raise ValueError(f"{spec}: unknown decoder spec; True, False, a dict or a function")
    handlers = default_handlers if spec is True else spec
    return lambda sample: encode_based_on_extension(sample, handlers)
