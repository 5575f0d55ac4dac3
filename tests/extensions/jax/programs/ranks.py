"""One of two processes of JAX with two virtual devices each, whose sharding tells the ranks."""

import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardwise as sw

port, process = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)

data = sw.wrap([{"x": np.full(3, i, np.float32)} for i in range(50)])
devices = np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
total = jax.jit(lambda batch: (batch["x"][:, 0] * batch["__valid__"]).sum())


def run(mesh_devices, names, ranks):
    """Sum an epoch over all devices, and return the ids that this process read."""
    sharding = NamedSharding(Mesh(mesh_devices, names), PartitionSpec("data"))
    options = {"batch_size": 8, "shuffle": True, "remainder": "pad", "output": "jax"}
    with sw.DataLoader(data, sharding=sharding, **options) as loader:
        assert (loader.rank, loader.world_size) == ranks, (loader.rank, loader.world_size)
        ids, sums = [], []
        for batch in loader:
            assert batch["x"].shape == (8 * ranks[1], 3)
            ids.append(batch["__index__"])
            arrays = {name: batch[name] for name in ("x", "__valid__")}
            sums.append(float(total(arrays)))
        assert sum(sums) == sum(range(50)), sums
    return np.concatenate(ids)


def refusal(**options):
    """The message of a loader over all devices with these options."""
    sharding = NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
    try:
        sw.DataLoader(data, sharding=sharding, output="jax", remainder="drop", **options)
    except ValueError as error:
        return str(error)
    raise AssertionError(options)


# Each process has rows of its own; in the order of the mesh, not of the processes.
run(devices, ("data",), (process, 2))
run(devices[::-1], ("data",), (1 - process, 2))
# Each process has a half of the model, and all rows.
assert sorted(set(run(devices.reshape(2, 2).T, ("data", "model"), (0, 1)).tolist())) == [*range(50)]
# Arrays of each process's own are divided by processes.
own = jax.local_devices()[0]
with sw.DataLoader(data, 5, output="jax", sharding=own) as loader:
    assert (loader.rank, loader.world_size) == (process, 2)
assert f"the rows of rank {process} of 2" in refusal(rank=1 - process, world_size=2)
assert "a multiple of 2" in refusal(global_batch_size=5)
print("ok")
jax.distributed.shutdown()
