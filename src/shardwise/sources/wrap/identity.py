"""Which dataset a wrapped one is, so that a state is not taken up by another one.

What torch and Hugging Face datasets say of themselves is believed: the indices of a `Subset`, the
parts of a `ConcatDataset`, a fingerprint. Of any other dataset its first, middle and last sample
are looked at, by the global generators with a fixed seed, which are put back. A dataset whose
samples differ from look to look all the same, or raise, is its type and length alone: to resume is
possible with random augmentation, too.
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

__all__ = ["identity_of"]

# A sample is looked at twice at least, and more often while that is cheap: a coin that decides
# about a flip may show the same side twice.
_MOST_LOOKS, _LOOKING_S = 8, 0.1
# Of large values the ends are hashed, of floats some, by two digits: another processor may differ
# in the last ones.
_END_BYTES, _MOST_ITEMS, _NUM_FLOATS, _MOST_DEPTH = 1 << 16, 64, 16, 6


def identity_of(dataset: Any) -> str:
    """A word for a map-style dataset: 16 hex digits, or its own fingerprint."""
    own = _own_word(dataset)
    if own is not None:
        return own
    return hashlib.sha256("\n".join(_words(dataset)).encode()).hexdigest()[:16]


def _own_word(dataset: Any) -> str | None:
    """The fingerprint of a Hugging Face dataset, or of one of ours."""
    if type(dataset).__module__.partition(".")[0] not in ("datasets", "shardwise"):
        return None
    word = getattr(dataset, "_fingerprint", None) or getattr(dataset, "fingerprint", None)
    return word if isinstance(word, str) else None


def _words(dataset: Any) -> Iterator[str]:
    """What is known of a dataset."""
    yield f"{type(dataset).__name__} {len(dataset)}"
    inner = getattr(dataset, "dataset", None)
    indices = _indices(dataset)
    parts = getattr(dataset, "datasets", None)
    if inner is not None and indices is not None:
        yield hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()
        yield identity_of(inner)
    elif isinstance(parts, list | tuple | dict) and parts and all(map(_is_dataset, _values(parts))):
        for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            yield f"{name} {len(part)} {identity_of(part)}"
    else:
        yield from _looks(dataset)


def _indices(dataset: Any) -> NDArray[Any] | None:
    """The indices of what is a subset of its `dataset`."""
    found = np.asarray(getattr(dataset, "indices", None))
    is_subset = found.dtype.kind in "iu" and found.shape == (len(dataset),)
    return found if is_subset else None


def _values(parts: Any) -> Any:
    return parts.values() if isinstance(parts, dict) else parts


def _is_dataset(part: Any) -> bool:
    return hasattr(part, "__len__") and hasattr(part, "__getitem__") and not isinstance(part, str)


def _looks(dataset: Any) -> list[str]:
    """Digests of the first, the middle and the last sample; none where they are random."""
    num_samples = len(dataset)
    places = sorted({0, num_samples // 2, num_samples - 1}) if num_samples else []
    started = time.monotonic()
    found: list[str] = []
    for look in range(_MOST_LOOKS):
        try:
            again = [_digest_of(dataset, place) for place in places]
        except Exception:  # noqa: BLE001 - the dataset is the user's code; reading it will tell
            return []
        if look and again != found:
            return []
        found = again
        if look and time.monotonic() - started > _LOOKING_S:
            break
    return found


def _digest_of(dataset: Any, place: int) -> str:
    with _fixed_seed():
        sample = dataset[place]
    digest = hashlib.sha256()
    _add(digest, sample, 0)
    return digest.hexdigest()


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Let what is drawn from the global generators be the same each time, and put them back."""
    torch = sys.modules.get("torch")
    of_python, of_numpy = random.getstate(), np.random.get_state()
    of_torch = torch.random.get_rng_state() if torch is not None else None
    try:
        random.seed(0)
        np.random.seed(0)
        if torch is not None:
            torch.random.default_generator.manual_seed(0)
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if torch is not None:
            torch.random.set_rng_state(of_torch)


def _add(digest: Any, value: Any, depth: int) -> None:
    """Add a value; of what is neither data nor made of it, the type."""
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
    elif depth == _MOST_DEPTH:
        return
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        _add_array(digest, np.asarray(value), depth + 1)
    else:
        parts = _parts(value)
        digest.update(f"{len(parts)}\n".encode())
        for part in parts[:_MOST_ITEMS]:
            _add(digest, part, depth + 1)


def _parts(value: Any) -> list[Any]:
    """What a container holds."""
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
        _add(digest, flat[:_MOST_ITEMS].tolist(), depth)
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
