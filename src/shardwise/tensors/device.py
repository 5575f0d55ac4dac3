"""Batches on a device, with the copy of the next batch overlapping the program's computation.

On CUDA a batch is copied from page-locked memory on a stream of its own; the consumer's stream
waits for that copy alone, on the device, and the program never does. Batches are prefetched one
ahead, so that the copy of batch k+1 is queued before batch k is yielded. The loader counts the
batches that are yielded here (I4), and an error of batch k+1 is raised after batch k.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import torch

from shardwise.engine.request import Batch
from shardwise.tensors.convert import to_tensors


class Copier(Protocol):
    """Copies the data of batches to a device, in two steps."""

    def begin(self, data: Any) -> Any:
        """Start the copy of one batch; the source may be freed at once."""
        ...

    def end(self, begun: Any) -> Any:
        """The data on the device, safe to use in the caller's current stream."""
        ...


def checked_device(device: Any) -> torch.device:
    """The device of this name, if it can be used here; makes no CUDA context.

    Raises:
        ValueError: it names no device, or one that is not here; the message has the value.
    """
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
            raise ValueError(f"device={device!r} can't be used here: {error}") from error
    return checked


def copier_for(device: torch.device) -> Copier:
    """The copier that suits the device."""
    return StreamCopier(device) if device.type == "cuda" else DirectCopier(device)


def look_ahead(
    batches: Generator[Batch, None, None], copier: Copier
) -> Generator[Batch, None, None]:
    """Yield the same batches with their data on the device, and the next copy in progress.

    Prefetches one batch. An error of that batch is raised in its place,
    after the batch before it was yielded. Closing this closes `batches`.
    """
    waiting: tuple[Batch, Any] | None = None
    with closing(batches):
        while True:
            try:
                batch = next(batches, None)
                following = None if batch is None else _begun(batch, copier)
            except Exception:  # the next batch's own, whatever it is: raised in its place
                if waiting is not None:
                    yield _arrived(waiting, copier)
                raise
            if waiting is not None:
                yield _arrived(waiting, copier)
            if following is None:
                return
            waiting = following


def _begun(batch: Batch, copier: Copier) -> tuple[Batch, Any]:
    began = time.perf_counter()
    begun = copier.begin(batch.data)
    batch.stages.add("hand over", time.perf_counter() - began)
    # Often a view of memory that the engine reuses.
    batch.data = None
    return batch, begun


def _arrived(waiting: tuple[Batch, Any], copier: Copier) -> Batch:
    batch, begun = waiting
    began = time.perf_counter()
    batch.data = copier.end(begun)
    batch.stages.add("hand over", time.perf_counter() - began)
    return batch


class DirectCopier:
    """Copies in the caller's thread, before `begin` returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self, data: Any) -> Any:
        """Copy."""
        return _moved(_tensors(data), lambda tensor: tensor.to(self.device))

    def end(self, begun: Any) -> Any:
        """There is nothing to wait for."""
        return begun


class _InFlight(NamedTuple):
    """A batch that is being copied, the list of its tensors, and the event of the copy's end."""

    data: Any
    tensors: list[torch.Tensor]
    done: torch.cuda.Event


class StreamCopier:
    """Copies to a CUDA device on a stream of its own; begin and end never wait for the device.

    One a loader, used again in every epoch: torch keeps freed device memory for the stream that
    it was taken on.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def begin(self, data: Any) -> _InFlight:
        """Put the batch into page-locked memory, and its copy into the stream."""
        tensors: list[torch.Tensor] = []

        def move(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device == self.device:
                return tensor
            # torch reuses the page-locked memory only after the copy's event, though no reference
            # to it is left.
            source = tensor.pin_memory() if tensor.device.type == "cpu" else tensor
            copied = source.to(self.device, non_blocking=True)
            tensors.append(copied)
            return copied

        with torch.cuda.stream(self._stream):
            moved = _moved(_tensors(data), move)
            return _InFlight(moved, tensors, self._stream.record_event())

    def end(self, begun: _InFlight) -> Any:
        """Let the caller's stream wait for the copy."""
        consumer = torch.cuda.current_stream(self.device)
        consumer.wait_event(begun.done)
        for tensor in begun.tensors:
            # Its memory belongs to the copying stream. When the program lets go of it, kernels
            # of the consumer may still read it: the next copy into it has to come after them.
            tensor.record_stream(consumer)
        return begun.data


def _tensors(data: Any) -> Any:
    """A dict's arrays as tensors, as without a device; the copiers pin what they have to."""
    return to_tensors(data) if isinstance(data, dict) else data


def _moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Move the tensors in nested dicts, lists and tuples; all else stays the very same object."""
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, dict):
        changed = _changed(value.items(), move)
        if not changed:
            return value
        # A copy keeps the type, such as an OrderedDict's, and the order.
        copied = copy.copy(value)
        copied.update(changed)
        return copied
    if type(value) is list or type(value) is tuple or _is_named(value):
        changed = _changed(enumerate(value), move)
        if not changed:
            return value
        entries = [changed.get(i, entry) for i, entry in enumerate(value)]
        return type(value)(*entries) if _is_named(value) else type(value)(entries)
    return value


def _changed(entries: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> dict[Any, Any]:
    """The entries in which something was moved, by key or place."""
    moved = ((key, entry, _moved(entry, move)) for key, entry in entries)
    return {key: new for key, entry, new in moved if new is not entry}


def _is_named(value: Any) -> bool:
    """Whether it is a namedtuple; one that has a `to`, as PackedSequence, moves its own way."""
    return isinstance(value, tuple) and hasattr(value, "_fields") and not hasattr(value, "to")
