"""The headers that shards are written with: the standard library's, faster for usual names.

`header` makes one, `headers` many at once.
"""

from __future__ import annotations

import tarfile

import numpy as np
from numpy.typing import NDArray

# Longer names and larger payloads do not fit into the plain fields of a header.
MAX_NAME, MAX_SIZE = 100, 8**11 - 1
# A header of no name and no bytes is all that does not differ between usual headers.
_MODEL = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_BEFORE_SIZE, _BEHIND_SIZE, _BEHIND_SUM = _MODEL[100:124], _MODEL[135:148], _MODEL[155:]
# The digits of the size are summed up with it; the checksum counts as eight spaces.
_SUM = sum(_BEFORE_SIZE) + sum(_BEHIND_SIZE) + 7 * ord(" ") + sum(_BEHIND_SUM)


def header(name: str, size: int) -> bytes:
    """The header blocks of a regular file: ustar if it fits, else PAX."""
    raw = name.encode()
    if len(raw) > MAX_NAME or size > MAX_SIZE:
        return _header_by_tarfile(name, size)
    digits = b"%011o" % size
    checksum = _SUM + sum(raw) + sum(digits)
    return b"".join(
        (
            raw.ljust(MAX_NAME, b"\0"),
            _BEFORE_SIZE,
            digits,
            _BEHIND_SIZE,
            b"%06o\0" % checksum,
            _BEHIND_SUM,
        )
    )


def headers(names: NDArray[np.uint8], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The headers of regular files with usual names, uint8 `[n, 512]`."""
    made = np.empty((len(names), len(_MODEL)), np.uint8)
    made[:] = np.frombuffer(_MODEL, np.uint8)
    made[:, : names.shape[1]] = names
    digits = _octal(sizes, 11)
    made[:, 124:135] = digits
    sums = names.sum(axis=1, dtype=np.int64) + digits.sum(axis=1, dtype=np.int64) + _SUM
    made[:, 148:154] = _octal(sums, 6)
    return made


def _octal(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    shifts = np.arange(3 * width - 3, -1, -3)
    return ((numbers[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)


def _header_by_tarfile(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
