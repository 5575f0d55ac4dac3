"""Executors agree, bit by bit, over random configurations of everything that makes a batch.

The configurations are drawn in `tests/support/configurations.py`. Starting processes is what
costs, so configurations share them: `Makers` is a maker that holds many and picks one by the
epoch of the work, and one `ProcessExecutor` makes the batches of all configurations that fill the
same fields in place, since that layout is fixed when processes start. Each configuration is a run
of its own, after runs that ended well, with an error, or with pieces still under way. Errors are
compared like batches: the same one, after the same batches. At the end a few loaders are compared
whole, with processes of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.engine.batch.builder import BatchBuilder, InlineExecutor
from shardwise.engine.batch.chunks import PartialBatch
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.request import Batch, BatchRequest
from shardwise.engine.threads import ThreadExecutor
from shardwise.testing import assert_batches_equal
from tests.support.configurations import DECODERS, TRANSFORMS, Configuration, configuration
from tests.support.tars import make_shards
from tests.support.waiting import wait_for

# More than any epoch that is drawn.
_EPOCHS = 1000


@dataclass
class Outcome:
    """What an executor made of the works of a configuration."""

    batches: list[Batch]
    error: Exception | None = None


def outcome(batches: Iterator[Batch]) -> Outcome:
    made = Outcome([])
    try:
        made.batches.extend(batches)
    except DataError as error:
        made.error = error
    return made


class Makers:
    """Many makers as one; the epoch of a work says which one is meant.

    In the trainer `current` is the one whose batches are asked for.
    """

    def __init__(self, makers: Sequence[Any]) -> None:
        self.makers = makers
        self.current = 0

    @property
    def dataset(self):
        # Their layout, which workers ask for, is one.
        return self.makers[self.current].dataset

    @property
    def collate(self):
        return self.makers[self.current].collate

    def reads(self, **options):
        return self.makers[self.current].reads(**options)

    def read_ahead(self, requests, **options):
        return self.makers[self.current].read_ahead(requests, **options)

    @property
    def layout(self):
        return self.makers[self.current].layout

    @property
    def ragged(self):
        return self.makers[self.current].ragged

    def prepare(self, batch):
        self.makers[self.current].prepare(batch)

    def works(self, number: int, works: Sequence[BatchRequest]) -> Iterator[BatchRequest]:
        return (replace(work, epoch=number * _EPOCHS + work.epoch) for work in works)

    def build(self, work, watching=None):
        maker, own = self._own(work)
        return maker.build(own, watching)

    def fill(self, draft, start, stop, watching=None):
        maker, own = self._own(draft.request)
        maker.fill(PartialBatch(own, draft.rows, draft.chunks), start, stop, watching)

    def finish(self, draft):
        maker, own = self._own(draft.request)
        return maker.finish(PartialBatch(own, draft.rows, draft.chunks))

    def _own(self, work: BatchRequest):
        number, epoch = divmod(work.epoch, _EPOCHS)
        return self.makers[number], replace(work, epoch=epoch)


@pytest.fixture(scope="module", params=[60, pytest.param(200, marks=pytest.mark.long)])
def configurations(request: pytest.FixtureRequest) -> list[Configuration]:
    return [configuration(number) for number in range(request.param)]


@pytest.fixture(scope="module")
def expected(configurations) -> list[Outcome]:
    return [outcome(InlineExecutor(c.maker).run(iter(c.works))) for c in configurations]


def writeable(data: Any) -> list[bool]:
    """Whether each array of a batch may be written into."""
    if isinstance(data, np.ndarray):
        return [data.flags.writeable]
    if isinstance(data, dict):
        data = list(data.values())
    return [flag for entry in data for flag in writeable(entry)] if type(data) is list else []


def compare(chosen: Configuration, expected: Outcome, given: Outcome) -> None:
    at = f"configuration {chosen.number} ({', '.join(sorted(chosen.traits))})"
    assert len(given.batches) == len(expected.batches), f"{at}: {given.error!r}"
    for step, (one, other) in enumerate(zip(expected.batches, given.batches, strict=True)):
        assert_batches_equal(one.data, other.data, at=f"{at}: batch {step}")
        for counted in ("num_rows", "num_skipped", "num_replaced"):
            assert getattr(one, counted) == getattr(other, counted), f"{at}: {counted}"
        assert writeable(one.data) == writeable(other.data), f"{at}: who may write into arrays"
    assert type(given.error) is type(expected.error), f"{at}: {given.error!r}"
    assert str(given.error) == str(expected.error), at


@pytest.mark.parametrize("num_threads", [pytest.param(1, marks=pytest.mark.long), 8])
def test_threads_give_the_batches_of_the_reference(configurations, expected, num_threads):
    for chosen, wanted in zip(configurations, expected, strict=True):
        made = ThreadExecutor(chosen.maker, num_threads=num_threads, num_prefetch=4)
        with closing(made) as executor:
            compare(chosen, wanted, outcome(executor.run(iter(chosen.works))))


@pytest.mark.parametrize(
    "num_workers", [2, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 3))]
)
def test_processes_give_the_batches_of_the_reference(configurations, expected, num_workers):
    for members in by_layout(configurations).values():
        makers = Makers([chosen.maker for chosen in members])
        made = ProcessExecutor(makers, num_workers=num_workers, num_prefetch=8)
        with closing(made) as executor:
            for number, chosen in enumerate(members):
                makers.current = number
                works = makers.works(number, chosen.works)
                compare(chosen, expected[chosen.number], outcome(executor.run(works)))


def by_layout(configurations: Sequence[Configuration]) -> dict[str, list[Configuration]]:
    groups = defaultdict(list)
    for chosen in configurations:
        groups[repr(chosen.maker.dataset.layout())].append(chosen)
    return groups


def test_of_several_errors_in_a_batch_that_of_its_first_row_is_raised(tmp_path):
    """The first piece fails last: it waits for the third, which comes after the second failed."""
    flag = tmp_path / "flag"

    def fails(sample):
        if sample["value"] == 128:
            flag.touch()
        if sample["value"] == 0:
            wait_for(flag.exists)
        if sample["value"] in (0, 64):
            raise KeyError(f"value {sample['value']}")
        return sample

    maker = BatchBuilder(sw.wrap(range(192)).map(fails))
    with closing(ProcessExecutor(maker, num_workers=2)) as executor:
        made = outcome(executor.run(iter([BatchRequest(0, 0, np.arange(192))])))
    assert "value 0" in str(made.error)
    assert flag.exists()


def test_the_configurations_exercise_what_they_are_meant_to(configurations, expected):
    seen = Counter(trait for chosen in configurations for trait in chosen.traits)
    wanted = {
        "map", "filled in place", "user collate", "subset", "damage", "skip", "replace", "raise",
        "shuffle=False", "shuffle=full", "shuffle=window", "drop", "pad", "uneven",
        "epoch_size", "resumed", "several pieces", "wrapped", "padded", *DECODERS,
        *(f"world_size={size}" for size in range(1, 5)),
        *(transform.__name__ for transform in TRANSFORMS),
    }  # fmt: skip
    number = len(configurations)
    rare = {trait for trait in wanted if seen[trait] < number // 25}
    assert not rare, f"drawn too rarely: {rare}"
    assert len(by_layout(configurations)) >= 5
    assert sum(batch.num_skipped for made in expected for batch in made.batches) > number // 2
    assert sum(batch.num_replaced for made in expected for batch in made.batches) > number // 2
    assert sum(made.error is not None for made in expected) >= number // 20
    assert any(made.error and made.batches for made in expected), "all errors came at once"
    in_place = [c for c in configurations if "filled in place" in c.traits]
    assert sum("several pieces" in c.traits for c in in_place) >= number // 20
    assert sum("damage" in c.traits for c in in_place) >= number // 20


# Whole loaders.


def blurred(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    left = int(rng.integers(8))
    return {**sample, "jpg": sample["jpg"][:, :, left : left + 20], "left": left}


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": "window", "remainder": "pad", "image": {"size": 16, "dtype": "float32"}},
        {
            "shuffle": "full",
            "remainder": "uneven",
            "rank": 1,
            "world_size": 3,
            "transform": blurred,
        },
        {"shuffle": "full", "remainder": "drop", "on_error": "replace", "image": {"size": 24}},
    ],
    ids=["filled in place", "augmented", "damaged"],
)
def test_whole_loaders_give_the_same_batches_and_the_same_when_resumed(options, tmp_path):
    options = dict(options)
    shards = make_shards(tmp_path, [70, 0, 45, 60], fields=("jpg", "cls", "bin", "txt"))
    if options.get("on_error"):
        # Within the payload of an image: its header tells another size than its end.
        with open(shards[0], "r+b") as file:
            file.seek(512)
            file.write(b"\x00" * 40)
    image = sw.image(**options.pop("image", {"size": 32}))
    dataset = sw.tar(shards).decode(jpg=image, bin=sw.array("<i8", (2,)), cls=int, txt=str)
    transform = options.pop("transform", None)
    dataset = dataset.map(transform) if transform else dataset
    given = {"rank": 0, "world_size": 1, "batch_size": 37, "seed": 9, "output": "numpy", **options}
    with sw.DataLoader(dataset, executor="inline", **given) as reference:
        batches = iter(reference)
        next(batches)
        state = reference.state_dict()
        wanted = [*batches, *reference]
    stats = []
    for hands in (
        {"executor": "inline"},
        {"num_threads": 3},
        {"num_workers": 2, "num_threads": 2},
    ):
        with sw.DataLoader(dataset, **hands, **given) as loader:
            loader.load_state_dict(state)
            assert_batches_equal(wanted, [*loader, *loader], at=str(hands))
            counts = ("samples", "batches", "replaced", "skipped", "dropped", "padded")
            stats.append([loader.stats()[counted] for counted in counts])
    assert stats[1:] == [stats[0]] * 2
    assert bool(stats[0][2]) == ("on_error" in options), "no damaged sample was met"


# Chunks of which some rows are bad.


class Fails:
    """A function that fails at the bad samples."""

    def __init__(self, shape):
        self.shape = shape

    def __call__(self, sample):
        if sample["bad"]:
            raise ValueError("damaged")
        return {"__key__": sample["__key__"], "value": SHAPES[self.shape](sample["i"])}

    def __repr__(self):
        return f"Fails({self.shape!r})"


SHAPES = {
    "number": lambda i: i,
    "array": lambda i: np.full((9, 9), i),
    "large arrays in a list": lambda i: list(np.full((2, 40), i)),
    "ragged": lambda i: np.arange(i % 5, dtype=np.float32),
    "text": str,
    "nested": lambda i: {"a": np.full(90, i), "b": (i, [i, i])},
    "list of numbers": lambda i: [i] * 64,
}
# Of chunks of 16 rows: one after good ones, from which a layout is learned.
BAD = {"none": [], "some": [1, 5, 6], "all but one": [*range(15)], "all": [*range(16)]}


@pytest.mark.parametrize("on_error", ["skip", "replace", "raise"])
def test_executors_agree_however_many_rows_of_a_chunk_are_bad(on_error):
    makers, works = [], []
    for shape, bad, ragged in product(SHAPES, BAD.values(), ["list", "pad", "error"]):
        if ragged != "list" and shape not in ("ragged", "nested", "list of numbers"):
            continue
        rows = [{"i": i, "bad": i - 32 in bad} for i in range(64)]
        dataset = sw.wrap(rows).map(Fails(shape))
        makers.append(BatchBuilder(dataset, on_error=on_error, ragged=ragged))
        works.append([BatchRequest(0, n, np.arange(n * 16, n * 16 + 16)) for n in range(4)])
    together = Makers(makers)
    with closing(ProcessExecutor(together, num_workers=2, num_prefetch=1)) as executor:
        for number, (maker, own) in enumerate(zip(makers, works, strict=True)):
            wanted = outcome(InlineExecutor(maker).run(iter(own)))
            chosen = Configuration(number, frozenset([on_error]), maker, own)
            threads = ThreadExecutor(maker, num_threads=2, num_prefetch=4)
            with closing(threads):
                compare(chosen, wanted, outcome(threads.run(iter(own))))
            together.current = number
            compare(chosen, wanted, outcome(executor.run(together.works(number, own))))
