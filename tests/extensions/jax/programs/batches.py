"""Batches as arrays of JAX on four virtual devices, in a process that never imports torch."""

import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardwise as sw

NUM_SAMPLES = 203
MESH = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
ROWS = NamedSharding(MESH, PartitionSpec("data"))


def sample(i):
    return {"x": np.full((4, 6), i, np.float32), "label": i, "name": f"n{i}"}


def loader(sharding=ROWS, **options):
    given = {"dataset": DATA, "batch_size": 16, "shuffle": True, "seed": 3, "remainder": "pad"}
    return sw.DataLoader(**{**given, "output": "jax", "sharding": sharding, **options})


@jax.jit
def masked_sum(x, valid):
    return (x[:, 0, 0] * valid).sum()


def check_batch(batch, expected, sharding):
    """A batch against the same one as arrays of numpy."""
    assert batch.keys() == expected.keys()
    for name in ("x", "label", "__valid__"):
        assert isinstance(batch[name], jax.Array), name
        assert np.array_equal(batch[name], expected[name]), name
    assert batch["x"].sharding.is_equivalent_to(sharding, 3)
    assert batch["label"].sharding.is_equivalent_to(
        NamedSharding(MESH, PartitionSpec(*sharding.spec[:1])), 1
    )
    assert batch["__index__"].dtype == np.int64
    assert type(batch["__index__"]) is np.ndarray
    assert batch["name"] == expected["name"]
    assert not np.asarray(batch["has_torch"]).any()


def check_epoch(sharding, **options):
    with (
        loader(sharding, **options) as given,
        sw.DataLoader(DATA, 16, True, seed=3, remainder="pad", output="numpy") as plain,
    ):
        for _ in range(2):
            # All are kept: memory that batches were built in may not be used again under them.
            batches, expected = list(given), list(plain)
            for pair in zip(batches, expected, strict=True):
                check_batch(*pair, sharding)
            total = sum(float(masked_sum(b["x"], b["__valid__"])) for b in batches)
            assert total == sum(range(NUM_SAMPLES))


def check_resume():
    with loader() as first:
        seen = [next(it := iter(first))["__index__"], next(it)["__index__"]]
        state = json.loads(json.dumps(first.state_dict()))
    parts = []
    for rank in range(3):
        with loader(jax.devices()[rank], rank=rank, world_size=3, batch_size=8) as rest:
            rest.load_state_dict(state)
            for batch in rest:
                assert batch["x"].sharding.device_set == {jax.devices()[rank]}
                parts.append(batch["__index__"][np.asarray(batch["__valid__"])])
    assert sorted(np.concatenate(seen + parts)) == list(range(NUM_SAMPLES))


def message(error, **options):
    try:
        with loader(**options) as given:
            list(given)
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__} with {options}")


def check_refusals():
    assert "remainder='pad' or 'drop'" in message(ValueError, remainder="uneven")
    assert "16 rows can't" not in message(ValueError, batch_size=7)
    assert "a multiple of 2" in message(ValueError, batch_size=7)
    assert "sharding='data'" in message(TypeError, sharding="data")
    big = {"dataset": sw.wrap([{"x": 2**40}] * 16), "shuffle": False}
    assert "do not fit into int32" in message(ValueError, **big)
    assert "output='numpy'" in message(ValueError, output="numpy")


def look_for_torch(sample):
    """Say whether the process that makes the sample has torch."""
    return {**sample, "has_torch": "torch" in sys.modules}


DATA = sw.wrap([sample(i) for i in range(NUM_SAMPLES)]).map(look_for_torch)

if __name__ == "__main__":
    both = NamedSharding(MESH, PartitionSpec("data", None, "model"))
    for options in ({"num_threads": 0}, {"num_threads": 2}, {"num_workers": 1}):
        check_epoch(both if "num_workers" in options else ROWS, **options)
    check_resume()
    check_refusals()
    # Without a sharding, any number of rows; a tuple; and what a collate made.
    [*_, last] = sw.DataLoader(DATA, 16, output="jax", as_tuple=("label", "name"))
    assert isinstance(last[0], jax.Array)
    assert (len(last[0]), len(last[1])) == (NUM_SAMPLES % 16,) * 2
    [*_, made] = sw.DataLoader(DATA, 16, output="jax", collate=len)
    assert made == NUM_SAMPLES % 16
    assert "torch" not in sys.modules
    print("ok")
