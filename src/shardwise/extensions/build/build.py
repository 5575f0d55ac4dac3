"""`sw.build`: shards of tar or Parquet from any source, by processes here or on a Ray cluster."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from shardwise.base.arguments import path_text, suggest_names
from shardwise.base.errors import StateError
from shardwise.base.parallel import usable_cores
from shardwise.base.progress_bar import progress
from shardwise.base.shown import shown
from shardwise.dataset import Dataset
from shardwise.extensions.build.arguments import (
    check_arguments,
    check_place,
    check_ray,
    inputs_per_shard,
    split_pattern,
)
from shardwise.extensions.build.inputs import input_of
from shardwise.extensions.build.place import Place
from shardwise.extensions.build.ray_workers import ray_workers
from shardwise.extensions.build.recipe import Failure, Recipe
from shardwise.extensions.build.shard import Job, outcome_of
from shardwise.extensions.build.state import (
    BuildReport,
    BuildState,
    identity_of,
    load_state,
    save_state,
    write_errors,
)
from shardwise.extensions.build.workers import Workers, hand_out, local_workers
from shardwise.plan.arguments import whole
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.sources.tar.index.merge import merge_indexes
from shardwise.storage import StorageOptions

_MANIFEST = "manifest.swm"


@suggest_names
def build(
    source: Dataset | Sequence[Any],
    pattern: str | os.PathLike[str],
    *,
    map: Callable[..., Any] | None = None,  # noqa: A002 - as Dataset.map
    filter: Callable[[Any], Any] | None = None,  # noqa: A002 - as Dataset.filter
    samples_per_shard: int | None = None,
    bytes_per_shard: int | None = None,
    order: Literal["window", "full"] | None = None,
    seed: int = 0,
    num_workers: int | None = None,
    ray: bool | str = False,
    on_error: Literal["raise", "record"] = "raise",
    retry_errors: bool = False,
    media: bool = False,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> BuildReport:
    """Build shards of tar or Parquet, with indexes and a manifest, from a dataset or a list.

    Output shard j holds inputs [j S, (j + 1) S) of the order, filtered and mapped: it depends on
    the input, the functions and j alone. So a build that was killed continues where it was, in any
    number of processes, here or on Ray, and ends in the same bytes. Filtering shortens a
    shard, and moves no other; an empty shard is not written.

    `build.json` beside the shards records how they were made: another input or recipe is refused.
    `manifest.swm` is written at the end, when all tar shards are there: `sw.tar` opens it.

    Args:
        source: a dataset, whose samples are written as it gives them (bytes without `decode`); or
            a list of items, which are samples or what `map` makes samples of.
        pattern: the shards, such as "out/{shard:06d}.tar" or "s3://bucket/out/{shard:06d}.parquet".
            The number stands in the name, not in the directory. In tar, values are encoded as
            by `TarWriter`.
        map: input -> sample, None (left out), or a list of samples. Keys are kept: a sample
            without "__key__" gets its input's, with "-000" and so on appended for several. With a
            parameter `rng` it gets a generator keyed by (seed, input).
        filter: input -> whether it stays; called before `map`.
        samples_per_shard: inputs per shard.
        bytes_per_shard: stored bytes of the inputs of a shard, at the mean of all inputs. By
            default 256 MiB, or 1,000 items where sizes are unknown.
        order: None for the source's; "full" for a global shuffle, by random access; "window" for
            a shuffle that reads runs of 128 neighbours, for sources in a store.
        seed: of the order, and of `rng`.
        num_workers: processes, which are spawned: a script needs `if __name__ == "__main__":`. 0
            for none; None for one per core. Threads where stored samples are copied as they are.
            With `ray`, shards at a time.
        ray: make the shards on a Ray cluster, a task of one core each: True for the one that runs
            here, or else a new one of this machine, which ends with the build; "auto" or
            "host:port" for one that must run. Its machines have the same packages, and see the
            output: a shared directory, or a store.
        on_error: "record" leaves inputs out that are damaged, or whose function raises, and lists
            them in `errors.parquet` (`errors.jsonl` beside Parquet shards, and without pyarrow).
        retry_errors: make what failed in a build that is complete once more, into shards of their
            own (`000012-r1.tar`). The functions may differ; a retry records errors.
        media: whether a sidecar beside each tar shard locates the frames of its videos and sounds,
            as by `TarWriter`. An input whose media can't be used fails.
        storage: the options for remote output, as `shardwise.tar` takes them.

    Returns:
        A report: "in", "out" and "filtered" samples, "failed" (type of the error -> inputs),
        "shards", "bytes" of payloads (of Parquet: of files), "seconds" of this call, "manifest"
        and "errors" (paths, or None).

    Raises:
        DataError: an input failed; url, key and index say which, the message where.
        StateError: the directory holds another build's output, or one is under way there.
        ValueError: the pattern or the sizes make no sense, or the input's shards lie there.
        TypeError: no source, or something can't be pickled.
        StorageError: the output can't be written, or a machine of the cluster does not see it.
        WorkerError: worker processes die again and again of a shard; no Ray cluster answers.
        MissingExtraError: Ray is not installed.

    Examples:
        >>> import shardwise as sw
        >>> items = [{"n": n} for n in range(100)]
        >>> report = sw.build(
        ...     items,
        ...     "squares/{shard:03d}.tar",
        ...     map=lambda item: {"cls": item["n"] ** 2},
        ...     filter=lambda item: item["n"] % 2 == 0,
        ...     samples_per_shard=30,
        ...     num_workers=0,
        ... )
        >>> report["out"], len(sw.tar("squares/manifest.swm"))
        (50, 50)
    """
    began = time.perf_counter()
    inputs = input_of(source)
    root, name, suffix = split_pattern(path_text("pattern", pattern))
    check_arguments(suffix, order, on_error, map, filter, media=media)
    if isinstance(source, Dataset):
        check_place(root, suffix, source.manifest.urls)
    recipe = Recipe(
        source=inputs,
        map=map,
        filter=filter,
        samples_per_shard=inputs_per_shard(inputs, samples_per_shard, bytes_per_shard),
        order=order,
        seed=whole("seed", seed, least=0),
        suffix=suffix,
        records=on_error == "record",
        media=media,
    )
    place = Place(root, StorageOptions.of(storage))
    check_ray(ray)
    if num_workers is not None:
        whole("num_workers", num_workers, least=1 if ray else 0)
    with place.locked() as token:
        job = Job(recipe, place, name, token)
        crew = partial(_workers, num_workers=num_workers, ray=ray)
        report = _run(job, crew, retry_errors=retry_errors)
        place.clear()
    seconds = round(time.perf_counter() - began, 3)
    return cast("BuildReport", {**report, "seconds": seconds})


# (job, num_shards) -> workers for this many shards of a build.
_Crew = Callable[[Job, int], AbstractContextManager[Workers]]


def _workers(
    job: Job, num_shards: int, *, num_workers: int | None, ray: bool | str
) -> AbstractContextManager[Workers]:
    if ray:
        address = None if ray is True else ray
        return ray_workers(job, address=address, num_workers=num_workers)
    num_workers = usable_cores() if num_workers is None else num_workers
    return local_workers(job, min(num_workers, num_shards))


def _run(job: Job, crew: _Crew, *, retry_errors: bool) -> dict[str, Any]:
    place, identity = job.place, identity_of(job.recipe, job.pattern)
    state = load_state(place)
    # An error of the functions in the first samples: they are corrected, and nothing is there yet.
    if state is None or (state.identity != identity and place.has_no_output):
        _refuse_foreign(job)
        state = BuildState(identity)
        save_state(place, state)
    is_retry = retry_errors or state.generation > 0
    state.require(
        # A retry may call other functions.
        {name: each for name, each in identity.items() if name != "recipe" or not is_retry},
        place,
        retries=retry_errors,
    )
    if state.is_complete:
        if not retry_errors or not state.failed:
            _replace_lost(job, state, crew)
            return state.report
        place.clear_notes()
        state = replace(
            state,
            generation=state.generation + 1,
            is_complete=False,
            functions_of_retry=job.recipe.functions(),
        )
        save_state(place, state)
    if state.generation:
        job = replace(
            job,
            recipe=replace(job.recipe, records=True),
            generation=state.generation,
            failed=state.failed,
        )
    _make(job, job.shards(), crew)
    return _finish(job, state)


def _make(job: Job, numbers: Sequence[int], crew: _Crew) -> None:
    there = job.place.notes()
    todo = [number for number in numbers if job.note_name(number) not in there]

    def is_done(number: int) -> bool:
        return job.place.has(job.place.note(job.note_name(number)))

    with progress("building", len(numbers)) as report:
        done = len(numbers) - len(todo)
        report(done)
        if not todo:
            return
        with crew(job, len(todo)) as workers:
            for _ in hand_out(workers, todo, is_done=is_done):
                done += 1
                report(done)


def _finish(job: Job, state: BuildState) -> dict[str, Any]:
    place = job.place
    report = {"in": 0, "out": 0, "filtered": 0, "bytes": 0, **state.report}
    files, failures = list(state.files), list[Failure]()
    failed: dict[int, list[int]] = {}
    numbers = job.shards()
    notes = place.read_notes([job.note_name(number) for number in numbers])
    for number, data in zip(numbers, notes, strict=True):
        if data is None:
            return _report_of_other(place)
        outcome = outcome_of(data)
        # A retry has no new inputs.
        report["in"] += 0 if job.generation else outcome.num_in
        report["out"] += outcome.num_out
        report["filtered"] += outcome.num_filtered
        report["bytes"] += outcome.num_bytes
        failures += outcome.failures
        if outcome.failures:
            failed[number] = sorted({failure.index for failure in outcome.failures})
        if outcome.num_out:
            files.append(job.name(number))
    errors = write_errors(place, failures, as_table=job.recipe.suffix == ".tar")
    report = {
        **report,
        "failed": dict(sorted(Counter(failure.kind for failure in failures).items())),
        "shards": len(files),
        "manifest": _write_manifest(job, files),
        "errors": None if errors is None else place.url(errors),
    }
    state = replace(state, is_complete=True, files=files, failed=failed, report=report)
    save_state(place, replace(state, sizes=_sizes(place, files)))
    return report


def _report_of_other(place: Place) -> dict[str, Any]:
    """The report of another builder of the same store, which removed the notes as it ended."""
    state = load_state(place)
    if state is None or not state.is_complete:
        raise StateError(
            f"another program removed notes of this build in {shown(place.root)!r}, and has not "
            "ended: build again when it has"
        )
    return state.report


def _write_manifest(job: Job, files: Sequence[str]) -> str | None:
    if job.recipe.suffix != ".tar" or not files:
        return None
    path = job.place.url(_MANIFEST)
    urls = [job.place.url(name) for name in files]
    merge_indexes(path, urls, store=IndexStore(options=job.place.options))
    return path


def _replace_lost(job: Job, state: BuildState, crew: _Crew) -> None:
    """Make shards of a complete build again that are gone from this machine, or their indexes."""
    place = job.place
    if not place.is_local:
        return
    there = place.sizes()
    for name, size in state.sizes.items():
        if there.get(name, size) != size:
            raise StateError(
                f"{shown(place.url(name))!r} has {there[name]} bytes, and the build wrote {size}: "
                "remove it, and call the build again, which makes it anew"
            )
    needed = ("", ".swi") if job.recipe.suffix == ".tar" else ("",)
    lost = {name for name in state.files if any(name + end not in there for end in needed)}
    if not lost and (job.recipe.suffix != ".tar" or not state.files or _MANIFEST in there):
        return
    place.clear_notes()
    numbers = [number for number in job.shards() if job.name(number) in lost]
    if len(numbers) < len(lost):
        raise StateError(
            f"{shown(place.root)!r} lacks {sorted(lost)[0]!r} or its index, which a retry of "
            "errors made: build into a fresh directory"
        )
    _make(job, numbers, crew)
    _write_manifest(job, state.files)
    save_state(place, replace(state, sizes=_sizes(place, state.files)))


def _sizes(place: Place, files: Sequence[str]) -> dict[str, int]:
    there = place.sizes() if place.is_local else {}
    return {name: there[name] for name in files if name in there}


def _refuse_foreign(job: Job) -> None:
    """Refuse a directory that has such shards, and no state."""
    names = [job.name(number) for number in job.shards()]
    if job.place.is_local:
        there = job.place.sizes()
        found = [name for name in names if name in there]
    else:
        found = [name for name in names[:1] if job.place.has(name)]
    if found:
        raise StateError(
            f"{shown(job.place.url(found[0]))!r} exists, and no build.json says that a build made "
            "it: give another directory, or remove it"
        )
