"""Batches on a device, with the copy of the next batch overlapping the program's computation.

On CUDA a batch is copied from page-locked memory on its own stream; the consumer's stream
waits for that copy alone, on the device, and the program never does. The copy of batch k+1 is
queued before batch k is yielded if batch k+1 is ready then; batch k never waits for it. The loader
counts the batches that are yielded here (I4), and an error of batch k+1 is raised after batch k.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from shardwise.engine.request import Batch, BatchMemory
from shardwise.tensors.convert import change_tensors, moved_object, pinned

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
            code = _runtime().cudaHostRegister(address, num_bytes, 0)
        # An enum without a name for most codes, equal to no number.
        if int(code) == 0:
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
            "error %d, %s; `ulimit -l` is %s): a thread copies each batch into page-locked memory "
            "of torch's; raise the limit to spare that copy",
            num_bytes,
            int(code),
            _runtime().cudaGetErrorString(code),
            shown,
        )


def _unlock(pid: int, device: torch.device, address: int) -> None:
    if pid == os.getpid():  # a forked child has the memory, and no use of CUDA
        with torch.cuda.device(device):
            _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def checked_device(device: Any) -> torch.device:
    """The device of this name, if it can be used here; makes no CUDA context."""
    try:
        checked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r}: use None, a torch.device, or its name such as 'cuda', 'cuda:1' "
            "or 'cpu'"
        ) from error
    if checked.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (checked.index or 0) >= count:
            raise ValueError(
                f"device={device!r}: torch {torch.__version__} sees {count} CUDA devices here; "
                "leave device= out, or use device='cpu', where there is none"
            )
    elif checked.type != "cpu":
        try:
            torch.empty(0, device=checked)
        except (RuntimeError, AssertionError) as error:
            # 70 lines follow where torch was built without the device.
            reason = str(error).partition(". ")[0]
            raise ValueError(f"device={device!r} can't be used here: {reason}") from error
    return checked


def look_ahead(
    batches: Generator[Batch, None, None], copier: Copier
) -> Generator[Batch, None, None]:
    """Yield the same prepared batches with their data on the device, the next copy in progress.

    Prefetches one batch if that is ready. An error of that batch is raised instead of it, after the
    batch before it was yielded. Closing this closes `batches`.
    """
    waiting: tuple[Batch, Any] | None = None
    with closing(batches):
        while True:
            if waiting is not None and not _is_next_ready(waiting[0]):
                yield _end_copy(waiting, copier)
                waiting = None
            try:
                batch = next(batches, None)
                following = None if batch is None else _begin_copy(batch, copier)
            except Exception:  # the next batch's own, whatever it is: raised instead of it
                if waiting is not None:
                    yield _end_copy(waiting, copier)
                raise
            if waiting is not None:
                yield _end_copy(waiting, copier)
            if following is None:
                return
            waiting = following


def _is_next_ready(batch: Batch) -> bool:
    return batch.is_next_ready is not None and batch.is_next_ready()


def _begin_copy(batch: Batch, copier: Copier) -> tuple[Batch, Any]:
    began = time.perf_counter()
    begun = copier.begin(batch.data)
    batch.stages.add("hand over", time.perf_counter() - began)
    # Often a view of memory that the engine reuses.
    batch.data = None
    return batch, begun


def _end_copy(waiting: tuple[Batch, Any], copier: Copier) -> Batch:
    batch, begun = waiting
    began = time.perf_counter()
    batch.data = copier.end(begun)
    batch.stages.add("hand over", time.perf_counter() - began)
    return batch


class DirectCopier:
    """Copies a batch in the caller's thread, before `begin` returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, data: Any, memory: BatchMemory | None) -> Any:
        """Bring tensors where `begin` copies from, in any thread; `memory` is the engine's."""
        del memory
        return data

    def begin(self, data: Any) -> Any:
        """Start the copy of one prepared batch; the caller may drop the source at once."""
        return change_tensors(
            data,
            lambda tensor: tensor.to(self.device),
            method="to",
            change_object=partial(moved_object, device=self.device),
        )

    def end(self, begun: Any) -> Any:
        """The data on the device, safe to use in the caller's current stream."""
        return begun


class _InFlight(NamedTuple):
    """A batch that is being copied; whether it has objects that will move themselves."""

    data: Any
    tensors: list[torch.Tensor]
    done: torch.cuda.Event
    has_objects: bool


class StreamCopier:
    """Copies to a CUDA device on its own stream; `begin` and `end` never wait for the device.

    One per loader, used again in every epoch: torch keeps freed device memory for the stream that
    it was taken on. Sources are held until the event of their copy: the engine reuses its own
    memory as soon as no one holds it, and torch protects only what its own allocator page-locked.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._locks = PageLocks(self.device)
        # Sources of copies under way, in the order of the stream.
        self._sources: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()
        self._lock = threading.Lock()
        # A copier that is dropped must not let go of them early; at the end of the interpreter
        # nothing does.
        weakref.finalize(self, _drain, os.getpid(), self._sources).atexit = False

    def prepare(self, data: Any, memory: BatchMemory | None) -> Any:
        """Page-lock the engine's memory, or else put the tensors into page-locked memory."""
        if memory is not None:
            self._locks.lock(memory)
        # A no-op for tensors whose memory is page-locked.
        return pinned(data)

    def begin(self, data: Any) -> _InFlight:
        """Put the copy of the batch into the stream."""
        self._release()
        sources: list[torch.Tensor] = []
        tensors: list[torch.Tensor] = []
        objects: list[Any] = []

        def leave(value: Any) -> Any:
            objects.append(value)
            return value

        def move(tensor: torch.Tensor) -> Any:
            if tensor.device == self.device:
                return tensor
            if tensor.layout is not torch.strided or tensor.is_nested:
                return leave(tensor)  # of several tensors, and without a `record_stream`
            copied = tensor.to(self.device, non_blocking=True)
            sources.append(tensor)
            tensors.append(copied)
            return copied

        with torch.cuda.stream(self._stream):
            try:
                moved = change_tensors(data, move, method="to", change_object=leave)
            finally:
                # Also for a batch that found room only in part.
                done = self._stream.record_event()
                self._sources.append((done, sources))
        return _InFlight(moved, tensors, done, bool(objects))

    def end(self, begun: _InFlight) -> Any:
        """Let the caller's stream wait for the copy."""
        self._release()
        consumer = torch.cuda.current_stream(self.device)
        consumer.wait_event(begun.done)
        for tensor in begun.tensors:
            # Its memory belongs to the copying stream. When the program lets go of it, kernels
            # of the consumer may still read it: the next copy into it has to come after them.
            tensor.record_stream(consumer)
        if not begun.has_objects:
            return begun.data
        # On the caller's stream: which memory they take on another one is not known.
        move = partial(moved_object, device=self.device)
        return change_tensors(begun.data, move, method="to", change_object=move)

    def _release(self) -> None:
        """Let go of the sources whose copies are done."""
        # `batch_at` may copy in another thread than the loop.
        with self._lock:
            while self._sources and self._sources[0][0].query():  # type: ignore[no-untyped-call]
                self._sources.popleft()


def _drain(pid: int, sources: deque[tuple[torch.cuda.Event, list[torch.Tensor]]]) -> None:
    """Wait for the copies that are in progress."""
    while sources and pid == os.getpid():
        sources[0][0].synchronize()
        sources.popleft()


Copier = StreamCopier | DirectCopier


def copier_for(device: torch.device) -> Copier:
    """The copier that suits the device."""
    return StreamCopier(device) if device.type == "cuda" else DirectCopier(device)
