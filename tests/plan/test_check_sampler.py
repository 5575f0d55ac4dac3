"""The conformance kit finds each way to break the protocol."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shardwise.plan import FullSampler, SequentialSampler, VirtualEpochs, WeightedSampler
from shardwise.testing.samplers import check_sampler


class Broken:
    """A full shuffle with one thing changed."""

    def __init__(
        self,
        change: Callable[[np.ndarray, np.ndarray], Any] = lambda ids, positions: ids,
        num_samples: int = 50,
        spec: Any = None,
    ) -> None:
        self.num_samples = num_samples
        self._change = change
        self._spec = {"seed": 0} if spec is None else spec
        self._inner = FullSampler(num_samples)

    def indices(self, epoch: int, positions: np.ndarray) -> Any:
        return self._change(self._inner.indices(epoch, positions), positions)

    def spec(self) -> Any:
        return self._spec() if callable(self._spec) else self._spec


class Drifting(Broken):
    """Gives other ids at each call."""

    calls = 0

    def indices(self, epoch: int, positions: np.ndarray) -> Any:
        self.calls += 1
        return super().indices(epoch + self.calls, positions)


class Shared(Broken):
    """Hands out the array that it keeps."""

    def indices(self, epoch: int, positions: np.ndarray) -> Any:
        key = epoch, positions.tobytes()
        kept = self.__dict__.setdefault("kept", {})
        if key not in kept:
            kept[key] = super().indices(epoch, positions)
        return kept[key]


class Forgetful(Broken):
    """Loses its seed on the way to another process."""

    def __getstate__(self) -> dict[str, Any]:
        return {"num_samples": 50, "_inner": FullSampler(50, seed=1)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _change=lambda ids, positions: ids, _spec={"seed": 0})


class Unbounded(Broken):
    """Answers for positions that it has not."""

    def indices(self, epoch: int, positions: np.ndarray) -> Any:
        return super().indices(epoch, positions % 50)


def repeat_one(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.where(ids == 7, 8, ids)


def halve(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return ids // 2**20


def write_positions(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    positions[:1] = 0
    return ids


@pytest.mark.parametrize(
    ("sampler", "match"),
    [
        (Broken(repeat_one), r"1 ids more than once \(8\), 1 never \(7\)"),
        (Broken(lambda ids, positions: ids + 1), r"1 that it must not \(50\)"),
        (Broken(lambda ids, positions: ids.astype(np.int32)), "int32, not int64"),
        (Broken(lambda ids, positions: ids.tolist()), "a list, not an array"),
        (Broken(lambda ids, positions: ids[:-1]), "shape"),
        (Broken(write_positions), "changes the positions"),
        (Broken(lambda ids, positions: np.sort(ids)), "asked for alone"),
        (Drifting(), "asked twice"),
        (Shared(), "after a change to an earlier answer"),
        (Unbounded(), "not a ValueError"),
        (Broken(spec=[1]), "not a dict"),
        (Broken(spec={"seed": np.int64(1)}), "not JSON"),
        (Broken(spec={"range": (1, 2)}), "changed by JSON"),
        (Broken(num_samples=np.int64(5)), "not an int"),  # type: ignore[arg-type]
        (Forgetful(), "a pickled copy gives other ids"),
    ],
)
def test_a_broken_sampler_is_found(sampler: Any, match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        check_sampler(sampler, process=False)


def test_a_sampler_that_a_fresh_process_cannot_load_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Importable here, as a class typed into a session is, and nowhere else.
    session = ModuleType("of_this_session_only")
    session.Local = type("Local", (FullSampler,), {"__module__": session.__name__})
    monkeypatch.setitem(sys.modules, session.__name__, session)
    check_sampler(session.Local(50), process=False)
    with pytest.raises(AssertionError, match=r"(?s)fresh process.*of_this_session_only"):
        check_sampler(session.Local(50))


@pytest.mark.parametrize(
    ("sampler", "options", "match"),
    [
        (Broken(), {}, "does not pickle"),
        (Broken(halve, num_samples=10**9), {"max_positions": 30_000}, "positions repeat an id"),
        (VirtualEpochs(WeightedSampler(np.ones(20)), 7), {"ids": range(20)}, "never"),
        (SequentialSampler(20), {"ids": range(19), "repeats": True}, "must not"),
    ],
)
def test_what_breaks_a_promise_about_ids_or_copies_is_found(
    sampler: Any, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(AssertionError, match=match):
        check_sampler(sampler, process=False, **options)
