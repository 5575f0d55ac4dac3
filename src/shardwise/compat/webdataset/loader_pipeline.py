"""A pipeline that begins with a loader: stages in the main process, behind the workers'.

Its state is the loader's, and where its own stages keep items back, how far the pass is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.compat.webdataset.loader import StatefulLoader
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.positions import VERSION, Position, Start, check_state
from shardwise.compat.webdataset.readers import Reader
from shardwise.compat.webdataset.stages import is_stateless


class LoaderPipeline(DataPipeline):
    """A pipeline that begins with a loader."""

    def __init__(self, loader: StatefulLoader) -> None:
        super().__init__(loader, seed=getattr(loader.dataset, "seed", None))

    @property
    def loader(self) -> StatefulLoader:
        """The loader."""
        loader: StatefulLoader = self.pipeline[0]
        return loader

    @property
    def num_workers(self) -> int:
        """The loader's."""
        return self.loader.num_workers

    @property
    def batch_size(self) -> int | None:
        """The loader's."""
        return self.loader.batch_size

    @property
    def dataset(self) -> Any:
        """The loader's."""
        return self.loader.dataset

    def set_epoch(self, epoch: int) -> None:
        """Have this epoch begin next; the epoch that was just loaded keeps its position."""
        if epoch != self.next_epoch:
            super().set_epoch(epoch)
            num_passes = 1 if self._num_passes > epoch else self._num_passes
            self.loader.set_epoch(epoch * num_passes)

    def _pass(self, position: Position, skip: int = 0) -> Iterator[Any]:
        if self.loader.has_state:
            position.loader_state = self.loader.start_state()
        return super()._pass(position, skip)

    def _is_where_loader_is(self) -> bool:
        """Whether the loader's position is also this pipeline's.

        Where stages behind the loader keep items back, the pass is run through again. A pass
        without an end can't be: what those stages held is drawn anew.
        """
        return self.loader.is_endless or all(map(is_stateless, self.pipeline[1:]))

    def state_dict(self) -> dict[str, Any]:
        """Where this pipeline is, as JSON: for `load_state_dict` of one like it.

        Stages behind the loader that keep samples back, such as a shuffle, have the epoch read
        again up to there; in the pipeline of the workers, they cost only reading. With a dataset
        without end (`resampled`), what such stages held is drawn anew.

        Raises:
            StateError: the loader's dataset is no pipeline.
        """
        position, loader_state = self._position, self.loader.state_dict()
        number, num_prefix = None, 0
        if position is not None and (not position.is_done or self.goes_on):
            number = position.number
            if not self._is_where_loader_is():
                assert position.loader_state is not None
                loader_state, num_prefix = position.loader_state, position.num_prefix
        is_inside = position is not None and not position.is_done
        return {
            "version": VERSION,
            "size": self._identity()["size"],
            "epoch": position.epoch if position is not None and is_inside else self.next_epoch,
            "pass": number,
            "taken": num_prefix,
            "yielded": position.num_yielded if position is not None and is_inside else 0,
            "loader": loader_state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state says, with the next iteration.

        Raises:
            StateError: it belongs to other shards, another seed or size, another number of workers
                or ranks.
        """
        check_state(state, {"size": self._identity()["size"]})
        self.loader.load_state_dict(state["loader"])
        self._resume_from(state)

    def _start(self, epoch: int, reader: Reader) -> Start | None:  # noqa: ARG002
        state, self._loaded = self._loaded, None
        if state is None or state["epoch"] != epoch or state["pass"] is None:
            return None
        return Start(state["pass"], state["taken"], state["yielded"], is_resumed=True)
