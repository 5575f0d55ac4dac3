"""A pipeline that begins with a loader: stages in the main process, behind the workers'.

Its state is the loader's, and where its own stages keep items back, how far the pass is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.compat.webdataset.loader import StatefulLoader
from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.place import Place
from shardwise.compat.webdataset.positions import VERSION, At, Start, check_state
from shardwise.compat.webdataset.steady import is_steady


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
        """Have this epoch begin next; the one that was just loaded keeps its position."""
        if epoch != self.next_epoch:
            super().set_epoch(epoch)
            num_passes = 1 if self._num_passes > epoch else self._num_passes
            self.loader.set_epoch(epoch * num_passes)

    def _pass(self, at: At, place: Place, skip: int = 0) -> Iterator[Any]:
        if self.loader.has_state:
            at.origin = self.loader.start_state()
        return super()._pass(at, place, skip)

    def _goes_on(self) -> bool:
        """Whether the loader's place is also this pipeline's.

        Where stages behind the loader keep items back, the pass is run through again. A pass
        without an end can't be: what those stages held is drawn anew.
        """
        return self.loader.is_endless or all(map(is_steady, self.pipeline[1:]))

    def state_dict(self) -> dict[str, Any]:
        """Where this pipeline is, as JSON: for `load_state_dict` of one like it.

        Stages behind the loader that keep samples back, such as a shuffle, have the epoch read
        again up to there; in the pipeline of the workers, they cost only reading. With a dataset
        without end (`resampled`), what such stages held is drawn anew.
        """
        at, loader = self._at, self.loader
        inside = at is not None and (not at.is_done or self.goes_on)
        place = loader.state_dict()
        number = taken = 0
        if at is not None and inside:
            number = at.number
            if not self._goes_on():
                assert at.origin is not None
                place, taken = at.origin, at.taken
        is_done = at is None or at.is_done
        return {
            "version": VERSION,
            "size": self._identity()["size"],
            "epoch": self.next_epoch if at is None or is_done else at.epoch,
            "pass": number if inside else None,
            "taken": taken,
            "yielded": 0 if at is None or is_done else at.yielded,
            "loader": place,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state says, with the next iteration."""
        check_state(state, {"size": self._identity()["size"]})
        self.loader.load_state_dict(state["loader"])
        self._resume = state
        self._live = self._at = None
        self._clock.set(state["epoch"])

    def _start(self, epoch: int, place: Place) -> Start | None:  # noqa: ARG002
        state, self._resume = self._resume, None
        if state is None or state["epoch"] != epoch or state["pass"] is None:
            return None
        return Start(state["pass"], state["taken"], state["yielded"], is_resumed=True)
