"""A panic in Rust is a BaseException, and an error of the sample like any other."""

from __future__ import annotations

import pytest

import shardwise as sw


class PanicException(BaseException):
    """A panic in Rust."""


def fragile(value):
    if value == b"3":
        raise PanicException("index out of bounds")
    return int(bytes(value))


class Fragile:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"n": fragile(b"%d" % index)}


ROWS = sw.wrap([{"x": b"%d" % number} for number in range(6)])
DATASETS = {
    "decoder": ROWS.decode(x=fragile),
    "map": ROWS.map(lambda sample: sample | {"x": fragile(sample["x"])}),
    "dataset": sw.wrap(Fragile()),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_it_names_the_sample_and_is_skipped(name, num_workers):
    data = DATASETS[name]
    with pytest.raises(sw.DataError, match="raised PanicException: index out of bounds") as caught:
        list(data)
    assert (caught.value.key, caught.value.index) == ("3", 3)
    options = {"rank": 0, "world_size": 1, "num_workers": num_workers, "output": "numpy"}
    with sw.DataLoader(data, batch_size=2, remainder="uneven", on_error="skip", **options) as made:
        assert sorted(n for batch in made for n in batch["__index__"].tolist()) == [0, 1, 2, 4, 5]


def test_a_signal_stays_one():
    def stopped(value):
        raise KeyboardInterrupt

    for data in (ROWS.decode(x=stopped), ROWS.map(stopped)):
        with pytest.raises(KeyboardInterrupt):
            data[0]
