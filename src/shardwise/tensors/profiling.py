"""Named ranges in torch's profiler: what the loader does in the caller's thread."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["named_range"]


def named_range(name: str) -> AbstractContextManager[object]:
    """A range of this name while a profiler records this thread, else nothing, for 0.1 µs."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        return torch.profiler.record_function(name)
    return nullcontext()
