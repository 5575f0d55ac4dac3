"""Decoders of arrays that describe themselves: NumPy's .npy, torch.save files, and pickles by name.

Nothing here runs code that data bring with them, but `unpickle`, which no field gets unless it is
requested.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from shardwise.base.torch_import import import_torch
from shardwise.codecs.protocol import PlainDecoder


class Npy(PlainDecoder):
    """A decoder of .npy files; `npy` makes it."""

    def __call__(self, data: bytes | memoryview) -> NDArray[Any]:
        view = memoryview(data)
        start = _header_end(view)
        shape, fortran, dtype = _parse_npy_header(bytes(view[:start]))
        expected = math.prod(shape) * dtype.itemsize
        if len(view) - start != expected:
            raise ValueError(
                f"the .npy header promises {dtype} of shape {shape}, {expected} bytes; "
                f"{len(view) - start} follow it"
            )
        out: NDArray[Any] = np.empty(shape, dtype.newbyteorder("="))
        if expected:
            stored = np.frombuffer(view[start:], dtype)
            np.copyto(out, stored.reshape(shape, order="F" if fortran else "C"))
        return out


def _header_end(view: memoryview) -> int:
    head = bytes(view[:12])
    if len(head) < 12 or not head.startswith(npy_format.MAGIC_PREFIX):
        raise ValueError(f"{len(view)} bytes that begin with {head!r} are no .npy file")
    if head[6] == 1:
        return 10 + int.from_bytes(head[8:10], "little")
    return 12 + int.from_bytes(head[8:12], "little")


@functools.lru_cache(maxsize=128)
def _parse_npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parse a .npy header: (shape, is in Fortran order, stored dtype). Most files share theirs."""
    stream = io.BytesIO(header)
    try:
        version = npy_format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = npy_format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"the .npy file is of version {version}: (1, 0) and (2, 0) are read")
    except (SyntaxError, TokenError, TypeError, MemoryError, RecursionError) as exc:
        raise ValueError(f"the .npy header can't be read: {exc}") from exc
    if dtype.kind not in "biufc":
        raise ValueError(f"the .npy file holds {dtype}: only numbers and bools are decoded")
    # numpy takes True for a length, and fails over it later.
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"the .npy header has the shape {shape}")
    return shape, fortran, dtype


def npy() -> Npy:
    """Decode .npy files (NumPy's format, versions 1 and 2) to arrays in C order.

    Raises:
        ValueError: (when called) it is not an .npy file, is cut, or holds objects, text or records.
    """
    return Npy()


class TorchTensor(PlainDecoder):
    """A decoder of torch.save files; `torch_tensor` makes it."""

    def __repr__(self) -> str:
        return "torch_tensor()"

    def __call__(self, data: bytes | memoryview) -> Any:
        torch: Any = import_torch()
        try:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as exc:
            # Nearly every type: what torch.load raises depends on where the damage lies.
            raise ValueError(f"torch.load could not decode {len(data)} bytes: {exc}") from exc


def torch_tensor() -> TorchTensor:
    """Decode what torch.save wrote: tensors, and containers of them, on the CPU.

    With `weights_only`: files that would run code are refused.

    Raises:
        ValueError: (when called) it is not such a file, is cut, or would run code.
    """
    return TorchTensor()


class Unpickle(PlainDecoder):
    """A decoder of pickles; `unpickle` makes it."""

    def __call__(self, data: bytes | memoryview) -> Any:
        """Decode one pickle, and run its code."""
        try:
            return pickle.loads(data)  # noqa: S301 - asked for by name
        except Exception as exc:
            # A pickle may raise anything.
            raise ValueError(f"a pickle of {len(data)} bytes raised {exc!r}") from exc


def unpickle() -> Unpickle:
    """Decode pickles. A pickle can run any code: only for data that you wrote yourself.

    No field is ever decoded by this unless it is named.

    Raises:
        ValueError: (when called) it is not a pickle, is cut, or what it ran has raised.
    """
    return Unpickle()
