"""Conformance of executors and of resuming: what a new executor, or a change to one, must keep.

Both kits take batches with numpy output and raise `AssertionError` with the difference.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import suggest_names
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.dataset.formats import wrap
from shardwise.engine.batch.builder import InlineExecutor
from shardwise.engine.batch.chunks import ON_ERROR
from shardwise.executors import Batch, BatchBuilder, BatchRequest, Executor, WorkerError
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


@suggest_names
def check_executor(
    make: Callable[[BatchBuilder], Executor], builder: BatchBuilder | None = None
) -> None:
    """Hold an executor to the reference, the inline executor.

    It yields the same batches in the order of the requests, also when it runs again, after an
    iterator was closed early, and after `close`; it takes requests as it needs them. A damaged
    sample raises its error instead of its batch, or is skipped or replaced. A killed worker process
    is a `WorkerError`, and the next run works. A loader with it returns the batches of any other,
    and so does a pickled or resumed one.

    Args:
        make: makes the executor, as `sw.DataLoader(executor=make)` calls it; it is pickled.
        builder: a builder over at least 8 samples. Then its batches alone are checked: for
            executors that know no other data, such as batch servers.

    Raises:
        AssertionError: the executor differs; the message names the difference.
    """
    _check_runs(make, builder or BatchBuilder(_numbers().map(_add_noise), seed=3))
    if builder is None:
        _check_damaged_samples(make)
        _check_killed_worker(make)
        _check_loader(make)


def _numbers() -> Dataset:
    return wrap([{"value": number} for number in range(40)])


def _add_noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random(3)}


def _fail_on_13(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["value"] == 13:
        raise ValueError("13 is damaged")
    return sample


def _kill_on_13(caller: int, sample: dict[str, Any]) -> dict[str, Any]:
    if sample["value"] == 13 and os.getpid() != caller:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def _requests(ids: NDArray[np.int64], size: int = 4) -> list[BatchRequest]:
    return [
        BatchRequest(0, step, ids[start : start + size])
        for step, start in enumerate(range(0, len(ids), size))
    ]


def _check_runs(make: Callable[[BatchBuilder], Executor], builder: BatchBuilder) -> None:
    num_samples = len(builder.dataset)
    assert num_samples >= 8, f"check_executor needs 8 samples, not {num_samples}"
    ids = np.random.default_rng(0).permutation(num_samples).astype(np.int64)
    sizes = [1, 3, 0, 2]
    requests = []
    for step in range(12):
        start = (step * 5) % (num_samples - 3)
        size = sizes[step % len(sizes)]
        requests.append(BatchRequest(step // 6, step, ids[start : start + size]))
    expected = list(InlineExecutor(builder).run(iter(requests)))

    with closing(make(builder)) as executor:
        for attempt in ("first run", "second run"):
            _compare(expected, executor.run(iter(requests)), attempt)
        left = iter(requests * 100)
        abandoned = executor.run(left)
        assert next(left, None) is requests[0], "a request was taken before the first batch was"
        next(iter(abandoned))
        abandoned.close()
        assert next(left, None) is not None, "1,200 requests were taken for the first batch"
        _compare(expected, executor.run(iter(requests)), "run after an abandoned one")
        executor.close()
        _compare(expected, executor.run(iter(requests)), "run after close()")
        assert list(executor.run(iter(()))) == [], "no requests gave batches"


def _check_damaged_samples(make: Callable[[BatchBuilder], Executor]) -> None:
    requests = _requests(np.arange(40))
    for on_error in ON_ERROR:
        builder = BatchBuilder(_numbers().map(_fail_on_13), seed=3, on_error=on_error)
        at = f"on_error={on_error!r}"
        with closing(make(builder)) as executor:
            expected, error = _run_to_error(InlineExecutor(builder), requests)
            batches, other = _run_to_error(executor, requests)
            _compare(expected, batches, at)
            assert repr(other) == repr(error), f"{at}: {other!r} in place of {error!r}"
            assert getattr(other, "index", None) == getattr(error, "index", None), (
                f"{at}: {other!r} lacks the index of the sample"
            )
            _compare(expected[:3], executor.run(iter(requests[:3])), f"{at}: run after it")


def _run_to_error(
    executor: Executor, requests: list[BatchRequest]
) -> tuple[list[Batch], Exception | None]:
    batches: list[Batch] = []
    try:
        batches += executor.run(iter(requests))
    except DataError as error:
        return batches, error
    return batches, None


def _check_killed_worker(make: Callable[[BatchBuilder], Executor]) -> None:
    builder = BatchBuilder(_numbers().map(partial(_kill_on_13, os.getpid())))
    requests = _requests(np.arange(40))
    with closing(make(builder)) as executor:
        if not executor.concurrency.num_workers:
            return
        try:
            list(executor.run(iter(requests)))
        except WorkerError:
            pass
        else:
            raise AssertionError("the batches of a killed worker process came")
        expected = list(InlineExecutor(builder).run(iter(requests[4:])))
        _compare(expected, executor.run(iter(requests[4:])), "run after a killed worker")


def _check_loader(make: Callable[[BatchBuilder], Executor]) -> None:
    options: dict[str, Any] = {
        "batch_size": 8, "shuffle": "full", "seed": 7, "rank": 0, "world_size": 1,
        "output": "numpy", "on_error": "skip",
    }  # fmt: skip
    data = _numbers().map(_add_noise)
    expected = list(DataLoader(data, num_threads=0, **options))
    with DataLoader(data, executor=make, **options) as loader:
        batches = iter(loader)
        seen = [next(batches), next(batches)]
        state = loader.state_dict()
        pickled = pickle.dumps(loader)
        assert_batches_equal(expected, [*seen, *batches], at="a loader's epoch")
    with pickle.loads(pickled) as copy:  # noqa: S301 - our own
        assert_batches_equal(expected[2:], list(copy), at="a pickled loader's rest of the epoch")
        copy.load_state_dict(state)
        assert_batches_equal(expected[2:], list(copy), at="a resumed loader's rest of the epoch")


def _compare(expected: Sequence[Batch], batches: Iterable[Batch], attempt: str) -> None:
    actual = list(batches)
    assert len(actual) == len(expected), f"{attempt}: {len(actual)} of {len(expected)} batches"
    for step, (one, other) in enumerate(zip(expected, actual, strict=True)):
        at = f"{attempt}, batch {step}"
        assert_batches_equal(one.data, other.data, at=at)
        for name in ("num_rows", "num_skipped", "num_replaced"):
            left, right = getattr(one, name), getattr(other, name)
            assert left == right, f"{at}: {name} is {right} in place of {left}"


@suggest_names
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
    state = loader.state_dict()
    text = json.dumps(state, sort_keys=True)
    assert len(text) <= 1024, f"the state takes {len(text)} bytes: {text}"
    assert pickle.loads(pickle.dumps(state)) == json.loads(text), "the state is not plain JSON"  # noqa: S301 - our own
    return text.encode()
