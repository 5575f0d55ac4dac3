"""The library's own decoders in place of a pipeline's, where they give the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from json import loads
from typing import Any

from shardwise.codecs import image, json, npy, text
from shardwise.compat.native.samples import DecodeField
from shardwise.compat.webdataset import autodecode
from shardwise.compat.webdataset.autodecode import Decoder, ImageHandler
from shardwise.dataset import Dataset

# spec: (layout, dtype) of the same pixels. What stands in `_TENSORS` is arrays
# here, which the loader makes tensors of, but functions of the user would meet arrays.
_ARRAYS = {"rgb8": ("HWC", "uint8"), "rgb": ("HWC", "float32")}
_TENSORS = {
    "torchrgb8": ("CHW", "uint8"),
    "torchrgb": ("CHW", "float32"),
    "torch": ("CHW", "float32"),
}
# The decoder of text in the pipelines' own table, unless the user changes it.
_TEXT = autodecode.decoders["txt"]
# Files in which shardwise's decoder gives the pixels that Pillow gives.
_SAME_PIXELS = frozenset({"jpg", "jpeg"})


def list_decoders(
    decoder: Decoder, fields: Iterable[str], *, is_last: bool
) -> dict[str, Callable[[bytes], Any]]:
    """A decoder per field, for the fields that the pipeline's decoder may change."""
    return {
        field: _own(decoder, field, is_last=is_last) or DecodeField(decoder.decode1, field)
        for field in fields
        if decoder.only is None or field in decoder.only
    }


def decode_optional(dataset: Dataset, decoders: Mapping[str, Any]) -> Dataset:
    if not decoders:
        return dataset
    decoded = dataset.decode(**decoders).transforms
    required = dataset.transforms.required
    return Dataset(dataset.source, _transforms=replace(decoded, required=required))


def _own(decoder: Decoder, field: str, *, is_last: bool) -> Callable[[bytes], Any] | None:
    """The library's decoder of the field, if it gives what the pipeline's gives."""
    extension = field.rpartition(".")[2].lower()
    for handler in decoder.handlers:
        if handler is autodecode.gzfilter:
            if extension == "gz":
                return None
        elif isinstance(handler, ImageHandler):
            if extension in handler.extensions:
                return _image(handler.imagespec, extension, is_last=is_last)
        elif handler is autodecode.basichandlers:
            return _basic(field.rpartition(".")[2])
        else:
            # Only the user's function knows what it decodes.
            return None
    return None


def _image(spec: str, extension: str, *, is_last: bool) -> Callable[[bytes], Any] | None:
    found = _ARRAYS.get(spec) or (_TENSORS.get(spec) if is_last else None)
    if found is None or extension not in _SAME_PIXELS:
        return None
    layout, dtype = found
    own: Callable[[bytes], Any] = image("rgb", layout=layout, dtype=dtype)  # type: ignore[arg-type]
    return own


def _basic(extension: str) -> Callable[[bytes], Any] | None:
    known = autodecode.decoders.get(extension)
    own: dict[Any, Callable[[bytes], Any]] = {
        int: int,
        loads: json(),
        _TEXT: text(),
        autodecode.npy_loads: npy(),
    }
    return None if known is None else own.get(known)
