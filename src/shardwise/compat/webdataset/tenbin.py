"""Arrays as aligned binary chunks (tenbin): the format of `.ten` fields, by WebDataset's names.

A chunk is the magic word `~TenBin~`, its length in bytes (int64) and its bytes, filled up to a
multiple of 64. An array is two chunks: a header of int64 words (dtype code, a name of up to 8
characters, number of dimensions, the dimensions) and the elements in C order. All words are
little-endian. Sizes in the data are checked before they are used; what is wrong is a ValueError.
"""

from __future__ import annotations

import io
import math
import struct
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview
Arrays: TypeAlias = list[NDArray[Any]]

magic_str = "~TenBin~"
magic_bytes = magic_str.encode("ascii")
magic = struct.unpack("<q", magic_bytes)[0]

_CHUNK = struct.Struct("<8sq")
_MAX_DIMENSIONS = 9

long_to_short = {
    f"{kind}{8 * size}": f"{kind[0]}{size}"
    for kind, sizes in (("float", (2, 4, 8)), ("int", (1, 2, 4, 8)), ("uint", (1, 2, 4, 8)))
    for size in sizes
}
short_to_long = {short: long for long, short in long_to_short.items()}


def bytelen(a: Any) -> int:
    return memoryview(bytedata(a)).nbytes


def bytedata(a: Any) -> Any:
    """The bytes of an array or a bytes-like object, without a copy where they are contiguous."""
    if isinstance(a, bytes | bytearray | memoryview):
        return a
    if isinstance(a, np.ndarray):
        return np.ascontiguousarray(a).data
    if hasattr(a, "data"):
        return a.data
    raise ValueError(f"a {type(a).__name__} has no bytes: give an array or a bytes-like object")


def check_acceptable_input_type(data: Sequence[NDArray[Any]], allow64: bool) -> None:
    """Refuse arrays of a dtype that can't be stored, and of 64 bits unless `allow64`."""
    for array in data:
        _code(array)
        if not allow64 and array.dtype.itemsize == 8:
            raise ValueError(f"an array of {array.dtype}: 64-bit elements need allow64=True")


def str64(s: str) -> int:
    """Up to 8 ASCII characters as one int64."""
    data = s.encode("ascii")
    if len(data) > 8:
        raise ValueError(f"{s!r} has {len(data)} characters: 8 fit")
    return int(struct.unpack("<q", data.ljust(8, b"\0"))[0])


def unstr64(i: int) -> str:
    return struct.pack("<q", i).decode("ascii").strip("\0")


def check_infos(data: Arrays, infos: list[str], required_infos: Any = None) -> Any:
    """The arrays; with True as the third argument also their names, with a list these names."""
    if required_infos is False or required_infos is None:
        return data
    if required_infos is True:
        return data, infos
    if not isinstance(required_infos, tuple | list) or list(required_infos) != infos:
        raise ValueError(f"the arrays are named {infos}, and {required_infos!r} are required")
    return data


def _code(a: NDArray[Any]) -> str:
    if a.dtype.name not in long_to_short:
        known = ", ".join(long_to_short)
        raise ValueError(f"an array of {a.dtype} can't be stored as .ten: use {known}")
    return long_to_short[a.dtype.name]


def encode_header(a: NDArray[Any], info: str = "") -> memoryview:
    if a.ndim > _MAX_DIMENSIONS:
        raise ValueError(
            f"an array of {a.ndim} dimensions: at most {_MAX_DIMENSIONS} can be stored"
        )
    return np.array([str64(_code(a)), str64(info), a.ndim, *a.shape], "<i8").data


def decode_header(h: Buffer) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    num_bytes = bytelen(h)
    if num_bytes % 8 or not 24 <= num_bytes <= 8 * (3 + _MAX_DIMENSIONS):
        raise ValueError(f"a header of {num_bytes} bytes: not an array in tenbin format")
    code, info, rank, *shape = np.frombuffer(h, "<i8").tolist()
    try:
        dtype = np.dtype(short_to_long[unstr64(code)]).newbyteorder("<")
        name = unstr64(info)
    except (KeyError, UnicodeDecodeError):
        raise ValueError(f"a header with the dtype code {code:#x}, which is none") from None
    if not 0 <= rank <= len(shape) or min(shape[:rank], default=0) < 0:
        raise ValueError(f"a header with {rank} dimensions of {shape}: damaged")
    return tuple(shape[:rank]), dtype, name


def encode_list(l: Sequence[Any], infos: Sequence[str] | None = None) -> list[Any]:  # noqa: E741
    if infos is not None and len(l) != len(infos):
        raise ValueError(f"{len(l)} arrays and {len(infos)} infos: give one name for each array")
    result = []
    for array, info in zip(l, infos or [""] * len(l), strict=True):
        stored = np.asarray(array)
        if stored.dtype.byteorder == ">":
            stored = stored.astype(stored.dtype.newbyteorder("<"))
        result += [encode_header(stored, info), bytedata(stored)]
    return result


def decode_list(l: Sequence[Buffer], infos: Any = False) -> Any:  # noqa: E741
    if len(l) % 2:
        raise ValueError(f"{len(l)} chunks: a header without its elements stands at the end")
    arrays, names = [], []
    for header, data in zip(l[::2], l[1::2], strict=True):
        shape, dtype, name = decode_header(header)
        count = math.prod(shape)
        if bytelen(data) != count * dtype.itemsize:
            raise ValueError(
                f"an array {dtype.name}{list(shape)} takes {count * dtype.itemsize} bytes, and "
                f"there are {bytelen(data)}: cut short?"
            )
        flat = np.frombuffer(data, dtype, count) if count else np.empty(0, dtype)
        arrays.append(flat.reshape(shape))
        names.append(name)
    return check_infos(arrays, names, infos)


def roundup(n: int, k: int = 64) -> int:
    return -(-n // k) * k


def encode_chunks(l: Sequence[Any]) -> bytearray:  # noqa: E741
    stream = io.BytesIO()
    for chunk in l:
        write_chunk(stream, chunk)
    return bytearray(stream.getbuffer())


def decode_chunks(buf: Buffer) -> list[Buffer]:
    """Chunks from a buffer; slices of it."""
    result: list[Buffer] = []
    offset, total = 0, bytelen(buf)
    while offset < total:
        num_bytes = _length(buf[offset : offset + _CHUNK.size])
        offset += _CHUNK.size
        if num_bytes > total - offset:
            raise ValueError(
                f"the chunk at byte {offset} has {num_bytes} bytes, and {total - offset} are left"
            )
        result.append(buf[offset : offset + num_bytes])
        offset += roundup(num_bytes)
    return result


def _length(head: Buffer) -> int:
    if len(head) < _CHUNK.size:
        raise ValueError(f"the data end after {len(head)} bytes of the head of a chunk")
    word, num_bytes = _CHUNK.unpack(head)
    if word != magic_bytes or num_bytes < 0:
        raise ValueError(f"{bytes(head)!r} where the magic word and a length must be")
    return int(num_bytes)


def encode_buffer(l: list[Any], infos: Sequence[str] | None = None) -> bytearray:  # noqa: E741
    """Encode a list of arrays.

    >>> decode_buffer(encode_buffer([np.arange(3)]))
    [array([0, 1, 2])]
    """
    if not isinstance(l, list):
        raise ValueError(  # noqa: TRY004 - WebDataset raises this
            f"encode_buffer needs a list of arrays, not a {type(l).__name__}"
        )
    return encode_chunks(encode_list(l, infos=infos))


def decode_buffer(buf: Buffer, infos: Any = False) -> Any:
    """Decode a list of arrays, views of the buffer; for `infos` see `check_infos`."""
    return decode_list(decode_chunks(buf), infos=infos)


def write_chunk(stream: BinaryIO, buf: Any) -> None:
    num_bytes = bytelen(buf)
    stream.write(_CHUNK.pack(magic_bytes, num_bytes))
    stream.write(bytedata(buf))
    stream.write(bytes(roundup(num_bytes) - num_bytes))


def read_chunk(stream: BinaryIO) -> bytes | None:
    head = stream.read(_CHUNK.size)
    if not head:
        return None
    num_bytes = _length(head)
    data = stream.read(num_bytes)
    if len(data) < num_bytes:
        raise ValueError(f"the stream ends after {len(data)} bytes of a chunk of {num_bytes}")
    stream.read(roundup(num_bytes) - num_bytes)
    return data


def write(stream: BinaryIO, l: Sequence[Any], infos: Sequence[str] | None = None) -> None:  # noqa: E741
    for chunk in encode_list(l, infos=infos):
        write_chunk(stream, chunk)


def read(stream: BinaryIO, n: int = sys.maxsize, infos: Any = False) -> Any:
    chunks: list[Buffer] = []
    while len(chunks) < 2 * n and (chunk := read_chunk(stream)) is not None:
        chunks.append(chunk)
    return decode_list(chunks, infos=infos)


def _check_name(fname: str, nocheck: bool) -> None:
    if not nocheck and not fname.endswith(".ten"):
        raise ValueError(f"{fname!r} does not end in .ten: name it so, or pass nocheck=True")


def save(fname: str, *args: Any, infos: Sequence[str] | None = None, nocheck: bool = False) -> None:
    _check_name(fname, nocheck)
    with open(fname, "wb") as stream:
        write(stream, args, infos=infos)


def load(fname: str, infos: Any = False, nocheck: bool = False) -> Any:
    _check_name(fname, nocheck)
    with open(fname, "rb") as stream:
        return read(stream, infos=infos)
