"""What each of four ranks, two of which share batches, gets of a loader; written as pickles."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import torch.distributed as dist

import shardwise as sw

FOLDER = Path(sys.argv[1])
NUM_SAMPLES, BATCH, LENGTH = 26, 3, 4096
MADE = []


def grow(sample):
    """A row of tokens that does not fit into a small message; counts where it is made."""
    MADE.append(sample["value"])
    if sample["value"] == 1000:
        raise KeyError("odd")
    return {"tokens": np.arange(LENGTH) + sample["value"], "n": sample["value"]}


def loader(mesh, values=range(NUM_SAMPLES), **options):
    settings = {"shuffle": True, "seed": 3, "num_threads": 0, "output": "numpy", **options}
    return sw.DataLoader(sw.wrap(list(values)).map(grow), BATCH, group=mesh["dp"], **settings)


def ids(batches):
    return [batch["__index__"].tolist() for batch in batches]


def error_of(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return None


def same_as_alone(mesh):
    alone = [{**batch} for batch in loader(mesh)]
    MADE.clear()
    shared = loader(mesh, share="cp", coverage=FOLDER / "coverage")
    kept = list(shared)
    same = all(
        set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)
        for one, other in zip(alone, kept, strict=True)
    )
    stats = shared.stats()
    yield {
        "same": same,
        "made": len(MADE),
        "ids": ids(kept),
        "executor": stats["executor"],
        "samples": stats["samples"],
    }


def resumed(mesh):
    shared = loader(mesh, share="cp")
    first = ids(shared)
    batches = iter(shared)
    begun = ids(next(batches) for _ in range(2))
    state = shared.state_dict()
    # Its pass is left, and another loader goes on; here the maker reads in threads.
    other = loader(mesh, share=mesh["cp"].get_group(), num_threads=2)
    other.load_state_dict(state)
    parts = begun + ids(other)
    other.close()
    alone = loader(mesh)
    alone.set_epoch(1)
    shared.set_epoch(0)
    again = ids(shared)
    shared.close()
    shared.set_epoch(0)
    yield {
        "state": state,
        "parts": parts,
        "second": ids(alone),
        "first": [first, again, ids(shared)],
    }


def regrouped(mesh):
    """The data-parallel ranks change between two steps; those that share are the same."""
    shared = loader(mesh, share="cp", timeout=60)
    batches = iter(shared)
    first = next(batches)["__index__"].tolist()
    shared.regroup(group=mesh["dp"])
    yield {"regrouped": [first, *ids(batches)]}


def own_memory(rank):
    """Of four ranks that share, three map the same memory."""
    mesh = dist.init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "cp"))
    kept = []
    for batch in loader(mesh, share=("cp",)):
        batch["tokens"][:] = rank
        kept.append(batch["tokens"])
    dist.barrier()
    yield {"values": np.unique(kept).tolist(), "num_kept": len(kept)}


def halves(mesh):
    whole = loader(mesh, share="cp", halves={"cp": ["tokens"]}, output="torch")
    yield {"halves": [(b["n"].tolist(), b["tokens"].numpy()) for b in whole]}
    yield {"batch_at": whole.batch_at(0, epoch=0)["tokens"].numpy()}
    odd = loader(mesh, share="cp", halves={"cp": ["n"]})
    yield {"no sequence": error_of(lambda: next(iter(odd)))}
    for wrong in ({"cp": "tokens"}, {"tp": ["tokens"]}, ["tokens"]):
        yield {f"halves={wrong}": error_of(lambda wrong=wrong: loader(mesh, halves=wrong))}


def errors(mesh, rank):
    damaged = loader(mesh, [*range(8), *[1000] * 8], share="cp", shuffle=False)
    yield {"damaged": error_of(lambda: list(damaged))}
    # A receiver asks for another epoch than its maker makes.
    other = loader(mesh, share="cp")
    other.set_epoch(rank % 2)
    yield {"differ": error_of(lambda: next(iter(other)))}
    dist.barrier()
    for share in ("tp", "dp", ["cp", "dp"], (), 7, mesh):
        what = "mesh" if share is mesh else repr(share)
        yield {f"share={what}": error_of(lambda share=share: loader(mesh, share=share))}
    one = dist.new_group([0])
    yield {"other group": error_of(lambda: loader(mesh, share=one)) if rank == 0 else ""}
    yield {"no group": error_of(lambda: sw.DataLoader([1, 2], share="cp"))}


def late_and_dead(mesh, rank):
    """Ranks 0 and 2 make the batches; 0 is late for its second one, 2 dies before it."""
    shared = iter(loader(mesh, share="cp", timeout=1.0))
    next(shared)
    if rank == 2:
        os._exit(0)
    if rank == 0:
        while not (FOLDER / "told").exists():
            time.sleep(0.01)
        return
    yield {"waits": error_of(lambda: next(shared))}
    if rank == 1:
        (FOLDER / "told").touch()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    record = {}
    for part in (
        *(same_as_alone(mesh), resumed(mesh), regrouped(mesh), own_memory(rank)),
        *(halves(mesh), errors(mesh, rank), late_and_dead(mesh, rank)),
    ):
        for found in part:
            record |= found
            (FOLDER / f"{rank}.pickle").write_bytes(pickle.dumps(record))
    os._exit(0)  # the process group has lost a rank


main()
