"""Decoders: bytes to values, one file per family. A decoder is any callable of bytes.

Three abilities, found by attribute, make whole batches fast: `row`, `decode_into` and
`decode_column` (see `Decoder`, `RowDecoder`, `ColumnDecoder`). A parameter `rng` makes a decoder a
keyed one (`KeyedDecoder`, `KeyedRowDecoder`). Importing this imports numpy only. Decoders that
extensions add are attributes here, too.
"""

from typing import Any

from shardwise.base.plugins import find, has
from shardwise.codecs.documents import json, msgpack, raw, text
from shardwise.codecs.image_crop import CropBox, RandomCrop
from shardwise.codecs.images import image
from shardwise.codecs.numeric import array, floating, integer
from shardwise.codecs.optional import optional
from shardwise.codecs.protocol import (
    ColumnDecoder,
    Decoder,
    KeyedDecoder,
    KeyedRowDecoder,
    RowDecoder,
)
from shardwise.codecs.registry import default_decoder, resolve
from shardwise.codecs.tensors import npy, torch_tensor, unpickle

__all__ = [
    "ColumnDecoder", "CropBox", "Decoder", "KeyedDecoder", "KeyedRowDecoder", "RandomCrop",
    "RowDecoder", "array", "default_decoder", "floating", "image", "integer", "json", "msgpack",
    "npy", "optional", "raw", "resolve", "text", "torch_tensor", "unpickle",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if not has("decoders", name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return find("decoders", name)
