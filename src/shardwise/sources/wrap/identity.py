"""The identity of a wrapped dataset, so that a state is not resumed on another one.

Torch and Hugging Face datasets identify themselves: by the indices of a `Subset`, the parts of a
`ConcatDataset`, a fingerprint. Of any other dataset the first, middle and last sample are hashed,
with the global random generators at a fixed seed, and restored afterwards. A dataset whose samples
still differ from read to read, or raise, is identified by type and length alone: random
augmentation does not prevent a resume.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.foreign_bytes import is_signal

# Samples are read twice, and up to 8 times within 0.1 s: a random flip may agree by chance.
_MAX_READS, _READING_S = 8, 0.1
# Large values are hashed by 64 KiB at both ends, floats by two digits of 16 values: processors
# differ in the last digits.
_END_BYTES, _MAX_ITEMS, _NUM_FLOATS, _MAX_DEPTH = 1 << 16, 64, 16, 6


def identity_of(dataset: Any) -> str:
    """The identity of a map-style dataset: its own fingerprint, else 16 hex digits."""
    own = _own_fingerprint(dataset)
    if own is not None:
        return own
    return hashlib.sha256("\n".join(_facts(dataset)).encode()).hexdigest()[:16]


def _own_fingerprint(dataset: Any) -> str | None:
    """The fingerprint of a Hugging Face dataset, or of one of ours."""
    if type(dataset).__module__.partition(".")[0] not in ("datasets", "shardwise"):
        return None
    own = getattr(dataset, "_fingerprint", None) or getattr(dataset, "fingerprint", None)
    return own if isinstance(own, str) else None


def _facts(dataset: Any) -> Iterator[str]:
    yield f"{type(dataset).__name__} {len(dataset)}"
    inner = getattr(dataset, "dataset", None)
    indices = _indices(dataset)
    parts = getattr(dataset, "datasets", None)
    if inner is not None and indices is not None:
        yield hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()
        yield identity_of(inner)
    elif named_parts := _named_parts(parts):
        for name, part in named_parts:
            yield f"{name} {len(part)} {identity_of(part)}"
    else:
        yield from _sample_digests(dataset)


def _indices(dataset: Any) -> NDArray[Any] | None:
    indices = np.asarray(getattr(dataset, "indices", None))
    is_subset = indices.dtype.kind in "iu" and indices.shape == (len(dataset),)
    return indices if is_subset else None


def _named_parts(parts: Any) -> list[tuple[Any, Any]]:
    """Names and datasets, where `parts` are datasets; else none."""
    if not isinstance(parts, list | tuple | dict):
        return []
    named = list(parts.items() if isinstance(parts, dict) else enumerate(parts))
    return named if all(_is_dataset(part) for _, part in named) else []


def _is_dataset(part: Any) -> bool:
    return hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, str)


def _sample_digests(dataset: Any) -> list[str]:
    """Digests of the first, the middle and the last sample; none where they are random."""
    num_samples = len(dataset)
    indices = sorted({0, num_samples // 2, num_samples - 1}) if num_samples else []
    deadline = time.monotonic() + _READING_S
    digests: list[str] = []
    for number in range(_MAX_READS):
        try:
            again = [_digest_of(dataset, index) for index in indices]
        except BaseException as error:
            if is_signal(error):
                raise
            return []  # the dataset is the user's code; training will raise it
        if number and again != digests:
            return []
        digests = again
        if number and time.monotonic() > deadline:
            break
    return digests


def _digest_of(dataset: Any, index: int) -> str:
    with _fixed_seed():
        sample = dataset[index]
    digest = hashlib.sha256()
    _add(digest, sample, 0)
    return digest.hexdigest()


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Seed the global random generators with 0, and restore them afterwards."""
    torch = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.random.get_rng_state() if torch is not None else None
    try:
        random.seed(0)
        np.random.seed(0)
        if torch is not None:
            torch.random.default_generator.manual_seed(0)
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.random.set_rng_state(torch_state)


def _add(digest: Any, value: Any, depth: int) -> None:
    digest.update(f"{type(value).__name__}\n".encode())
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch's; numpy has no bfloat16
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    if value is None or isinstance(value, bool | int):
        digest.update(f"{value}\n".encode())
    elif isinstance(value, float):
        digest.update(f"{value:.2g}\n".encode())
    elif isinstance(value, str):
        _add_bytes(digest, value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes | bytearray | memoryview):
        _add_bytes(digest, value)
    elif depth == _MAX_DEPTH:
        return
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        _add_array(digest, np.asarray(value), depth + 1)
    else:
        parts = _parts(value)
        digest.update(f"{len(parts)}\n".encode())
        for part in parts[:_MAX_ITEMS]:
            _add(digest, part, depth + 1)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, each.name) for each in dataclasses.fields(value)]
    return []


def _add_array(digest: Any, array: NDArray[Any], depth: int) -> None:
    digest.update(f"{array.dtype} {array.shape}\n".encode())
    flat = array.reshape(-1)
    if array.dtype.kind == "O":
        _add(digest, flat[:_MAX_ITEMS].tolist(), depth)
    elif array.dtype.kind in "fc":
        some = flat[:: max(1, len(flat) // _NUM_FLOATS)].tolist()
        digest.update(" ".join(f"{each:.2g}" for each in some).encode())
    else:
        most = max(1, _END_BYTES // max(1, array.dtype.itemsize))
        _add_bytes(digest, flat[:most].tobytes())
        _add_bytes(digest, flat[-most:].tobytes())


def _add_bytes(digest: Any, data: Any) -> None:
    digest.update(f"{len(data)}\n".encode())
    digest.update(data[:_END_BYTES])
    digest.update(data[-_END_BYTES:])
