"""Decoders: bytes to values, one file a family. A decoder is any callable of bytes.

Three abilities, found by attribute, make whole batches fast: `row`, `decode_into` and
`decode_column` (see `Decoder`, `RowDecoder`, `ColumnDecoder`). A parameter `rng` makes a decoder a
keyed one (`KeyedDecoder`, `KeyedRowDecoder`). Importing this imports numpy only.
"""

from shardwise.codecs.audio import audio
from shardwise.codecs.documents import json, msgpack, raw, text
from shardwise.codecs.image_crop import CropBox, RandomCrop
from shardwise.codecs.images import image
from shardwise.codecs.media import media
from shardwise.codecs.numeric import array, floating, integer
from shardwise.codecs.protocol import (
    ColumnDecoder,
    Decoder,
    KeyedDecoder,
    KeyedRowDecoder,
    RowDecoder,
)
from shardwise.codecs.registry import default_decoder, resolve
from shardwise.codecs.tensors import npy, torch_tensor, unpickle
from shardwise.codecs.video import video

__all__ = [
    "ColumnDecoder",
    "CropBox",
    "Decoder",
    "KeyedDecoder",
    "KeyedRowDecoder",
    "RandomCrop",
    "RowDecoder",
    "array",
    "audio",
    "default_decoder",
    "floating",
    "image",
    "integer",
    "json",
    "media",
    "msgpack",
    "npy",
    "raw",
    "resolve",
    "text",
    "torch_tensor",
    "unpickle",
    "video",
]
