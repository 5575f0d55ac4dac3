"""What one of four ranks reads by one dimension of a device mesh, and by a group of three."""

from __future__ import annotations


def read_by_groups(sw, ds, **options):
    import torch.distributed as dist

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    record = {"mesh": read(sw, ds, group=mesh["dp"], **options)}
    try:
        read(sw, ds, group=mesh, **options)
    except ValueError as error:
        record["refused"] = str(error)
    group = dist.new_group([0, 1, 3])
    try:
        record["group"] = read(sw, ds, group=group, **options)
    except (sw.RankError, TypeError) as error:
        record["group"] = {"error": str(error)}
    return record


def read(sw, ds, **options):
    it = sw.torch.IterableDataset(ds, **options)
    batches = [(batch["__index__"].tolist(), None) for batch in it]
    return {"rank": it.rank, "world_size": it.world_size, "batches": batches}
