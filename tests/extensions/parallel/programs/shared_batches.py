"""What each of four ranks, two of which share batches, gets of a loader; written as pickles."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import torch
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
        "verdict": stats["verdict"],
        "samples": stats["samples"],
    }


def resumed(mesh):
    shared = loader(mesh, share="cp")
    expected = ids(shared)
    batches = iter(shared)
    first = [next(batches) for _ in range(2)]
    state = shared.state_dict()
    # The rest of this pass is left; the state is of its middle.
    other = loader(mesh, share=mesh["cp"], num_threads=2)
    other.load_state_dict(state)
    shared.set_epoch(0)
    yield {
        "state": state,
        "whole": [ids(shared), expected],
        "parts": [ids(first) + ids(other), ids(loader(mesh, num_threads=0, epoch_size=None))],
    }
    other.close()
    shared.set_epoch(0)
    shared.close()
    yield {"after close": ids(shared) == expected}


def own_memory(mesh, rank):
    batch = next(iter(loader(mesh, share=("cp",))))
    batch["tokens"][:] = rank
    dist.barrier()
    yield {"values": np.unique(batch["tokens"]).tolist()}


def halves(mesh):
    batches = list(loader(mesh, share="cp", halves={"cp": ["tokens"]}, output="torch"))
    yield {"halves": [(b["n"].tolist(), b["tokens"].numpy()) for b in batches]}
    odd = loader(mesh, share="cp", halves={"cp": ["n"]})
    yield {"no sequence": error_of(lambda: next(iter(odd)))}


def errors(mesh, rank):
    damaged = loader(mesh, [*range(8), *[1000] * 8], share="cp", shuffle=False)
    yield {"damaged": error_of(lambda: list(damaged))}
    # Ranks that differ: the receiver asks for another epoch than the maker makes.
    other = loader(mesh, share="cp")
    other.set_epoch(rank % 2)
    yield {"differ": error_of(lambda: next(iter(other)))}
    dist.barrier()
    yield {"regroup": error_of(lambda: loader(mesh, share="cp").regroup(0, 1))}
    for share in ("tp", "dp", ("cp", "dp"), mesh["dp"] if rank else None, 7):
        if share is not None:
            yield {f"share={share if not hasattr(share, 'mesh') else 'mesh'}": error_of(
                lambda share=share: loader(mesh, share=share)
            )}  # fmt: skip
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
    for part in (same_as_alone(mesh), resumed(mesh), own_memory(mesh, rank), halves(mesh),
                 errors(mesh, rank), late_and_dead(mesh, rank)):  # fmt: skip
        for found in part:
            record |= found
            (FOLDER / f"{rank}.pickle").write_bytes(pickle.dumps(record))
    assert torch.distributed.is_initialized()
    os._exit(0)  # the process group has lost a rank


main()
