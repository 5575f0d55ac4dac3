"""Values of a batch as JSON and arrays, and back: the same types, in the same order.

Arrays travel beside the JSON, which has their numbers. One that comes twice is sent once.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.service.frames import shape_of

_PLAIN = frozenset({type(None), bool, int, float, str})


class Encoder:
    """Encodes values."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        # The values are kept, so that no other one gets the id of one that is gone.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def array(self, array: NDArray[Any]) -> int:
        """The number of an array."""
        known = self._numbers.get(id(array))
        if known is not None:
            return known[0]
        if array.dtype.kind not in "biufcSUmM" or not array.dtype.itemsize:
            raise TypeError(f"an array of {array.dtype}")
        number = len(self.arrays)
        self.arrays.append(array if array.flags.c_contiguous else array.copy(order="C"))
        self._numbers[id(array)] = (number, array)
        return number

    def value(self, value: Any) -> Any:  # noqa: PLR0911 - one for each type
        """A value as JSON: plain ones and lists as they are, others as an object with one entry."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            kinds = set(map(type, value))
            if kinds <= _PLAIN:
                return value
            if kinds == {bytes}:
                sizes = np.fromiter(map(len, value), dtype=np.int64, count=len(value))
                return {"bytes": [self.array(sizes), self._add_bytes(b"".join(value))]}
            return [self.value(each) for each in value]
        if kind is tuple:
            return {"tuple": [self.value(each) for each in value]}
        if kind is dict:
            return {"dict": [[self.value(key), self.value(each)] for key, each in value.items()]}
        if kind is bytes:
            return {"byte": self._add_bytes(value)}
        if isinstance(value, np.generic):
            return {"scalar": self.array(np.asarray(value))}
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
            if value.dtype.hasobject and value.dtype.kind == "O":
                items = [self.value(each) for each in value.reshape(-1).tolist()]
                return {"objects": [list(value.shape), items]}
            return self._array(np.asarray(value) if kind is not np.ndarray else value)
        if kind.__module__ == "torch" and kind.__name__ == "Tensor":
            # As bytes: numpy lacks some of torch's dtypes.
            flat = value.detach().cpu().contiguous().reshape(-1)
            raw = flat.view(sys.modules["torch"].uint8).numpy()
            name = str(value.dtype).partition(".")[2]
            return {"tensor": [name, list(value.shape), self.array(raw)]}
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__}")

    def _array(self, array: NDArray[Any]) -> Any:
        if array.ndim == 4 and not array.flags.c_contiguous:
            last = np.moveaxis(array, 1, -1)
            if last.flags.c_contiguous:
                return {"channels_last": self.array(last)}
        return {"array": self.array(array)}

    def _add_bytes(self, data: bytes) -> int:
        return self.array(np.frombuffer(data, dtype=np.uint8))


class Decoder:
    """Decodes what `Encoder` made; malformed JSON raises an error of any type."""

    def __init__(self, arrays: list[NDArray[Any]]) -> None:
        self._arrays = arrays

    def array(self, number: int) -> NDArray[Any]:
        """The array that `Encoder.array` gave this number."""
        if type(number) is not int or number < 0:
            raise ValueError(number)
        return self._arrays[number]

    def value(self, code: Any) -> Any:  # noqa: PLR0911, PLR0912 - one for each type
        """The value that this JSON stands for."""
        if type(code) is list:
            if set(map(type, code)) <= _PLAIN:
                return code
            return [self.value(each) for each in code]
        if type(code) is not dict:
            return code
        [(tag, content)] = code.items()
        match tag:
            case "array":
                return self.array(content)
            case "channels_last":
                return np.moveaxis(self.array(content), -1, 1)
            case "bytes":
                return self._split(*content)
            case "byte":
                return self.array(content).tobytes()
            case "tuple":
                return tuple(self.value(each) for each in content)
            case "dict":
                return {self.value(key): self.value(each) for key, each in content}
            case "scalar":
                return self.array(content).reshape(())[()]
            case "objects":
                shape, items = content
                values = np.empty(len(items), dtype=object)
                for place, item in enumerate(items):
                    values[place] = self.value(item)
                return values.reshape(shape_of(shape))
            case "tensor":
                return self._tensor(*content)
        raise ValueError(tag)

    def _split(self, sizes: int, joined: int) -> list[bytes]:
        lengths, data = self.array(sizes), self.array(joined).tobytes()
        ends = np.cumsum(lengths).tolist()
        if lengths.dtype != np.int64 or (lengths < 0).any() or [0, *ends][-1] != len(data):
            raise ValueError("lengths that are not those of the bytes")
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _tensor(self, dtype: str, shape: list[int], number: int) -> Any:
        import torch

        kind = vars(torch)[dtype]  # not by getattr(), which may import
        if not isinstance(kind, torch.dtype):
            raise TypeError(dtype)
        return torch.from_numpy(self.array(number)).view(kind).reshape(shape_of(shape))
