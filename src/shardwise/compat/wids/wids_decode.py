"""The decoders of wids: a sample's streams to values, by the extensions of its fields."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from shardwise.base.errors import DataError, MissingExtraError
from shardwise.base.pillow_import import import_pillow
from shardwise.codecs.documents import msgpack
from shardwise.codecs.tensors import torch_tensor

Sample = dict[str, Any]

_IMAGES = (
    "jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "bmp", "gif", "tif", "tiff",
)  # fmt: skip


def check_keys(sample: Mapping[str, Any]) -> None:
    for key in sample:
        if not key.startswith((".", "__")):
            raise ValueError(
                f"the field {key!r}: fields begin with a dot here, such as '.jpg'; rename what a "
                "transformation adds, or put the decoder before it"
            )


def default_decoder(
    sample: Sample,
    format: str | bool | None = True,  # noqa: A002 - wids' name
    gz_update_key: bool = False,
    unpickle: bool = False,
) -> Sample:
    """Decode a sample: `decode_all_gz`, `decode_basic`, then images to "PIL" or "numpy".

    With True, as in wids, None or False as the format, images stay bytes.
    """
    decoders = {"pil": decode_images_to_pil, "numpy": decode_images_to_numpy}
    name = format.lower() if isinstance(format, str) else None
    if name is not None and name not in decoders:
        raise ValueError(f"format={format!r}: 'PIL' or 'numpy', or None for no images")
    result = decode_all_gz(dict(sample), update_key=gz_update_key)
    result = decode_basic(result, unpickle=unpickle)
    return result if name is None else decoders[name](result)


def decode_all_gz(
    sample: Sample,
    format: Any = True,  # noqa: A002, ARG001 - decoders are called alike
    update_key: bool = True,
) -> Sample:
    """Unpack fields such as ".txt.gz", in place; a plain ".gz" stays as it is."""
    check_keys(sample)
    for key in [key for key in sample if key.lower().endswith(".gz") and key.count(".") > 1]:
        sample[key] = io.BytesIO(_decode_field(sample, key, gzip.decompress))
        if update_key:
            sample[key[: -len(".gz")]] = sample.pop(key)
    return sample


def decode_basic(
    sample: Sample,
    format: Any = True,  # noqa: A002, ARG001
    unpickle: bool = False,
) -> Sample:
    """Decode all fields but images, in place.

    `.txt .text` to str, `.cls .cls2` to int, `.json`, `.npy` to an array (without objects), `.mp`
    (msgpack), `.pth .pt` (tensors and plain values only) and `.safetensors`. A ".gz" after these
    counts as unpacked already.
    """
    # Pickles run any code, so `unpickle` must be set.
    pickles = dict.fromkeys(("pkl", "pickle"), pickle.loads if unpickle else _refuse_pickle)
    return _decode(sample, _BASIC | pickles, skips_gz=True)


def decode_images_to_pil(sample: Sample, format: Any = True) -> Sample:  # noqa: A002, ARG001
    """Decode images to PIL images with all their pixels loaded, in place."""
    return _decode(sample, dict.fromkeys(_IMAGES, _pil))


def decode_images_to_numpy(sample: Sample, format: Any = True) -> Sample:  # noqa: A002, ARG001
    """Decode images to uint8 arrays `[height, width]` or `[height, width, channels]`, in place."""
    return _decode(sample, dict.fromkeys(_IMAGES, lambda data: np.asarray(_pil(data))))


def _decode(
    sample: Sample, decoders: Mapping[str, Callable[[bytes], Any]], *, skips_gz: bool = False
) -> Sample:
    check_keys(sample)
    for key in list(sample):
        name = key.lower().removesuffix(".gz") if skips_gz else key.lower()
        _, dot, extension = name.rpartition(".")
        if dot and not key.startswith("__") and extension in decoders:
            sample[key] = _decode_field(sample, key, decoders[extension])
    return sample


def _decode_field(sample: Sample, key: str, decoder: Callable[[bytes], Any]) -> Any:
    value = sample[key]
    if not isinstance(value, bytes | bytearray | memoryview) and not hasattr(value, "read"):
        return value  # decoded already
    data = value.read() if hasattr(value, "read") else bytes(value)
    try:
        return decoder(data)
    except MissingExtraError:
        raise
    except Exception as error:
        # Decoders of five packages, each with its own errors.
        reason = error.reason if isinstance(error, DataError) else f"can't be decoded: {error}"
        raise DataError(
            reason, url=sample.get("__shard__"), key=sample.get("__key__"), field=key
        ) from error


def _load_safetensors(data: bytes) -> Any:
    try:
        from safetensors.torch import load
    except ImportError as error:
        raise DataError("safetensors is not installed: pip install safetensors") from error
    return load(data)


def _refuse_pickle(_data: bytes) -> Any:
    raise DataError(
        "a pickle, which runs any code when it is loaded: where you trust it, give "
        "transformations=[partial(default_decoder, format='PIL', unpickle=True)]"
    )


def _pil(data: bytes) -> Any:
    image = import_pillow().open(io.BytesIO(data))
    # Pillow reads on first use: damage must show here, where the sample is known.
    image.load()
    return image


_BASIC: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text"), partial(str, encoding="utf-8")),
    **dict.fromkeys(("cls", "cls2"), int),
    "json": json.loads,
    "npy": lambda data: np.load(io.BytesIO(data), allow_pickle=False),
    "mp": msgpack(),
    **dict.fromkeys(("pt", "pth"), torch_tensor()),
    "safetensors": _load_safetensors,
}
