"""Page-locks memory of the engine with CUDA, once for all batches that will lie in it.

A registered range must be unregistered before it is unmapped: CUDA refuses to register another
mapping at that address otherwise.
"""

from __future__ import annotations

import logging
import os
import resource
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from shardwise.engine.request import BatchMemory

_logger = logging.getLogger("shardwise")


class PageLocks:
    """Registers memory with CUDA until it is refused once; not for several threads at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_refused = False

    def lock(self, memory: BatchMemory) -> None:
        """Register the memory at its first use (5 ms for 38 MB)."""
        if memory.before_unmap or self._is_refused:
            return
        address, num_bytes = memory.memory.ctypes.data, memory.memory.nbytes
        # The context of another device would take memory there.
        with torch.cuda.device(self._device):
            code = int(_runtime().cudaHostRegister(address, num_bytes, 0))
        if code == 0:
            memory.before_unmap.append(partial(_unlock, os.getpid(), self._device, address))
            return
        self._is_refused = True
        # CUDA keeps the refusal as an error of this thread, which its next kernel raises.
        with suppress(RuntimeError):
            torch.ones(1, device=self._device)
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
        _logger.warning(
            "CUDA refuses to page-lock %d bytes that worker processes write (cudaHostRegister: "
            "error %d, `ulimit -l` is %s): a thread copies each batch into page-locked memory "
            "of torch's; raise the limit to spare that copy",
            num_bytes,
            code,
            shown,
        )


def _unlock(pid: int, device: torch.device, address: int) -> None:
    if pid == os.getpid():  # a forked child has the memory, and no use of CUDA
        with torch.cuda.device(device):
            _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
