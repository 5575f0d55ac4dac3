"""The loader's state: where an epoch is, and what the order must be for that to mean anything.

Under 1 KB of JSON, the same on all ranks, without a world size or batch size in it: any cluster
may take it up (I4). A state is foreign data until `from_dict` has checked it; a `DataOrder` makes
and reads the states of its data.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from shardwise.base.errors import StateError
from shardwise.plan.left_out import Excluded
from shardwise.plan.plan import Plan
from shardwise.plan.protocol import Sampler, past_of

_VERSION, _VERSION_EXCLUDED = 1, 2
_OPTIONAL = ("run", "excluded", "skipped")
_MISSING = object()
_OTHER_DATA = (
    "the fingerprint stands for the data: names, sizes and counts of shards, a subset, a filter; "
    "open the data that the state was taken on, or start without it; or pass grown='next_epoch' to "
    "load_state_dict if shards came behind those of the state"
)


@dataclass(frozen=True)
class LoaderState:
    """A position in an epoch's global order, and what the order depends on.

    Attributes:
        epoch: from 0 on.
        position: positions of the epoch that were yielded, over all ranks.
        fingerprint: the dataset's.
        num_samples: positions in the epoch.
        order: the sampler's `spec()`.
        run: the id of the run that took the state, for `coverage=`; "" where it has none.
        excluded: the samples that are left out on purpose, as `Excluded.spec`; None for none.
        skipped: the last steps that were skipped on purpose: epoch, first and last position.
    """

    epoch: int
    position: int
    fingerprint: str
    num_samples: int
    order: dict[str, Any]
    run: str = ""
    excluded: Mapping[str, Any] | None = None
    skipped: Sequence[Sequence[int]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON; what it has not is not in it.

        Its version is 2 where samples are excluded: earlier releases would give them.
        """
        version = _VERSION if self.excluded is None else _VERSION_EXCLUDED
        known = vars(self).items()
        return {"version": version} | {k: v for k, v in known if v or k not in _OPTIONAL}

    @classmethod
    def from_dict(cls, state: object) -> LoaderState:
        """Read a state that `to_dict` gave, perhaps in another release."""
        if not isinstance(state, Mapping):
            raise StateError(f"the state must be a dict, not {type(state).__name__}")
        if "version" not in state:
            raise StateError(f"the state has no 'version'; it has {_names(state)}")
        if state["version"] not in (_VERSION, _VERSION_EXCLUDED):
            raise StateError(
                f"the state has version {state['version']!r}, this release reads {_VERSION} and "
                f"{_VERSION_EXCLUDED}; load it with the release that wrote it"
            )
        epoch = _count(state, "epoch")
        position = _count(state, "position")
        num_samples = _count(state, "num_samples")
        if position > num_samples:
            raise StateError(
                f"the state's position {position} is behind the end of its epoch of "
                f"{num_samples} samples"
            )
        fingerprint = _entry(state, "fingerprint")
        if not isinstance(fingerprint, str):
            raise StateError(f"the state's fingerprint must be a string, not {fingerprint!r}")
        order = _entry(state, "order")
        if not isinstance(order, Mapping) or not all(isinstance(name, str) for name in order):
            raise StateError(f"the state's order must be a dict with string keys, not {order!r}")
        run = state.get("run", "")
        if not isinstance(run, str):
            raise StateError(f"the state's run must be a string, not {run!r}")
        excluded, skipped = state.get("excluded"), state.get("skipped", ())
        if not isinstance(excluded, Mapping | None) or not _are_ranges(skipped):
            odd = {"excluded": excluded, "skipped": skipped}
            raise StateError(f"the state's record of what was left out is damaged: {odd!r:.200}")
        return cls(epoch, position, fingerprint, num_samples, dict(order), run, excluded, skipped)

    def in_next_epoch(self) -> LoaderState:
        """The same position, an epoch's end being the start of the next one."""
        if not 0 < self.num_samples == self.position:
            return self
        return replace(self, epoch=self.epoch + 1, position=0)

    def check(self, fingerprint: str, num_samples: int, order: Mapping[str, Any]) -> None:
        """Return if this state belongs to a loader of that data and order."""
        mine = {"fingerprint": self.fingerprint, "num_samples": self.num_samples}
        its = {"fingerprint": fingerprint, "num_samples": num_samples}
        # Apart: an order has its own num_samples.
        differing = dict.fromkeys([*_differences(mine, its), *_differences(self.order, order)])
        what = "the state belongs to other data, another seed or another order"
        is_same_data = self.fingerprint == fingerprint
        _refuse(differing, what, _remedy(self.order, order) if is_same_data else _OTHER_DATA)

    def check_past(self, num_samples: int, past: Mapping[str, Any]) -> None:
        """Return if the order up to this state is the one of a loader, whatever comes after.

        `past` is what the order of the loader depends on up to the state, which was taken after
        `num_samples` since the start of the first epoch.
        """
        _refuse(
            _differences(self.order, past),
            f"the state was taken after {num_samples} samples, and the order of these is not this "
            "loader's",
            "weights and datasets may change from the state's position on only: keep its values up "
            "to there, or start without the state",
        )


def _refuse(differing: Iterable[str], what: str, remedy: str) -> None:
    lines = "".join(f"  {line}\n" for line in differing)
    if lines:
        raise StateError(f"{what}:\n{lines}{remedy}")


def _remedy(mine: Mapping[str, Any], its: Mapping[str, Any]) -> str:
    """The remedy for a state of another order, for messages."""
    shape = ("lanes", "window")
    is_shape_alone = {**mine, **{name: its.get(name) for name in shape}} == its
    if mine.get("sampler") == "window" == its.get("sampler") and is_shape_alone:
        # As of release 0.2, data of very many shards have more lanes.
        shaped = ", ".join(f"{name}={mine.get(name)}" for name in ("seed", *shape))
        return (
            "to go on in the state's order, pass sampler=shardwise.plan.WindowSampler("
            f"ds.shard_sizes, {shaped}) in place of shuffle= and seed="
        )
    return "load it into a loader with the state's values, or start without it"


def _differences(
    mine: Mapping[str, Any], its: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """One line for each entry that differs, inner samplers' entries by a dotted name."""
    for name in dict.fromkeys((*mine, *its)):
        left, right = mine.get(name, _MISSING), its.get(name, _MISSING)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _differences(left, right, f"{prefix}{name}.")
        elif left != right:
            yield f"{prefix}{name}: the state has {_describe(left)}, this loader {_describe(right)}"


def _describe(value: object) -> str:
    return "none" if value is _MISSING else repr(value)


def _entry(state: Mapping[Any, Any], name: str) -> Any:
    if name not in state:
        raise StateError(f"the state has no {name!r}; it has {_names(state)}")
    return state[name]


def _count(state: Mapping[Any, Any], name: str) -> int:
    value = _entry(state, name)
    # bool is an int in Python, but no count.
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise StateError(f"the state's {name} must be a whole number from 0 on, not {value!r}")
    return value


def _are_ranges(skipped: object) -> bool:
    return isinstance(skipped, Sequence) and all(
        isinstance(each, Sequence) and len(each) == 3 and all(type(n) is int for n in each)
        for each in skipped
    )


def _names(state: Mapping[Any, Any]) -> str:
    return ", ".join(repr(name) for name in state) or "nothing"


@dataclass(frozen=True)
class DataOrder:
    """A dataset ("" for one without a fingerprint) and its order: what a state belongs to."""

    fingerprint: str
    sampler: Sampler
    excluded: Excluded | None = None

    def state(
        self, epoch: int, position: int, *, run: str = "", skipped: Sequence[Sequence[int]] = ()
    ) -> LoaderState:
        """A state of this data and order, taken in a run."""
        num_samples = self.sampler.num_samples
        past = past_of(self.sampler, epoch * num_samples + position)
        return LoaderState(
            epoch=epoch,
            position=position,
            fingerprint=self.fingerprint,
            num_samples=num_samples,
            order=self.sampler.spec() if past is None else past,
            run=run,
            excluded=None if self.excluded is None else self.excluded.spec(),
            skipped=skipped,
        )

    def state_after(
        self, plan: Plan, epoch: int, num_batches: int, *, run: str = ""
    ) -> LoaderState:
        """The state after some batches of a pass over `plan`, which was resumed at its start.

        After the last one it is the end of the epoch, also where that drops samples: naming the
        epoch again continues with nothing left of it, naming the next one starts that.
        """
        if 0 < num_batches == plan.num_steps:
            return self.state(epoch, self.sampler.num_samples, run=run)
        return self.state(epoch, plan.position_after(num_batches), run=run)

    def read(self, state: Mapping[str, Any]) -> LoaderState:
        """Read a state of this data and order."""
        loaded = LoaderState.from_dict(state)
        num_samples = self.sampler.num_samples
        since_begin = loaded.epoch * loaded.num_samples + loaded.position
        past = past_of(self.sampler, since_begin)
        if past is None:
            loaded.check(self.fingerprint, num_samples, self.sampler.spec())
            return loaded
        loaded.check_past(since_begin, past)
        if loaded.num_samples == num_samples:
            return loaded
        # Epochs of another length: the same position since the start.
        epoch, position = divmod(since_begin, num_samples)
        return replace(loaded, epoch=epoch, position=position, num_samples=num_samples)


def checked_epoch(epoch: SupportsIndex) -> int:
    """An epoch that a user chose, as an int."""
    number = operator.index(epoch)
    if number < 0:
        raise ValueError(f"epoch={number}: use 0 or more")
    return number
