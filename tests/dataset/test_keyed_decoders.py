"""Keyed decoders: randomness by (seed, epoch, sample), the same on every way to a sample."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pytest

import shardwise as sw
from shardwise.dataset.keyed_random import SampleKeys
from shardwise.testing import assert_batches_equal, check_decoder, check_resume


@dataclass(frozen=True)
class Noise:
    """Four random numbers behind the payload's length."""

    in_rows: bool = False
    stream: int = 0

    @property
    def row(self):
        return ((5,), np.dtype("float64")) if self.in_rows else None

    def __call__(self, data, rng):
        return np.concatenate([[float(len(data))], rng.random(4)])

    def decode_into(self, data, out, rng):
        out[...] = self(data, rng)


def plain(data, rng):
    return float(rng.random())


@pytest.fixture
def shards(tmp_path):
    with sw.TarWriter(tmp_path / "{shard:02d}.tar", max_samples=16) as writer:
        for i in range(40):
            writer.write({"__key__": f"{i:03d}", "a": b"x" * i, "b": b"yy", "c": b"z", "d": b"z"})
    return sw.tar(tmp_path)


def keyed(data):
    return data.decode(a=Noise(in_rows=True), b=Noise(), c=plain, d=Noise(stream=3))


def epochs(data, *, num_epochs=2, **options):
    options = {"batch_size": 8, "shuffle": True, "output": "numpy", "seed": 5, **options}
    samples = []
    with sw.DataLoader(data, rank=0, world_size=1, **options) as loader:
        for _ in range(num_epochs):
            columns = {}
            for batch in loader:
                for row, index in enumerate(batch["__index__"].tolist()):
                    columns[index] = [np.asarray(batch[name][row]) for name in "abcd"]
            samples.append(columns)
    return samples


def test_every_executor_gives_the_same_values_and_each_epoch_others(shards):
    data = keyed(shards)
    inline = epochs(data, executor="inline")
    for options in (
        {"executor": "threads", "num_threads": 3},
        {"executor": "processes", "num_workers": 2},
        {"executor": "threads", "num_threads": 2, "batch_size": 5, "shuffle": "window"},
        {"executor": "inline", "collate": None, "on_error": "skip", "shuffle": False},
    ):
        for one, other in zip(inline, epochs(data, **options), strict=True):
            assert len(other) == 40
            for index in one:
                assert_batches_equal(one[index], other[index], at=f"{options}, sample {index}")
    first, second = inline
    assert all(not np.array_equal(first[i][1], second[i][1]) for i in range(40))


def test_a_sample_alone_is_that_of_epoch_0_of_seed_0(shards):
    data = keyed(shards)
    [whole] = epochs(data, num_epochs=1, seed=0)
    for index, sample in enumerate(data):
        for name, value in zip("abcd", whole[index], strict=True):
            assert np.array_equal(sample[name], value)
            assert np.array_equal(data[index][name], value)
            assert np.array_equal(data[[index]][0][name], value)


def test_fields_of_a_stream_draw_alike_and_other_streams_and_samples_differ(shards):
    samples = list(keyed(shards))
    for sample in samples:
        assert np.array_equal(sample["a"][1:], sample["b"][1:])
        assert sample["c"] == sample["a"][1]
        assert not np.isin(sample["d"][1:], sample["a"]).any()
    assert len({sample["c"] for sample in samples}) == 40


def test_a_sample_of_a_subset_draws_what_it_draws_in_the_whole(shards):
    whole, part = keyed(shards), keyed(shards.subset([7, 3, 30]))
    assert [part[row]["c"] for row in range(3)] == [whole[index]["c"] for index in (7, 3, 30)]


def test_a_map_behind_a_keyed_decoder_sees_its_value_and_draws_apart(shards):
    data = (
        shards.decode(c=plain)
        .select("c")
        .map(lambda sample, rng: {**sample, "other": float(rng.random())})
    )
    sample = data[4]
    assert sample["c"] == keyed(shards)[4]["c"]
    assert sample["other"] != sample["c"]


def test_resuming_gives_the_values_that_would_have_come(shards):
    def make():
        data = keyed(shards)
        return sw.DataLoader(
            data, 16, shuffle=True, num_threads=0, output="numpy", rank=0, world_size=1
        )

    check_resume(make)


def test_a_keyed_decoder_that_raises_is_a_data_error_that_names_the_sample(shards):
    def fails(data, rng):
        if len(data) == 9:
            raise ValueError("not this one")
        return rng.random()

    data = shards.select("a").decode(a=fails)
    with pytest.raises(sw.DataError, match="not this one") as raised:
        list(data)
    assert (raised.value.key, raised.value.field, raised.value.index) == ("009", "a", 9)


def test_generators_spawn_pickle_and_stand_for_themselves():
    keys = SampleKeys(seed=1, epoch=2)
    one, other = keys.generator(5), keys.generator(5)
    assert one is not other
    assert one.random() == other.random()
    children = [each.random() for each in one.spawn(2)]
    assert children == [each.random() for each in other.spawn(2)]
    assert len(set(children)) == 2
    assert pickle.loads(pickle.dumps(one)).random() == other.random()
    distinct = {
        SampleKeys(seed, epoch).generator(sample, stream).random()
        for seed in (0, 1, -1)
        for epoch in range(3)
        for sample in (0, 1, 2**62)
        for stream in (0, 1)
    }
    assert len(distinct) == 54


def test_the_numbers_for_a_key_are_for_ever():
    drawn = SampleKeys(seed=3, epoch=1).generator(7).integers(0, 1000, 4).tolist()
    assert drawn == [452, 142, 698, 136]


def unkeyed(data, rng):
    return float(np.random.random())


class DrawsTwice(Noise):
    """Writes other values into rows than it returns."""

    def decode_into(self, data, out, rng):
        rng.random()
        super().decode_into(data, out, rng)


def test_the_kit_takes_keyed_decoders_and_finds_one_that_draws_elsewhere():
    check_decoder(Noise(in_rows=True), [b"abcd", b"efg"])
    check_decoder(plain, [b"abcd"])
    with pytest.raises(AssertionError, match="two calls differ"):
        check_decoder(unkeyed, [b"abcd"])
    with pytest.raises(AssertionError, match="decode_into differs"):
        check_decoder(DrawsTwice(in_rows=True), [b"abcd"])
