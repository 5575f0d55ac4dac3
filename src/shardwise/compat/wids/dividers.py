"""Whether a framework divides a sampler's indices among the ranks itself.

Accelerate takes a prepared DataLoader's batches in turn, one for each rank, whatever sampler they
come from: a sampler that has divided already would be divided a second time, and of 160 samples on
4 ranks some 40 would be read. It tells the sampler nothing, so the sampler looks who is asking.
"""

from __future__ import annotations

import sys
from types import FrameType

# Their `batch_sampler` or loader takes turns between ranks.
_DIVIDERS = ("BatchSamplerShard", "DataLoaderDispatcher")
# Between the sampler and them lie at most a batch sampler and torch's iterators.
_MAX_FRAMES = 16


def is_divided_by_caller() -> bool:
    """Whether the call comes from a part of Accelerate that divides among the ranks itself."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return False
    kinds = tuple(getattr(accelerate, name) for name in _DIVIDERS if hasattr(accelerate, name))
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if isinstance(frame.f_locals.get("self"), kinds):
            return True
        frame = frame.f_back
    return False
