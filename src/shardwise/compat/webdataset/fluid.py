"""The stages as methods: `dataset.shuffle(1000).decode("rgb").to_tuple("jpg", "cls")`.

Each method returns a new pipeline with one more stage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

from shardwise.compat.webdataset import autodecode, filters
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.place import find_ranks


class FluidInterface:
    """Methods for a class with `compose(*stages)`."""

    def compose(self, *args: Any) -> Self:
        """A new pipeline with more stages."""
        raise NotImplementedError(f"{type(self).__name__} has no compose(*stages)")

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = filters.default_collation_fn,
        partial: bool = True,
    ) -> Self:
        """Gather so many samples into a batch."""
        return self.compose(filters.batched(batchsize, collation_fn=collation_fn, partial=partial))

    def unbatched(self) -> Self:
        """Take batches apart."""
        return self.compose(filters.unbatched())

    def listed(self, batchsize: int, partial: bool = True) -> Self:
        """Gather so many samples into a list."""
        return self.compose(filters.batched(batchsize, collation_fn=None, partial=partial))

    def unlisted(self) -> Self:
        """Take lists apart."""
        return self.compose(filters.unlisted())

    def log_keys(self, logfile: str | None = None) -> Self:
        """Append the keys that pass to a file."""
        return self.compose(filters.log_keys(logfile))

    def info(self, *args: Any, **kw: Any) -> Self:
        """Write the first samples that pass to stderr."""
        return self.compose(filters.info(*args, **kw))

    def associate(self, associator: Any, **kw: Any) -> Self:
        """Add what a dict or a function gives for each sample's key."""
        return self.compose(filters.associate(associator, **kw))

    def shuffle(self, size: int, **kw: Any) -> Self:
        """Shuffle through a buffer of so many samples; below 1 it has no effect."""
        return self if size < 1 else self.compose(filters.shuffle(size, **kw))

    def map(self, f: Callable[[Any], Any], handler: Any = reraise_exception) -> Self:
        """Apply a function to each sample; None leaves it out."""
        return self.compose(filters.map(f, handler=handler))

    def decode(
        self,
        *args: Any,
        pre: Any = None,
        post: Any = None,
        only: Any = None,
        partial: bool = False,
        handler: Any = reraise_exception,
    ) -> Self:
        """Decode fields by names such as "rgb" and by functions; see `autodecode.Decoder`."""
        handlers = [autodecode.ImageHandler(x) if isinstance(x, str) else x for x in args]
        decoder = autodecode.Decoder(handlers, pre=pre, post=post, only=only, partial=partial)
        return self.map(decoder, handler=handler)

    def map_dict(self, handler: Any = reraise_exception, **kw: Any) -> Self:
        """Apply a function to each of some fields."""
        return self.compose(filters.map_dict(handler=handler, **kw))

    def select(self, predicate: Callable[[Any], Any], **kw: Any) -> Self:
        """Keep the samples for which a function is true."""
        return self.compose(filters.select(predicate, **kw))

    def to_tuple(self, *args: Any, **kw: Any) -> Self:
        """Make tuples of some fields."""
        return self.compose(filters.to_tuple(*args, **kw))

    def map_tuple(self, *args: Any, handler: Any = reraise_exception) -> Self:
        """Apply one function to each item of tuples."""
        return self.compose(filters.map_tuple(*args, handler=handler))

    def slice(self, *args: Any) -> Self:
        """Keep a range of the items of each pass, as `itertools.islice`."""
        return self.compose(filters.slice(*args))

    def rename(self, **kw: Any) -> Self:
        """Rename fields: new="old;older"."""
        return self.compose(filters.rename(**kw))

    def rsample(self, p: float = 0.5) -> Self:
        """Keep each sample with a probability."""
        return self.compose(filters.rsample(p))

    def rename_keys(self, *args: Any, **kw: Any) -> Self:
        """Rename fields by patterns."""
        return self.compose(filters.rename_keys(*args, **kw))

    def extract_keys(self, *args: Any, **kw: Any) -> Self:
        """Make tuples of the fields that match patterns."""
        return self.compose(filters.extract_keys(*args, **kw))

    def xdecode(self, *args: Any, **kw: Any) -> Self:
        """Decode fields by patterns."""
        return self.compose(filters.xdecode(*args, **kw))

    def mcached(self) -> Self:
        """Keep all samples in memory for later passes."""
        return self.compose(filters.Cached())

    def lmdb_cached(self, *args: Any, **kw: Any) -> Self:
        """Keep all samples in an LMDB database for later passes."""
        return self.compose(filters.LMDBCached(*args, **kw))

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
