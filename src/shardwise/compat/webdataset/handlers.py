"""Handlers of exceptions: raise, continue without the sample, or stop.

A handler is called with the exception. It raises, or returns True to continue and False to stop.
"""

from __future__ import annotations

import warnings
from typing import NoReturn


def reraise_exception(exn: BaseException) -> NoReturn:
    raise exn


def ignore_and_continue(exn: BaseException) -> bool:  # noqa: ARG001 - a handler's form
    return True


def warn_and_continue(exn: BaseException) -> bool:
    warnings.warn(repr(exn), stacklevel=2)
    return True


def ignore_and_stop(exn: BaseException) -> bool:  # noqa: ARG001 - a handler's form
    return False


def warn_and_stop(exn: BaseException) -> bool:
    warnings.warn(repr(exn), stacklevel=2)
    return False
