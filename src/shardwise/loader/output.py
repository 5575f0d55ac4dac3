"""The output of a loader: arrays or tensors, on which device, as a dict or a tuple.

Reaches `shardwise.tensors` when the first tensors are made, so that arrays need no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from shardwise.base.collate import named
from shardwise.engine.request import Batch

_OUTPUTS = ("torch", "numpy")


class Output:
    """Turns batches of arrays into the user's batches.

    Args:
        kind: "torch" or "numpy".
        as_tuple: the columns of a batch that is a tuple, in their order; None for dicts, and where
            a collate of the user's made the batch.
        not_nested: the fields of a fixed shape, where others of arrays become nested tensors; None
            where none does.

    Raises:
        ValueError: an option that means nothing for arrays, or no such kind.
    """

    def __init__(
        self,
        kind: str,
        *,
        device: Any = None,
        pin_memory: bool = False,
        as_tuple: tuple[str, ...] | None = None,
        not_nested: Collection[str] | None = None,
    ) -> None:
        if kind not in _OUTPUTS:
            raise ValueError(f"output={kind!r}: use one of {', '.join(map(repr, _OUTPUTS))}")
        if kind != "torch":
            if not_nested is not None:
                raise ValueError(f"ragged='nested' makes torch tensors, not output={kind!r}")
            if pin_memory:
                raise ValueError(f"pin_memory=True makes torch tensors, not output={kind!r}")
            if device is not None:
                raise ValueError(f"device={str(device)!r} is for tensors, not output={kind!r}")
        self.kind = kind
        self.device: Any = None
        if device is not None:
            from shardwise.tensors.device import checked_device

            self.device = checked_device(device)
        self.pin_memory = pin_memory
        self.as_tuple = as_tuple
        self._not_nested = not_nested
        self._copier: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The copier does not travel: it has a stream of this process."""
        return {**self.__dict__, "_copier": None}

    def ahead(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        """The batches, with the copy of the next one to the device in progress, if there is one."""
        if not self._copies:
            return batches
        if self._not_nested is not None:
            batches = self._jagged(batches, self._not_nested)
        from shardwise.tensors.device import copier_for, look_ahead

        # Not made earlier: a program may choose its device after making the loader.
        self._copier = self._copier or copier_for(self.device)
        return look_ahead(batches, self._copier)

    def of(self, batch: Batch) -> Any:
        """The user's batch."""
        data = batch.data
        if isinstance(data, dict) and self.kind == "torch" and not self._copies:
            from shardwise.tensors.convert import to_tensors

            if self._not_nested is not None:
                data = self._to_jagged(data, self._not_nested)
            data = to_tensors(data, pin_memory=self.pin_memory)
        if self._not_nested is not None:
            from shardwise.tensors.nested import to_nested

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

    def _jagged(
        self, batches: Generator[Batch, None, None], fixed: Collection[str]
    ) -> Generator[Batch, None, None]:
        with closing(batches):
            for batch in batches:
                batch.data = self._to_jagged(batch.data, fixed)
                yield batch

    def _to_jagged(self, data: dict[str, Any], fixed: Collection[str]) -> dict[str, Any]:
        from shardwise.tensors.nested import to_jagged

        return to_jagged(data, fixed=fixed, pin_memory=self.pin_memory)

    @property
    def _copies(self) -> bool:
        """Whether batches are copied to a device; they are built in host memory."""
        return self.device is not None and self.device.type != "cpu"
