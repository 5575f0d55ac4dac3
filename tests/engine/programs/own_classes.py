"""Batches of a program's own classes, made by its worker processes, are of these very classes."""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass

import numpy as np

import shardwise as sw


class Kind(enum.Enum):
    EVEN = 0
    ODD = 1


@dataclass
class Row:
    number: int
    kind: Kind
    pixels: np.ndarray


class Batch:
    def __init__(self, rows):
        self.rows = rows


def row(number):
    return {"row": Row(number, Kind(number % 2), np.full(100_000, number))}


def local():
    class Inner:
        pass

    return lambda number: {"row": Inner()}


def late(number):
    class Inner:
        pass

    return row(number) if number < 4 else {"row": Inner()}


def loader(function, **options):
    data = sw.wrap(list(range(8))).map(lambda sample: function(sample["value"]))
    return sw.DataLoader(data, batch_size=4, num_workers=1, output="numpy", **options)


with loader(row) as batches:
    rows = [each for batch in batches for each in batch["row"]]
assert all(type(each) is Row for each in rows)
assert [each.kind for each in rows] == [Kind.EVEN, Kind.ODD] * 4
assert [int(each.pixels.sum()) for each in rows] == [100_000 * number for number in range(8)]
with loader(row, collate=lambda samples: Batch([each["row"] for each in samples])) as batches:
    made = list(batches)
assert all(type(batch) is Batch for batch in made)
assert all(type(each) is Row for batch in made for each in batch.rows)
for step, function in enumerate([local(), late]):
    with loader(function, prefetch_factor=4) as batches:
        for _ in range(2):
            given = iter(batches)
            try:
                for _ in range(step):
                    next(given)
                next(given)
            except (AttributeError, pickle.PicklingError, sw.WorkerError) as error:
                print(step, getattr(error, "__notes__", [error])[0])
