"""Decoders: bytes to values, one file a family. A decoder is any callable of bytes.

Three abilities, found by attribute, make whole batches fast: `row`, `decode_into` and
`decode_column` (see `Decoder`, `RowDecoder`, `ColumnDecoder`). Importing this imports numpy only.
"""

from shardwise.codecs.documents import json, msgpack, raw, text
from shardwise.codecs.images import image
from shardwise.codecs.numeric import array, floating, integer
from shardwise.codecs.protocol import ColumnDecoder, Decoder, RowDecoder
from shardwise.codecs.registry import default_decoder, resolve
from shardwise.codecs.tensors import npy, torch_tensor, unpickle

__all__ = [
    "ColumnDecoder",
    "Decoder",
    "RowDecoder",
    "array",
    "default_decoder",
    "floating",
    "image",
    "integer",
    "json",
    "msgpack",
    "npy",
    "raw",
    "resolve",
    "text",
    "torch_tensor",
    "unpickle",
]
