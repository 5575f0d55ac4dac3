"""The stages as methods: `dataset.shuffle(1000).decode("rgb").to_tuple("jpg", "cls")`.

Each method returns a new pipeline with one more stage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

from shardwise.compat.webdataset import autodecode, filters
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.readers import find_ranks


def _method(make_stage: Callable[..., Any]) -> Any:
    """A method with the arguments of `make_stage`, whose stage it adds."""

    def method(self: FluidInterface, *args: Any, **kw: Any) -> Any:
        return self.compose(make_stage(*args, **kw))

    method.__doc__ = make_stage.__doc__
    return method


class FluidInterface:
    """Methods for a class with `compose(*stages)`."""

    def compose(self, *args: Any) -> Self:
        """A new pipeline with more stages."""
        raise NotImplementedError(f"{type(self).__name__} has no compose(*stages)")

    associate = _method(filters.associate)
    batched = _method(filters.batched)
    extract_keys = _method(filters.extract_keys)
    info = _method(filters.info)
    lmdb_cached = _method(filters.LMDBCached)
    log_keys = _method(filters.log_keys)
    map = _method(filters.map)
    map_dict = _method(filters.map_dict)
    map_tuple = _method(filters.map_tuple)
    mcached = _method(filters.Cached)
    rename = _method(filters.rename)
    rename_keys = _method(filters.rename_keys)
    rsample = _method(filters.rsample)
    select = _method(filters.select)
    slice = _method(filters.slice)
    to_tuple = _method(filters.to_tuple)
    unbatched = _method(filters.unbatched)
    unlisted = _method(filters.unlisted)
    xdecode = _method(filters.xdecode)

    def listed(self, batchsize: int, partial: bool = True) -> Self:
        """Gather samples into lists of `batchsize`."""
        return self.compose(filters.batched(batchsize, collation_fn=None, partial=partial))

    def shuffle(self, size: int, **kw: Any) -> Self:
        """Shuffle through a buffer of `size` samples; below 1 it has no effect."""
        return self if size < 1 else self.compose(filters.shuffle(size, **kw))

    def decode(self, *args: Any, handler: Any = reraise_exception, **kw: Any) -> Self:
        """Decode fields by names such as "rgb" and by functions; see `autodecode.Decoder`."""
        handlers = [autodecode.ImageHandler(x) if isinstance(x, str) else x for x in args]
        return self.compose(filters.map(autodecode.Decoder(handlers, **kw), handler=handler))

    def ddp_equalize(self, length: int, with_length: bool = True) -> Self:
        """Give each rank length // world_size items an epoch. Old: use `with_epoch`."""
        warnings.warn(
            "ddp_equalize is deprecated: use .with_epoch(length // world_size)",
            DeprecationWarning,
            stacklevel=2,
        )
        num = length // find_ranks().world_size
        if num < 1:
            raise ValueError(f"ddp_equalize({length}): fewer items than ranks")
        result: Any = self.compose()
        result = result.with_epoch(num)
        return result.with_length(num, silent=True) if with_length else result  # type: ignore[no-any-return]
