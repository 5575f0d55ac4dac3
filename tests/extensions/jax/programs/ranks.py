"""One of two processes of JAX with two virtual devices each, whose sharding tells the ranks."""

import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardwise as sw

port, process = sys.argv[1], int(sys.argv[2])
# No collective runs, so that hosts without a name that resolves will do.
jax.config.update("jax_cpu_collectives_implementation", None)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)

data = sw.wrap([{"x": np.full(3, i, np.float32)} for i in range(50)])
devices = np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))


def check(mesh_devices, names, ranks):
    """Compare an epoch's arrays with those of numpy of the rank that the sharding tells."""
    sharding = NamedSharding(Mesh(mesh_devices, names), PartitionSpec("data"))
    options = {"batch_size": 8, "shuffle": True, "remainder": "pad"}
    rank, world_size = ranks
    plain = sw.DataLoader(data, rank=rank, world_size=world_size, output="numpy", **options)
    with sw.DataLoader(data, sharding=sharding, output="jax", **options) as loader, plain:
        assert (loader.rank, loader.world_size) == ranks, (loader.rank, loader.world_size)
        for batch, expected in zip(loader, plain, strict=True):
            assert batch["x"].shape == (8 * world_size, 3)
            assert batch["x"].sharding == sharding
            assert batch["__index__"].tolist() == expected["__index__"].tolist()
            for name in ("x", "__valid__"):
                for shard in batch[name].addressable_shards:
                    start, stop, _ = shard.index[0].indices(8 * world_size)
                    rows = expected[name][start - 8 * rank : stop - 8 * rank]
                    assert len(rows) == 8 * world_size // sharding.mesh.shape["data"]
                    assert np.array_equal(shard.data, rows), (name, shard.index)


def refusal(**options):
    """The message of a loader over all devices with these options."""
    sharding = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
    try:
        sw.DataLoader(data, sharding=sharding, output="jax", remainder="drop", **options)
    except ValueError as error:
        return str(error)
    raise AssertionError(options)


# Each process has rows of its own; in the order of the mesh, not of the processes.
check(devices, ("data",), (process, 2))
check(devices[::-1], ("data",), (1 - process, 2))
# Each process has a half of the model, and all rows.
check(devices.reshape(2, 2).T, ("data", "model"), (0, 1))
# Arrays of each process's own are divided by processes.
own = jax.local_devices()[0]
with sw.DataLoader(data, 5, output="jax", sharding=own) as loader:
    assert (loader.rank, loader.world_size) == (process, 2)
assert f"the rows of rank {process} of 2" in refusal(rank=1 - process, world_size=2)
assert "a multiple of 2" in refusal(global_batch_size=5)
print("ok")
jax.distributed.shutdown()
