"""When a block was used last, kept as its access time.

`os.utime` sets both times of a file, and the time of its last change tells whether somebody wrote
into a block: `futimens` leaves that one alone.

Source: POSIX.1-2008, futimens; the value of UTIME_OMIT is Linux's.
"""

from __future__ import annotations

import ctypes

__all__ = ["set_last_used"]

_UTIME_OMIT = (1 << 30) - 2


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


_LIBC = ctypes.CDLL(None)
_TIMES = _Timespec * 2


def set_last_used(fd: int, now_ns: int) -> bool:
    """Set the access time of an open file; False if that is not allowed."""
    seconds, nanoseconds = divmod(now_ns, 10**9)
    times = _TIMES(_Timespec(seconds, nanoseconds), _Timespec(0, _UTIME_OMIT))
    return bool(_LIBC.futimens(ctypes.c_int(fd), times) == 0)
