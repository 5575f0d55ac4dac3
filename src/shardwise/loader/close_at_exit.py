"""Passes that are under way when the interpreter ends.

A generator that a global holds is closed after the modules have lost their globals, where its
`except` and `finally` blocks raise. So it is closed before.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any

__all__ = ["close_at_exit"]


def close_at_exit(batches: Generator[Any, None, None]) -> None:
    """Close a generator when the interpreter ends, unless it is gone or a thread is in it."""
    weakref.finalize(batches, _close, weakref.ref(batches))


def _close(reference: weakref.ref[Generator[Any, None, None]]) -> None:
    batches = reference()
    if batches is not None and getgeneratorstate(batches) != GEN_RUNNING:
        batches.close()
