"""Decoders of text, JSON and MessagePack.

The value owns its data; bytes that can't be decoded raise ValueError.
"""

from __future__ import annotations

import importlib
from json import loads
from typing import Any

from shardwise.base.errors import MissingExtraError
from shardwise.codecs.protocol import PlainDecoder


class Text(PlainDecoder):
    """A decoder of UTF-8; `text` makes it."""

    def __call__(self, data: bytes | memoryview | str) -> str:
        return data if isinstance(data, str) else str(data, "utf-8")


def text() -> Text:
    r"""Decode UTF-8 to str, exactly as stored: no line ending is changed, no byte is skipped.

    `str` as a decoder means this.

    Raises:
        ValueError: (when called, as UnicodeDecodeError) it is not UTF-8.

    Examples:
        >>> text()(b"caf\xc3\xa9")
        'café'
    """
    return Text()


class Raw(PlainDecoder):
    """The decoder that leaves bytes as they are; `raw` makes it."""

    def __call__(self, data: bytes | memoryview) -> bytes:
        return bytes(data)


def raw() -> Raw:
    """Leave the payload as bytes. `bytes` as a decoder means this."""
    return Raw()


class Json(PlainDecoder):
    """A decoder of JSON; `json` makes it."""

    def __call__(self, data: bytes | memoryview | str) -> Any:
        try:
            return loads(data if isinstance(data, str) else bytes(data))
        except RecursionError as exc:
            raise ValueError(f"the JSON of {len(data)} bytes is nested too deeply") from exc


def json() -> Json:
    """Decode a JSON document, in UTF-8, UTF-16 or UTF-32, to Python objects.

    Raises:
        ValueError: (when called) it is not JSON, or is nested too deeply.

    Examples:
        >>> json()(b'{"label": 3}')
        {'label': 3}
    """
    return Json()


class Msgpack(PlainDecoder):
    """A decoder of MessagePack; `msgpack` makes it."""

    def __call__(self, data: bytes | memoryview) -> Any:
        try:
            package = importlib.import_module("msgpack")
        except ImportError as exc:
            raise MissingExtraError("msgpack is not installed", extra="msgpack") from exc
        try:
            return package.unpackb(data, strict_map_key=True)
        except ValueError as exc:
            # msgpack's own errors often have no text.
            reason = str(exc) or type(exc).__name__
            raise ValueError(f"{len(data)} bytes are no MessagePack document: {reason}") from exc


def msgpack() -> Msgpack:
    """Decode a MessagePack document to Python objects: text as str, keys of maps str or bytes.

    Raises:
        ValueError: (when called) it is not MessagePack, or has bytes after its end.
        MissingExtraError: (when called) msgpack is not installed.
    """
    return Msgpack()
