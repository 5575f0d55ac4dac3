"""The headers that shards are written with: the standard library's, faster for usual names."""

from __future__ import annotations

import tarfile

__all__ = ["header"]

_MAX_NAME, _MAX_SIZE = 100, 8**11 - 1
# A header of no name and no bytes is all that does not differ between usual headers.
_MODEL = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_BEFORE_SIZE, _BEHIND_SIZE, _BEHIND_SUM = _MODEL[100:124], _MODEL[135:148], _MODEL[155:]
# The digits of the size are summed up with it; the checksum counts as eight spaces.
_SUM = sum(_BEFORE_SIZE) + sum(_BEHIND_SIZE) + 7 * ord(" ") + sum(_BEHIND_SUM)


def header(name: str, size: int) -> bytes:
    """The header blocks of a regular file: ustar if it fits, else PAX."""
    raw = name.encode()
    if len(raw) > _MAX_NAME or size > _MAX_SIZE:
        return _header_by_tarfile(name, size)
    digits = b"%011o" % size
    checksum = _SUM + sum(raw) + sum(digits)
    return b"".join(
        (
            raw.ljust(_MAX_NAME, b"\0"),
            _BEFORE_SIZE,
            digits,
            _BEHIND_SIZE,
            b"%06o\0" % checksum,
            _BEHIND_SUM,
        )
    )


def _header_by_tarfile(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
