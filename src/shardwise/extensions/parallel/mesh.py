"""The position of a rank in a device mesh: who gets the same batches, and which sequence part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shardwise.base.errors import RankError
from shardwise.base.process_group import group_rank_and_size


def sharing_ranks(group: Any, share: Any) -> tuple[int, list[int]]:
    """Return this process's rank and all that `share` names, ascending, of the whole world."""
    found = group_rank_and_size()
    if found is None or group is None:
        raise ValueError(f'share={share!r:.80} goes with group=, such as group=mesh["dp"]')
    if share and isinstance(share, str | tuple | list):
        names = [share] if isinstance(share, str) else share
        for name in names:
            _dimension(group, name)
        mesh = group._get_root_mesh()
        place = zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True)
        ranks = mesh.mesh[tuple(slice(None) if name in names else at for name, at in place)]
        members = sorted(ranks.flatten().tolist())
    elif hasattr(share, "rank") and hasattr(share, "size"):
        members = sorted(sys.modules["torch.distributed"].get_process_group_ranks(share))
    else:
        raise TypeError(f"share={share!r:.80}: give names of dimensions, or a process group")
    if found[0] not in members:
        raise RankError(f"share= has the ranks {members}, and this is rank {found[0]}")
    return found[0], members


def _dimension(group: Any, name: Any) -> tuple[int, int]:
    """Return rank and size in a dimension of the mesh that `group` is another dimension of."""
    mesh: Any = group._get_root_mesh() if hasattr(group, "_get_root_mesh") else None
    known = [n for n in getattr(mesh, "mesh_dim_names", ()) if n not in group.mesh_dim_names]
    if name not in known:
        raise ValueError(
            f"{name!r} is no dimension beside group= of its mesh, which has {known}: give group= a "
            'dimension of a mesh, such as mesh["dp"], and here names of others'
        )
    return mesh.get_local_rank(name), mesh.size(mesh.mesh_dim_names.index(name))


def halves_of(group: Any, halves: Any) -> Callable[[Any], Any]:
    """Return a function that cuts fields `[rows, length]` of a batch, by dimension of the mesh.

    Of 2 n chunks, rank r of n gets the r-th from either end: equal work under a causal mask.
    """
    if not isinstance(halves, Mapping) or any(isinstance(f, str) for f in halves.values()):
        raise TypeError(f"halves={halves!r:.80}: give fields by dimension: {{'cp': ['tokens']}}")
    return partial(_cut_batch, [(*_dimension(group, n), f) for n, fs in halves.items() for f in fs])


def _cut_batch(places: list[tuple[int, int, str]], data: Any) -> Any:
    for rank, size, name in places:
        value = data.get(name) if isinstance(data, Mapping) else None
        shape = tuple(getattr(value, "shape", ()))
        if value is None or len(shape) < 2 or shape[1] % (2 * size):
            raise ValueError(
                f"halves= names {name!r}, which has shape {list(shape)} in this batch: give fields "
                f"[rows, length] whose length is a multiple of {2 * size}, for {size} ranks, as "
                f"collate=sw.pad(multiple={2 * size}) makes it"
            )
        chunks = value.reshape((shape[0], 2 * size, shape[1] // (2 * size), *shape[2:]))
        own = chunks[:, [rank, 2 * size - 1 - rank]]
        data = {**data, name: own.reshape((shape[0], shape[1] // size, *shape[2:]))}
    return data
