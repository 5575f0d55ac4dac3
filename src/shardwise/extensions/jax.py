"""Batches as arrays of JAX on a sharding: `output="jax"`; imports no torch.

The rows of a global batch are divided as the sharding says, so it also says which rank a process
is: processes whose devices have the same rows are one rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import MissingExtraError

try:
    import jax
except ModuleNotFoundError:
    raise MissingExtraError("output='jax' needs JAX, which is not there", extra="jax") from None
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding


class JaxArrays:
    """Makes arrays of JAX of a batch's arrays; `remainder` is the loader's.

    Raises:
        TypeError: `sharding` is neither None, a sharding nor a device.
        ValueError: it divides rows, and the last batch may not be divided.
    """

    def __init__(self, sharding: Any, remainder: str) -> None:
        if isinstance(sharding, jax.Device):
            sharding = SingleDeviceSharding(sharding)
        if not isinstance(sharding, Sharding | None):
            raise TypeError(
                f"sharding={sharding!r:.80}: give a jax.sharding.Sharding or a device, such as "
                "NamedSharding(mesh, PartitionSpec('data'))"
            )
        self._sharding: Any = sharding
        self._is_shared = sharding is not None and not sharding.is_fully_addressable
        self._num_parts = 1 if sharding is None else len(self._rows_by_process()[_process()])
        self._num_rows: int | None = None
        if remainder == "uneven" and (self._is_shared or self._num_parts > 1):
            raise ValueError(
                "the last batch of remainder='uneven' may have any number of rows, which this "
                "sharding can't divide: use remainder='pad' or 'drop'"
            )

    def ranks(
        self, rank: int | None, world_size: int | None, group: Any, global_batch_size: int | None
    ) -> tuple[int | None, int | None]:
        """Return the rank and world size by the sharding, by the arguments, or by JAX.

        Raises:
            ValueError: the arguments contradict the sharding, or ranks would have unequal batches.
        """
        is_given = any(each is not None for each in (rank, world_size, group))
        if not self._is_shared:
            is_known = is_given or not jax.distributed.is_initialized()
            return (rank, world_size) if is_known else (_process(), jax.process_count())
        parts = self._rows_by_process()
        shares = sorted(set(parts.values()))
        if len(set().union(*shares)) != len(shares) * self._num_parts:
            raise ValueError(f"{self._sharding} gives processes overlapping or unequal rows")
        found = shares.index(parts[_process()]), len(shares)
        if is_given and (rank, world_size) != found:
            raise ValueError(
                f"rank={rank}, world_size={world_size}, group={group!r:.40}, and by the sharding "
                f"this process has the rows of rank {found[0]} of {found[1]}: leave them out"
            )
        if global_batch_size is not None and global_batch_size % found[1]:
            raise ValueError(f"global_batch_size={global_batch_size}: a multiple of {found[1]}")
        return found

    def __call__(self, data: Any) -> Any:
        """Return the data with arrays of JAX; "__index__", which has int64, and lists stay."""
        if type(data) is dict:
            return {
                name: each if name == "__index__" else self(each) for name, each in data.items()
            }
        if type(data) is tuple:
            return tuple(map(self, data))
        is_known = isinstance(data, np.ndarray) and data.dtype.kind in "biufc"
        return (
            self._place(data.astype(data.dtype.newbyteorder("="), copy=False)) if is_known else data
        )

    def _place(self, array: NDArray[Any]) -> Any:
        made = jax.dtypes.canonicalize_dtype(array.dtype)
        if made.kind in "iu" and made.itemsize < array.itemsize and array.size:
            low, high, bounds = array.min(), array.max(), np.iinfo(made)
            if low < bounds.min or high > bounds.max:
                raise ValueError(
                    f"{array.dtype} values from {low} to {high} do not fit into {made}, which JAX "
                    "makes of them: jax.config.update('jax_enable_x64', True), or map() them"
                )
        if self._sharding is None:
            return jax.device_put(array)
        num_rows = len(array)
        self._num_rows = self._num_rows or num_rows
        if num_rows % self._num_parts or (self._is_shared and num_rows != self._num_rows):
            raise ValueError(
                f"a batch of {num_rows} rows can't be divided as the sharding says: use a "
                f"batch_size that is a multiple of {self._num_parts}, and no on_error='skip'"
            )
        return jax.make_array_from_process_local_data(_for_ndim(self._sharding, array.ndim), array)

    def _rows_by_process(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """The rows that the devices of each process have, of as many as there are devices."""
        num_rows, sharding = self._sharding.num_devices, _for_ndim(self._sharding, 1)
        rows: dict[int, set[tuple[int, int]]] = {_process(): set()}
        for device, (part,) in sharding.devices_indices_map((num_rows,)).items():
            rows.setdefault(device.process_index, set()).add(part.indices(num_rows)[:2])
        return {process: tuple(sorted(parts)) for process, parts in rows.items()}


def _process() -> int:
    return int(jax.process_index())


def _for_ndim(sharding: Any, ndim: int) -> Any:
    """The sharding for arrays of fewer dimensions than it names, such as "__valid__"."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:ndim]))
    return sharding
