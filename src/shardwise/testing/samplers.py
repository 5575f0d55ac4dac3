"""The conformance kit for samplers: checks of the protocol `shardwise.plan.Sampler`.

Any object with `num_samples`, `indices` and `spec` can be checked; it needs no base class.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.arguments import suggest_names

if TYPE_CHECKING:
    from shardwise.plan import Sampler

Ids = NDArray[np.int64]

# Reads (sys.path, sampler, [(epoch, positions)]) and writes the ids and the spec. The sampler is
# pickled for itself, so that the path to its module is set first.
_CHILD = """
import pickle, sys
path, sampler, asked = pickle.load(sys.stdin.buffer)
sys.path[:] = path
sampler = pickle.loads(sampler)
answer = [sampler.indices(epoch, positions) for epoch, positions in asked], sampler.spec()
pickle.dump(answer, sys.stdout.buffer)
"""


@suggest_names
def check_sampler(
    sampler: Sampler,
    *,
    ids: ArrayLike | None = None,
    repeats: bool = False,
    epochs: Sequence[int] = (0, 1, 5),
    max_positions: int = 1_000_000,
    process: bool = True,
) -> None:
    """Hold a sampler to the protocol: coverage, purity, slices, pickling and its spec.

    Args:
        sampler: the sampler to check.
        ids: int `[n]`, the sample ids that it must give exactly once; None for
            0 to num_samples - 1. Where n is not `num_samples`, the epochs from 0 on, one after
            the other, must give each id once in their first n positions.
        repeats: whether ids may come twice or never; then they need only be among `ids`.
        epochs: the epochs to check.
        max_positions: how many positions to look at. In an epoch of more, a part of them is
            checked: no id twice and none out of range.
        process: whether to ask in a fresh Python process too, where the sampler's module must be
            importable.

    Raises:
        AssertionError: the sampler breaks the protocol; the message names the violation.

    >>> from shardwise.plan import FullSampler
    >>> check_sampler(FullSampler(1000, seed=3), process=False)
    """
    count = sampler.num_samples
    assert isinstance(count, int), f"num_samples is {count!r}, not an int"
    assert count >= 0, f"num_samples is {count}"
    expected = None if ids is None else np.sort(np.asarray(ids, dtype=np.int64))
    if expected is None and count <= max_positions:
        expected = np.arange(count)
    if repeats:
        _check_range(sampler, expected, epochs, max_positions)
    elif expected is None:
        _check_part(sampler, epochs, max_positions)
    elif len(expected) == count:
        for epoch in epochs:
            got = _ask(sampler, epoch, np.arange(count))
            _check_once(got, expected, f"epoch {epoch}")
    else:
        _check_stream(sampler, expected)
    probes = [(epoch, _probe(count, epoch)) for epoch in epochs]
    _check_pure(sampler, probes)
    _check_slices(sampler, probes)
    _check_bounds(sampler, epochs[0])
    _check_copies(sampler, probes, process=process)


def _ask(sampler: Sampler, epoch: int, positions: Ids) -> Ids:
    """Call `indices` and check the form of its answer."""
    before = positions.copy()
    got = sampler.indices(epoch, positions)
    assert isinstance(got, np.ndarray), f"indices gives a {type(got).__name__}, not an array"
    assert got.dtype == np.int64, f"indices gives {got.dtype}, not int64"
    assert got.shape == positions.shape, (
        f"indices gives the shape {got.shape} for positions of the shape {positions.shape}"
    )
    assert np.array_equal(positions, before), "indices changes the positions that it is given"
    return got


def _check_once(got: Ids, expected: Ids, where: str) -> None:
    unique, counts = np.unique(got, return_counts=True)
    twice = unique[counts > 1]
    never = np.setdiff1d(expected, unique)
    foreign = np.setdiff1d(unique, expected)
    wrong = twice.size + never.size + foreign.size
    assert not wrong, (
        f"{where} gives {twice.size} ids more than once {_few(twice)}, {never.size} never "
        f"{_few(never)}, {foreign.size} that it must not {_few(foreign)}"
    )


def _few(ids: Ids) -> str:
    return f"({', '.join(map(str, ids[:3].tolist()))}{', ...' if ids.size > 3 else ''})"


def _check_stream(sampler: Sampler, expected: Ids) -> None:
    """Epochs of another length than the data: the first of them have each id once."""
    count, left = sampler.num_samples, len(expected)
    assert count, f"num_samples is 0, but there are {left} ids to give"
    parts = []
    for epoch in range(-(-left // count)):
        parts.append(_ask(sampler, epoch, np.arange(count))[:left])
        left -= len(parts[-1])
    got = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    _check_once(got, expected, f"the run of epochs 0 to {len(parts) - 1}")


def _check_part(sampler: Sampler, epochs: Sequence[int], max_positions: int) -> None:
    """Too many positions for a full check: look at both ends and between."""
    count, part = sampler.num_samples, max_positions // 3
    between = np.random.default_rng(0).integers(part, count - part, part)
    positions = np.concatenate(
        [np.arange(part), np.unique(between), np.arange(count - part, count)]
    )
    for epoch in epochs:
        got = _ask(sampler, epoch, positions)
        low, high = int(got.min()), int(got.max())
        assert 0 <= low <= high < count, f"epoch {epoch} gives ids from {low} to {high}"
        twice = got.size - np.unique(got).size
        assert not twice, f"epoch {epoch}: {twice} of {got.size} positions repeat an id"


def _check_range(
    sampler: Sampler, expected: Ids | None, epochs: Sequence[int], max_positions: int
) -> None:
    for epoch in epochs:
        got = _ask(sampler, epoch, np.arange(min(sampler.num_samples, max_positions)))
        if expected is None:
            foreign = got[(got < 0) | (got >= sampler.num_samples)]
        else:
            foreign = np.setdiff1d(got, expected)
        assert not foreign.size, f"epoch {epoch} gives ids that it must not: {_few(foreign)}"


def _probe(count: int, epoch: int) -> Ids:
    if not count:
        return np.empty(0, dtype=np.int64)
    drawn = np.random.default_rng(epoch).integers(0, count, min(count, 1_000))
    return np.concatenate([drawn, [0, count - 1]])


def _check_pure(sampler: Sampler, probes: list[tuple[int, Ids]]) -> None:
    """The same question has the same answer, whatever was asked between, by whichever thread."""
    first = [_ask(sampler, *probe).copy() for probe in probes]
    for probe, answer in reversed(list(zip(probes, first, strict=True))):
        again = _ask(sampler, *probe)
        assert np.array_equal(again, answer), f"epoch {probe[0]}: asked twice, other ids"
        if again.flags.writeable:
            again[:] = -1  # what the caller does to an answer must not reach the next one
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda probe: sampler.indices(*probe), probes * 4))
    for probe, answer, got in zip(probes * 4, first * 4, answers, strict=True):
        assert np.array_equal(got, answer), (
            f"epoch {probe[0]}: other ids after a change to an earlier answer, or in threads"
        )


def _check_slices(sampler: Sampler, probes: list[tuple[int, Ids]]) -> None:
    for epoch, positions in probes:
        answer = _ask(sampler, epoch, positions)
        size = len(positions)
        for part in (
            slice(0, 0),
            slice(0, 1),
            slice(size // 3, size // 2),
            slice(None, None, -1),
            slice(1, None, 7),
        ):
            got = _ask(sampler, epoch, positions[part])
            assert np.array_equal(got, answer[part]), (
                f"epoch {epoch}: the ids of positions[{part.start}:{part.stop}:{part.step}] are "
                "others when they are asked for alone"
            )


def _check_bounds(sampler: Sampler, epoch: int) -> None:
    for position in (-1, sampler.num_samples):
        try:
            got = sampler.indices(epoch, np.array([position]))
        except ValueError:
            continue
        raise AssertionError(
            f"position {position} of {sampler.num_samples} gives {got}, not a ValueError"
        )


def _check_copies(sampler: Sampler, probes: list[tuple[int, Ids]], *, process: bool) -> None:
    """The spec is stable JSON; a pickled copy, here and in a fresh process, has the same order."""
    spec = sampler.spec()
    answers = [sampler.indices(*probe) for probe in probes]
    assert isinstance(spec, dict), f"spec gives a {type(spec).__name__}, not a dict"
    try:
        text = json.dumps(spec, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"spec is not JSON: {error}: {spec}") from error
    assert json.loads(text) == spec, f"spec is changed by JSON: {spec} into {json.loads(text)}"
    try:
        pickled = pickle.dumps(sampler)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"the sampler does not pickle: {error}") from error
    copies = [("a pickled copy", _here(pickled, probes))]
    if process:
        copies.append(("a fresh process", _elsewhere(pickled, probes)))
    for where, (copied, copied_spec) in copies:
        assert copied_spec == spec, f"{where} has the spec {copied_spec}, here it is {spec}"
        for (epoch, _), answer, got in zip(probes, answers, copied, strict=True):
            assert np.array_equal(answer, got), f"epoch {epoch}: {where} gives other ids"


def _here(pickled: bytes, probes: list[tuple[int, Ids]]) -> tuple[list[Ids], object]:
    sampler = pickle.loads(pickled)  # noqa: S301 - made by this function's caller
    return [sampler.indices(*probe) for probe in probes], sampler.spec()


def _elsewhere(pickled: bytes, probes: list[tuple[int, Ids]]) -> tuple[list[Ids], object]:
    done = subprocess.run(  # noqa: S603 - this interpreter, with a program of this file
        [sys.executable, "-c", _CHILD],
        input=pickle.dumps((sys.path, pickled, probes)),
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, (
        "the sampler does not work in a fresh process, as in a loader's worker:\n"
        f"{done.stderr.decode(errors='replace')}"
    )
    answer: tuple[list[Ids], object] = pickle.loads(done.stdout)  # noqa: S301 - our own child's
    return answer
