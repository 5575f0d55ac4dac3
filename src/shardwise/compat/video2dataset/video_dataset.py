"""`VideoDataset`: the pipeline that `get_video_dataset` makes.

Keeps I1 and the end of every epoch: shards are divided by arithmetic in each process. No process
asks another one, and least of all a worker, which has no process group.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from shardwise.compat.video2dataset.sample_stages import LeftOut
from shardwise.compat.webdataset.compat import WebDataset
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.readers import find_ranks, find_reader
from shardwise.compat.webdataset.shardlists import split_by_node


class VideoDataset(WebDataset):
    """Batches of clips, each sample once per epoch; `with_epoch(n)` gives each rank n batches."""

    def __init__(
        self,
        urls: Any,
        *,
        is_shuffled: bool = False,
        seed: Any = None,
        handler: Any = reraise_exception,
    ) -> None:
        super().__init__(
            urls,
            shardshuffle=is_shuffled,
            handler=handler,
            nodesplitter=split_by_node,
            # A worker without shards has nothing to do; a rank without is refused below.
            empty_check=False,
            seed=seed,
        )
        self.counts_left_out = LeftOut()

    @property
    def left_out(self) -> dict[str, int]:
        return self.counts_left_out.counts()

    def __iter__(self) -> Iterator[Any]:
        self._check_shards()
        return super().__iter__()

    def _check_shards(self) -> None:
        """Refuse a rank without shards; warn if ranks have different numbers of them."""
        ranks = find_ranks(inherited=self._inherited_ranks)
        num, size = len(getattr(self.pipeline[0], "urls", ())), ranks.world_size
        if num < size:
            raise ValueError(
                f"{num} shards for {size} ranks: some would get no sample. Write {size} shards or "
                "more, or read them by sw.tar and sw.DataLoader, which divide samples"
            )
        is_first = find_reader(inherited=ranks).worker == 0 and num % size
        if is_first and not self.is_sized and self._epochs.is_first_warning():
            warnings.warn(
                f"{num} shards are divided among {size} ranks, so that some have more batches "
                "than others, and training in step waits for ever at the end: .with_epoch(n) gives "
                "each rank n batches an epoch",
                stacklevel=3,
            )
