"""The output of a loader: arrays or tensors, on which device, as a dict or a tuple.

Reaches `shardwise.tensors` when the first tensors are made, so that arrays need no torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from shardwise.base.arguments import check_choice
from shardwise.base.collate import named
from shardwise.base.plugins import find
from shardwise.engine.request import Batch

_OUTPUTS = ("torch", "numpy", "jax")


class Output:
    """Turns batches of arrays into the user's batches.

    Args:
        kind: "torch", "numpy" or "jax".
        sharding: of arrays of JAX; `remainder` is the loader's.
        as_tuple: the columns of a batch that is a tuple, in their order; None for dicts, and where
            a collate of the user's made the batch.
        not_nested: the fields of a fixed shape, where others of arrays become nested tensors; None
            where none does.

    Raises:
        ValueError: an option does not apply to arrays, or the kind is unknown.
    """

    def __init__(
        self,
        kind: str,
        *,
        device: Any = None,
        sharding: Any = None,
        remainder: str = "drop",
        pin_memory: bool = False,
        as_tuple: tuple[str, ...] | None = None,
        not_nested: Collection[str] | None = None,
        cut: Callable[[Any], Any] | None = None,
    ) -> None:
        check_choice("output", kind, _OUTPUTS)
        if kind != "torch":
            if not_nested is not None:
                raise ValueError(f"ragged='nested' makes torch tensors, not output={kind!r}")
            if pin_memory:
                raise ValueError(f"pin_memory=True makes torch tensors, not output={kind!r}")
            if device is not None:
                raise ValueError(f"device={str(device)!r} is for tensors, not output={kind!r}")
        if sharding is not None and kind != "jax":
            raise ValueError(f"sharding={sharding!r:.60} is for output='jax', not output={kind!r}")
        self.kind = kind
        self.arrays = find("outputs", kind)(sharding, remainder) if kind == "jax" else None
        self.device: Any = None
        if device is not None:
            from shardwise.tensors.device import checked_device

            self.device = checked_device(device)
        self.pin_memory = pin_memory
        self.as_tuple = as_tuple
        self._not_nested = not_nested
        self._cut = cut
        self._copier: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The copier does not travel: it has a stream of this process."""
        return {**self.__dict__, "_copier": None}

    def ahead(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        """The batches, with the copy of the next one to the device in progress, if there is one.

        Called before the executor makes any: what `prepare` needs of the caller's thread is here.
        """
        if self.kind != "torch":
            return batches
        # Imports torch in this thread.
        from shardwise.tensors.device import copier_for, look_ahead

        if not self._copies:
            return batches
        # Not made earlier: a program may choose its device after making the loader.
        self._copier = self._copier or copier_for(self.device)
        return look_ahead(self._prepare_each(batches), self._copier)

    def prepare(self, batch: Batch) -> None:
        """Make tensors of a batch's arrays, page-locked where that is requested.

        An executor calls it in one of its threads.
        """
        for part in batch.parts or [batch]:
            began = time.perf_counter()
            self._prepare(part)
            part.stages.add("collate", time.perf_counter() - began)

    def of(self, batch: Batch) -> Any:
        if not batch.is_prepared:
            self._prepare(batch)
        data = batch.data
        if self._not_nested is not None:
            from shardwise.tensors.convert import to_nested

            data = to_nested(data)
        if self.as_tuple is None:
            return data
        return tuple(data[name] for name in named(data, self.as_tuple))

    def range(self, name: str) -> AbstractContextManager[object]:
        """A range of torch's profiler, where there is one that could be recording."""
        if self.kind != "torch" or "torch" not in sys.modules:
            return nullcontext()
        from shardwise.tensors.convert import named_range

        return named_range(name)

    def _prepare_each(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        with closing(batches):
            for batch in batches:
                if not batch.is_prepared:
                    began = time.perf_counter()
                    self._prepare(batch)
                    batch.stages.add("hand over", time.perf_counter() - began)
                yield batch

    def _prepare(self, batch: Batch) -> None:
        batch.is_prepared = True
        if self._cut is not None:
            batch.data = self._cut(batch.data)
        if self.arrays is not None:
            batch.data, batch.memory = self.arrays(batch.data), None
        if self.kind != "torch":
            return
        from shardwise.tensors.containers import pinned
        from shardwise.tensors.convert import has_accelerator, to_tensors

        data = batch.data
        if isinstance(data, dict):
            if self._not_nested is not None:
                from shardwise.tensors.convert import to_jagged

                data = to_jagged(data, fixed=self._not_nested)
            data = to_tensors(data)
        if self._copies:
            data = self._copier.prepare(data, batch.memory)
        elif self.pin_memory and has_accelerator():
            # Copied, even from memory that could be page-locked in place: torch knows which copies
            # of the program still read memory only if its own allocator made it.
            data = pinned(data)
        batch.data = data
        batch.memory = None

    @property
    def _copies(self) -> bool:
        """Whether batches are copied to a device; they are built in host memory."""
        return self.device is not None and self.device.type != "cpu"
