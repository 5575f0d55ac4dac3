"""Conformance of executors and of resuming: what a new executor, or a change to one, must keep.

Both kits take batches with numpy output and raise `AssertionError` with what differs.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.inline import InlineExecutor
from shardwise.engine.request import BatchRequest, Executor
from shardwise.loader import DataLoader


def assert_batches_equal(left: Any, right: Any, *, at: str = "batch") -> None:
    """Compare two batches: the same keys in one order, types, dtypes, shapes and bytes."""
    assert type(left) is type(right), f"{at}: {type(left).__name__} and {type(right).__name__}"
    if isinstance(left, dict):
        assert list(left) == list(right), f"{at}: keys {list(left)} and {list(right)}"
        for name in left:
            assert_batches_equal(left[name], right[name], at=f"{at}[{name!r}]")
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype, f"{at}: dtypes {left.dtype} and {right.dtype}"
        assert left.shape == right.shape, f"{at}: shapes {left.shape} and {right.shape}"
        assert left.tobytes() == right.tobytes(), f"{at}: the bytes differ"
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), f"{at}: {len(left)} and {len(right)} entries"
        for i, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_batches_equal(one, other, at=f"{at}[{i}]")
    else:
        assert left == right, f"{at}: {left!r} and {right!r}"


def check_executor(make: Callable[[BatchBuilder], Executor], builder: BatchBuilder) -> None:
    """Hold an executor to the reference.

    It gives the same batches as the inline executor, in the order of the requests, also when it is
    run again, after an iterator was given up half-way, and after `close`; and no request gives no
    batch.

    Args:
        make: makes the executor that is to be checked.
        builder: a builder over a dataset of at least 8 samples.
    """
    num_samples = len(builder.dataset)
    assert num_samples >= 8, f"check_executor needs 8 samples, not {num_samples}"
    ids = np.random.default_rng(0).permutation(num_samples).astype(np.int64)
    sizes = [1, 3, 0, 2]
    requests = []
    for step in range(12):
        start = (step * 5) % (num_samples - 3)
        size = sizes[step % len(sizes)]
        requests.append(BatchRequest(step // 6, step, ids[start : start + size]))
    expected = [batch.data for batch in InlineExecutor(builder).run(iter(requests))]

    executor = make(builder)
    try:
        for attempt in ("first run", "second run"):
            _compare(expected, executor.run(iter(requests)), attempt)
        abandoned = executor.run(iter(requests))
        next(iter(abandoned))
        abandoned.close()
        _compare(expected, executor.run(iter(requests)), "run after an abandoned one")
        executor.close()
        _compare(expected, executor.run(iter(requests)), "run after close()")
        assert list(executor.run(iter(()))) == [], "no requests gave batches"
    finally:
        executor.close()


def _compare(expected: Sequence[Any], batches: Iterable[Any], attempt: str) -> None:
    actual = [batch.data for batch in batches]
    assert len(actual) == len(expected), f"{attempt}: {len(actual)} of {len(expected)} batches"
    for step, (one, other) in enumerate(zip(expected, actual, strict=True)):
        assert_batches_equal(one, other, at=f"{attempt}, batch {step}")


def check_resume(
    make: Callable[[], DataLoader],
    *,
    num_epochs: int = 2,
    resume: Callable[[], DataLoader] | None = None,
) -> None:
    """Hold a loader to its state: resumed at every step, it continues as if never stopped.

    Args:
        make: makes the loader, with output="numpy".
        num_epochs: epochs to go through.
        resume: makes the loader that takes the states up; `make` when None. It may differ in
            everything but the order (dataset, seed, shuffle) and the global batch.
    """
    whole: list[Any] = []
    states: list[bytes] = []
    with make() as loader:
        states.append(_frozen(loader))
        for _ in range(num_epochs):
            for batch in loader:
                whole.append(batch)
                states.append(_frozen(loader))
    for step, state in enumerate(states):
        with (resume or make)() as loader:
            loader.load_state_dict(json.loads(state))
            assert _frozen(loader) == state, f"state {step} is another one after loading it"
            rest: list[Any] = []
            while len(rest) < len(whole) - step:
                before = len(rest)
                rest.extend(loader)
                assert len(rest) > before, f"resumed at step {step}: an epoch without batches"
        for i, (one, other) in enumerate(zip(whole[step:], rest, strict=False)):
            assert_batches_equal(one, other, at=f"resumed at step {step}: batch {step + i}")


def _frozen(loader: DataLoader) -> bytes:
    """The state as JSON, as a checkpoint would keep it."""
    state = loader.state_dict()
    text = json.dumps(state, sort_keys=True)
    assert len(text) <= 1024, f"the state takes {len(text)} bytes: {text}"
    assert pickle.loads(pickle.dumps(state)) == json.loads(text), "the state is not plain JSON"  # noqa: S301 - our own
    return text.encode()
