"""Decoding the fields of a sample by their extensions: `.decode(...)` of WebDataset.

A decoder is a function of a field's name, with a dot before it, and its bytes; it returns None for
what it does not decode. Pickles and torch files can run any code: they are decoded as WebDataset
does, unless `utils.enforce_security` or `pytorch_weights_only` is set.
"""

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
from shardwise.base.shown import shown
from shardwise.codecs import image
from shardwise.codecs.documents import msgpack
from shardwise.codecs.image_backends import Pixels, write_planes
from shardwise.codecs.image_headers import is_plain_jpeg
from shardwise.compat.environment import variable
from shardwise.compat.webdataset import tenbin, utils
from shardwise.compat.webdataset.media import torch_audio, torch_video

# Whether `.pth` fields may hold tensors and plain values only. Programs assign it, here or in the
# package.
pytorch_weights_only = variable("WDS_PYTORCH_WEIGHTS_ONLY") == "1"


def torch_loads(data: bytes) -> Any:
    """Decode a file of `torch.save`, with its tensors on the CPU; it may run any code."""
    utils.refuse_unsafe("torch.loads")
    package = importlib.import_module(__name__.rpartition(".")[0])
    only = pytorch_weights_only or bool(getattr(package, "pytorch_weights_only", False))
    return torch.load(io.BytesIO(data), weights_only=only, map_location="cpu")


def unpickle_loads(data: bytes) -> Any:
    """Decode a pickle, which may run any code; `utils.enforce_security` forbids it."""
    utils.refuse_unsafe("Unpickling")
    return pickle.loads(data)  # noqa: S301 - what WebDataset does, and its switch forbids


tenbin_loads = tenbin.decode_buffer
msgpack_loads = msgpack()


def npy_loads(data: bytes) -> np.ndarray[Any, Any]:
    """Decode an array of `numpy.save`; pickled elements are refused."""
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def npz_loads(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def cbor_loads(data: bytes) -> Any:
    return importlib.import_module("cbor").loads(data)


# Decoders by extension. Users may change it.
decoders: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), partial(str, encoding="utf-8")),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("pkl", "pickle", "pyd"), unpickle_loads),
    "pth": torch_loads,
    **dict.fromkeys(("ten", "tb"), tenbin_loads),
    **dict.fromkeys(("mp", "msg"), msgpack_loads),
    "npy": npy_loads,
    "npz": npz_loads,
    "cbor": cbor_loads,
}


def basichandlers(key: str, data: bytes) -> Any:
    decode = decoders.get(key.rpartition(".")[2])
    return None if decode is None else decode(data)


def call_extension_handler(
    key: str, data: bytes, f: Callable[[bytes], Any], extensions: Iterable[str]
) -> Any:
    name = "." + key.lower()
    return f(data) if any(name.endswith("." + extension) for extension in extensions) else None


def handle_extension(extensions: str, f: Callable[[bytes], Any]) -> Callable[[str, bytes], Any]:
    """Make a decoder of a function of bytes, for extensions such as "jpg png seg.png"."""
    return partial(call_extension_handler, f=f, extensions=extensions.lower().split())


# Formats that Pillow decodes by itself. It also knows the names of formats for other data (HDF5,
# GRIB, BUFR, FITS, MPEG, PostScript, Windows metafiles): those fields are not images to us.
IMAGE_EXTENSIONS = (  # noqa: SIM905 - fifty words are easier to read in a row
    "apng blp bmp bw cur dcx dds dib eps flc fli ftc ftu gbr gif icb icns ico iim im j2c j2k jfif "
    "jp2 jpc jpe jpeg jpf jpg jpx msp pbm pcd pcx pgm png pnm ppm psd pxr ras rgb rgba sgi tga tif "
    "tiff vda vst webp xbm xpm"
).split()

# spec: (kind of result, kind of elements, colours)
imagespecs: dict[str, tuple[str, str | None, str]] = {
    f"{prefix}{colours}{ending}": (kind, elements, colours)
    for prefix, kind in (("", "numpy"), ("torch", "torch"))
    for ending, elements in (("8", "uint8"), ("", "float"))
    for colours in ("l", "rgb", "rgba")
}
imagespecs |= {f"pil{colours}": ("pil", None, colours) for colours in ("l", "rgb", "rgba")}
imagespecs |= {"torch": imagespecs["torchrgb"], "pil": imagespecs["pilrgb"]}

# The library's own codec gives the same pixels as Pillow in two thirds of the time.
_JPEG = {colours: image(colours, layout="HWC") for colours in ("rgb", "rgba")}


class ImageHandler:
    """A decoder of image fields; it leaves fields with other extensions to the next decoder.

    The spec names the result: `l`, `rgb` or `rgba`, as a NumPy array `[height, width, channels]`
    of float32 from 0 to 1; with `8` appended, of uint8; with `torch` before it, as a tensor
    `[channels, height, width]`; with `pil` before it, as a Pillow image. `l` has no channel axis.
    """

    def __init__(self, imagespec: str, extensions: Iterable[str] = IMAGE_EXTENSIONS) -> None:
        if imagespec not in imagespecs:
            known = ", ".join(imagespecs)
            raise ValueError(f"Unknown imagespec: {imagespec}; there are {known}")
        self.imagespec = imagespec
        self.extensions = set(extensions)

    def __repr__(self) -> str:
        return f"ImageHandler({self.imagespec!r})"

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode a field; return None if its extension is not in `extensions`."""
        if key.rpartition(".")[2].lower() not in self.extensions:
            return None
        kind, elements, colours = imagespecs[self.imagespec]
        if kind == "pil":
            return _pillow_image(data, colours)
        pixels: Any = _pixels(data, colours)
        if kind == "torch":
            planes = np.empty((*pixels.shape[2:], *pixels.shape[:2]), np.uint8)
            if pixels.ndim == 3:
                write_planes(pixels, planes)
            else:
                planes[:] = pixels
            pixels = planes
        if elements == "float":
            pixels = np.divide(pixels, np.float32(255), dtype=np.float32)
        return torch.from_numpy(pixels) if kind == "torch" else pixels


def _pixels(data: bytes, colours: str) -> Pixels:
    codec = _JPEG.get(colours)
    if codec is not None and is_plain_jpeg(memoryview(data)):
        try:
            return codec(data)
        except ValueError:
            # Damaged, or larger than the codec allows: Pillow has settings of the user's for both.
            pass
    return np.asarray(_pillow_image(data, colours))


def _pillow_image(data: bytes, colours: str) -> Any:
    with import_pillow().open(io.BytesIO(data)) as opened:
        opened.load()
        return opened.convert(colours.upper())


imagehandler = ImageHandler


class Continue:
    """The result of a decoder that gives the next decoders another name and other bytes."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key, self.data = key, data


def gzfilter(key: str, data: bytes) -> Continue | None:
    return Continue(key[:-3], gzip.decompress(data)) if key.endswith(".gz") else None


default_pre_handlers: list[Callable[[str, Any], Any]] = [gzfilter]
default_post_handlers: list[Callable[[str, Any], Any]] = [basichandlers]


class DecodingError(Exception):
    """A field `k` could not be decoded; the message names field, key and url."""

    def __init__(self, url: Any = None, key: Any = None, k: Any = None, sample: Any = None) -> None:
        super().__init__(url, key, k)
        self.url = url
        self.key = key
        self.k = k
        self.sample = sample

    def __str__(self) -> str:
        if self.key is None and self.k is None:
            # torch's DataLoader makes the error again in the parent, with the text alone.
            return "a sample can't be decoded" if self.url is None else str(self.url)
        url = shown(str(self.url))
        text = f"can't decode the field {self.k!r} of the sample {self.key!r} in {url}"
        cause = self.__cause__
        return text if cause is None else f"{text}: {type(cause).__name__}: {cause}"

    def __repr__(self) -> str:
        return f"DecodingError({str(self)!r})"


class Decoder:
    """Decodes the fields of a sample, each by the first decoder that does not return None.

    Args:
        handlers: decoders.
        pre: decoders before them; None for `gzfilter`.
        post: decoders after them; None for `basichandlers`.
        only: the fields to decode, as a list or in one str with blanks; None for all.
        partial: leave values as they are that are not bytes.
    """

    def __init__(
        self,
        handlers: list[Callable[[str, Any], Any]],
        pre: list[Callable[[str, Any], Any]] | None = None,
        post: list[Callable[[str, Any], Any]] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
    ) -> None:
        pre = default_pre_handlers if pre is None else pre
        post = default_post_handlers if post is None else post
        for name, value in (("handlers", handlers), ("pre", pre), ("post", post)):
            if not isinstance(value, list) or not all(map(callable, value)):
                raise TypeError(f"{name}={value!r}: must be a list of functions of (key, data)")
        only = only.split() if isinstance(only, str) else only
        self.only = None if only is None else set(only)
        self.handlers = [*pre, *handlers, *post]
        self.partial = partial

    def decode1(self, key: str, data: Any) -> Any:
        """Decode one field; bytes that no decoder takes stay as they are."""
        key = "." + key
        for handler in self.handlers:
            result = handler(key, data)
            if isinstance(result, Continue):
                key, data = result.key, result.data
            elif result is not None:
                return result
        return data

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(sample, dict):
            raise TypeError(f"decode needs samples as dicts, not {type(sample).__name__}")
        result = {}
        for k, v in sample.items():
            try:
                result[k] = self._value(k, v)
            # Decoders are the user's and may raise anything; the handler decides what happens.
            except Exception as error:
                key, url = sample.get("__key__"), sample.get("__url__")
                raise DecodingError(url=url, key=key, k=k, sample=sample) from error
        return result

    def _value(self, k: str, v: Any) -> Any:
        if k.startswith("__"):
            try:
                return str(v, "utf-8") if isinstance(v, bytes) else v
            except UnicodeDecodeError:
                return v
        if self.only is not None and k not in self.only:
            return v
        if not isinstance(v, bytes):
            if self.partial and v is not None:
                return v
            raise TypeError(
                f"{k!r} is {type(v).__name__} and not bytes: decoded already? Then pass "
                "partial=True, or name the fields to decode with only="
            )
        return self.decode1(k, v)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return self.decode(sample)


def make_decoder(*args: Any, **kw: Any) -> Decoder:
    return Decoder([ImageHandler(x) if isinstance(x, str) else x for x in args], **kw)


default_decoder = Decoder([*default_pre_handlers, *default_post_handlers])
