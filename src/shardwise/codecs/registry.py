"""The choice of a field's decoder: by the user, or by the field's extension.

Pickles have no entry: they can run any code, so they are decoded only by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.codecs.documents import json, msgpack, raw, text
from shardwise.codecs.images import image
from shardwise.codecs.numeric import floating, integer
from shardwise.codecs.optional import OptionalDecoder, optional
from shardwise.codecs.protocol import Decoder
from shardwise.codecs.tensors import npy, torch_tensor

_BY_EXTENSION: dict[str, Callable[[], Decoder]] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), image),
    **dict.fromkeys(("avif", "heic", "heif"), image),
    **dict.fromkeys(("txt", "text", "transcript"), text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id", "count"), integer),
    **dict.fromkeys(("json", "jsn"), json),
    **dict.fromkeys(("msgpack", "mp", "msg"), msgpack),
    **dict.fromkeys(("pt", "pth"), torch_tensor),
    "npy": npy,
}
_PICKLES = ("pkl", "pickle", "pyd")
_BY_TYPE: dict[Any, Callable[[], Decoder]] = {
    int: integer,
    float: floating,
    str: text,
    bytes: raw,
}


def default_decoder(field: str) -> Decoder | None:
    """The decoder that fits a field's extension, or None if none is known.

    The extension is what follows the last dot ("seg.png" is a png), in any case of letters.

    Examples:
        >>> default_decoder("seg.PNG")
        image('rgb')
        >>> default_decoder("pkl") is None
        True
    """
    make = _BY_EXTENSION.get(field.rpartition(".")[2].lower())
    return None if make is None else make()


def resolve(spec: Any, field: str) -> Decoder:
    """The decoder that the user means.

    Args:
        spec: `int`, `float`, `str` or `bytes`; "auto" or True for the field's default; else any
            callable of bytes, which is taken as it is.
        field: the field's name, for the default and for messages.

    Examples:
        >>> resolve(int, "cls"), resolve("auto", "json")
        (integer(), json())
    """
    if spec is True or (isinstance(spec, str) and spec == "auto"):
        decoder = default_decoder(field)
        if decoder is None:
            raise ValueError(_no_default(field))
        return decoder
    if isinstance(spec, OptionalDecoder):
        return spec if spec.decoder is None else optional(resolve(spec.decoder, field))
    if isinstance(spec, type) and spec in _BY_TYPE:
        return _BY_TYPE[spec]()
    if callable(spec):
        called: Decoder = spec
        return called
    raise TypeError(
        f"{field}={spec!r} is no decoder: use a callable of bytes, such as sw.image() or "
        "json.loads, one of int, float, str and bytes, or 'auto' for what the extension says"
    )


def _no_default(field: str) -> str:
    if field.rpartition(".")[2].lower() in _PICKLES:
        return (
            f"field {field!r} holds pickles, which can run any code, so there is no default "
            "decoder: name sw.unpickle() if you wrote the data yourself"
        )
    known = ", ".join(_BY_EXTENSION)
    return f"field {field!r} has no default decoder: name one. Known extensions: {known}"
