"""Rank and world size: discovered in the process that builds the loader, or refused.

Keeps I10, no surprise ranks. The ranks travel with the pickled loader, and `loader/rank_check.py`
compares them with the process group when a pass starts. Where the environment is not conclusive,
`RankError` has its values and what to set: a rank that reads everything is a mistake
that shows nowhere.

The only module that reads environment variables to find ranks.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.base.errors import RankError
from shardwise.base.process_group import group_rank_and_size, loader_worker

# The environment has the number of ranks, and not the rank of this process.
_UNCERTAIN = "LOCAL_RANK, WORLD_SIZE"

# Slurm numbers steps without srun from here up: the batch script, an interactive shell, extern.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

_REMEDY = (
    "start the program with torchrun or srun, call torch.distributed.init_process_group first, "
    "or pass rank= and world_size="
)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process among the readers.

    Attributes:
        rank: in [0, world_size).
        world_size: how many processes share the data, at least 1.
        source: where they are from, for messages: "arguments", "group", "torch.distributed",
            the names of two environment variables, or "default".
        is_certain: whether `rank` is more than a guess until the process group is there.
    """

    rank: int
    world_size: int
    source: str

    @property
    def is_certain(self) -> bool:
        return self.source != _UNCERTAIN


def discover(rank: int | None = None, world_size: int | None = None, *, group: Any = None) -> Ranks:
    """Find rank and world size: the first source that has them counts.

    1. The arguments, both or neither.
    2. `group`: a torch process group, or one dimension of a device mesh (`mesh["dp"]`).
    3. torch.distributed, where it is initialised. It wins over the environment.
    4. `RANK` and `WORLD_SIZE`, as torchrun sets them.
    5. `SLURM_PROCID` and `SLURM_NTASKS`, in a step that srun started with more than one task.
    6. `OMPI_COMM_WORLD_RANK` and `_SIZE` (Open MPI), `PMI_RANK` and `PMI_SIZE` (MPICH, Intel MPI).
    7. None of them: rank 0 of 1.

    Args:
        rank: this process's rank, or None to find it.
        world_size: the number of ranks, or None to find it.
        group: what the data is to be divided over, where that is not the whole world.

    Raises:
        ValueError: arguments that are incomplete, out of range or contradict each other.
        TypeError: an argument is of a wrong type.
        RankError: the environment is incomplete or contradicts itself; Slurm allots several tasks
            but srun did not start this process; this process is not in `group`; or this is
            a worker of torch's DataLoader, where only arguments or a group count.

    >>> discover(1, 4)
    Ranks(rank=1, world_size=4, source='arguments')
    """
    if rank is not None or world_size is not None:
        return _from_arguments(rank, world_size, group)
    if group is not None:
        return _from_group(group)
    _refuse_loader_worker()
    return ranks_of_group() or _from_environment(os.environ)


def inherited() -> Ranks:
    """The ranks that a worker process itself can see; only a forked one sees the process group.

    For code that must run in workers of torch's DataLoader, where `discover` refuses. Ranks that
    the parent found and sent along are better, unless `source` is "torch.distributed".

    Raises:
        RankError: the environment is incomplete or contradicts itself.
    """
    return ranks_of_group() or _from_environment(os.environ)


def explicit_ranks() -> Ranks:
    """Ranks of torch.distributed, or of `RANK` and `WORLD_SIZE` together; no other launcher counts.

    For programs whose tasks may each have their own data, as WebDataset's may: several tasks of
    srun or mpirun need not share a list. It holds in workers of torch's
    DataLoader, too, as far as they can see; only a forked one sees the process group.

    Raises:
        RankError: `RANK` and `WORLD_SIZE` are not integers or contradict each other.
    """
    ranks = ranks_of_group()
    if ranks is None and {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        ranks = _pair(os.environ, "RANK", "WORLD_SIZE")
    return ranks or Ranks(0, 1, "default")


def unused_world_size() -> str | None:
    """The variable that shows several tasks where `explicit_ranks` finds only one."""
    if explicit_ranks().source != "default":
        return None
    names = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
    if _slurm_step(os.environ):
        names.insert(0, "SLURM_NTASKS")
    return next((f"{n}={os.environ[n]}" for n in names if os.environ.get(n, "1") != "1"), None)


def local_world_size(*, default: int = 1) -> int:
    """The number of ranks on this machine, by the launcher's variables; `default` without them.

    Looks at `LOCAL_WORLD_SIZE` (torchrun), `SLURM_STEP_TASKS_PER_NODE` and
    `SLURM_NTASKS_PER_NODE` (in a step of srun), `OMPI_COMM_WORLD_LOCAL_SIZE` (Open MPI) and
    `MPI_LOCALNRANKS` (MPICH, Intel MPI). It sizes thread pools and divides no data.

    Raises:
        RankError: a variable does not hold a positive integer.
    """
    env = os.environ
    names = ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"]
    if _slurm_step(env):
        layout = env.get("SLURM_STEP_TASKS_PER_NODE", "")
        if "LOCAL_WORLD_SIZE" not in env and layout:
            return _tasks_of_node(layout, _integer(env, "SLURM_NODEID", default=0))
        names.insert(1, "SLURM_NTASKS_PER_NODE")
    for name in names:
        if name in env:
            size = _integer(env, name)
            if size < 1:
                raise RankError(f"{name}={size}: expected a positive integer; correct or unset it")
            return size
    return default


def launched_run() -> str | None:
    """The launcher's id of this start of the program, equal on all ranks; None without one.

    torchrun's `--rdzv-id` with the restart and the port, which is another one in each start where
    torchrun chose it; a step of Slurm with the job's restart; or Open MPI's name space.
    """
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        # Without --rdzv-id, all starts are "none".
        names = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"]
        is_one = env["TORCHELASTIC_RUN_ID"] not in ("", "none")
    elif "SLURM_JOB_ID" in env and _slurm_step(env):
        names, is_one = ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"], True
    else:
        names, is_one = ["PMIX_NAMESPACE"], bool(env.get("PMIX_NAMESPACE"))
    text = "-".join(env.get(name, "0") for name in names)
    return re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)[:80] if is_one else None


def _from_arguments(rank: int | None, world_size: int | None, group: Any) -> Ranks:
    if rank is None or world_size is None:
        raise ValueError(
            f"rank={rank} with world_size={world_size}: give both, or neither to have them found"
        )
    if group is not None:
        raise ValueError(
            f"rank={rank}, world_size={world_size} and group={group!r}: "
            "give either rank and world_size, or group"
        )
    no_integers = TypeError(f"rank={rank!r}, world_size={world_size!r}: both must be integers")
    if isinstance(rank, bool) or isinstance(world_size, bool):
        raise no_integers
    try:
        rank, world_size = operator.index(rank), operator.index(world_size)
    except TypeError as error:
        raise no_integers from error
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank={rank} with world_size={world_size}: rank must lie in [0, world_size)"
        )
    return Ranks(rank, world_size, "arguments")


def _from_group(group: Any) -> Ranks:
    """A process group has rank() and size(); a device mesh get_local_rank() and dimensions."""
    if callable(getattr(group, "get_local_rank", None)):
        if group.ndim != 1:
            names = group.mesh_dim_names
            example = names[0] if names else "dp"
            raise ValueError(
                f"group is a device mesh of {group.ndim} dimensions, {names or 'without names'}: "
                f'pass the one that the data is divided over, such as mesh["{example}"]; if it is '
                "divided over all of them, as over replicas and shards in HSDP, pass "
                "mesh._flatten()"
            )
        rank, size = group.get_local_rank(), group.size()
    elif callable(getattr(group, "rank", None)) and callable(getattr(group, "size", None)):
        rank, size = group.rank(), group.size()
    else:
        raise TypeError(
            f"group={group!r} is neither a torch process group that this process is a member of, "
            "nor a dimension of a device mesh"
        )
    if not 0 <= rank < size:
        raise RankError(
            f"this process is no member of the group (rank {rank} of {size}): build the loader "
            "on the group's members only, or pass rank= and world_size="
        )
    return Ranks(rank, size, "group")


def _refuse_loader_worker() -> None:
    """Workers that were not forked have no process group: only what travelled with them counts."""
    info = loader_worker()
    if info is not None:
        raise RankError(
            f"rank and world size were asked for in worker {info.id} of {info.num_workers} of a "
            "torch DataLoader, where they can't be told for certain: build the loader or dataset "
            "in the main process (they travel with it), or pass rank= and world_size="
        )


def ranks_of_group() -> Ranks | None:
    """The ranks of torch.distributed, if it is initialised in this process."""
    found = group_rank_and_size()
    return None if found is None else Ranks(*found, "torch.distributed")


def uncertain() -> Ranks | None:
    """Rank 0 for the time being, where there is a number of ranks and a local rank only."""
    env = os.environ
    if (
        not {"LOCAL_RANK", "WORLD_SIZE"} <= env.keys()
        or "RANK" in env
        or ranks_of_group()
        or loader_worker()
    ):
        return None
    return Ranks(0, max(1, _integer(env, "WORLD_SIZE")), _UNCERTAIN)


def _from_environment(env: Mapping[str, str]) -> Ranks:
    ranks = (
        _pair(env, "RANK", "WORLD_SIZE")
        or (_from_slurm(env) if _slurm_step(env) else None)
        or _pair(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        or _pair(env, "PMI_RANK", "PMI_SIZE")
    )
    if ranks is not None:
        return ranks
    num_tasks = _integer(env, "SLURM_NTASKS", default=1)
    if num_tasks > 1 and not _slurm_step(env):
        # An salloc shell, or a batch script without srun: one process, or several that something
        # else started. Only the user knows.
        raise RankError(
            f"SLURM_NTASKS={num_tasks}, but srun did not start this process, so that its rank is "
            f"unknown: {_REMEDY} (rank=0, world_size=1 for a single process)"
        )
    return Ranks(0, 1, "default")


def _slurm_step(env: Mapping[str, str]) -> bool:
    """Whether srun started this process, as one of the tasks of a numbered step."""
    if "SLURM_STEP_ID" not in env:
        return False
    return _integer(env, "SLURM_STEP_ID") < _FIRST_SPECIAL_STEP


def _from_slurm(env: Mapping[str, str]) -> Ranks | None:
    ranks = _pair(env, "SLURM_PROCID", "SLURM_NTASKS")
    if ranks is None:
        return None
    num_tasks = _integer(env, "SLURM_STEP_NUM_TASKS", default=ranks.world_size)
    if num_tasks != ranks.world_size:
        raise RankError(
            f"SLURM_NTASKS={ranks.world_size}, but SLURM_STEP_NUM_TASKS={num_tasks}: {_REMEDY}"
        )
    # A step of one task may hold an mpirun: its variables, if any, say more.
    return ranks if ranks.world_size > 1 else None


def _pair(env: Mapping[str, str], rank_name: str, size_name: str) -> Ranks | None:
    values = {name: env[name] for name in (rank_name, size_name) if name in env}
    if not values:
        return None
    if len(values) == 1:
        (present,) = values
        missing = size_name if present == rank_name else rank_name
        raise RankError(
            f"{present}={values[present]!r} is set but {missing} is not: set {missing} too, unset "
            f"{present}, or pass rank= and world_size="
        )
    rank, size = _integer(env, rank_name), _integer(env, size_name)
    if not 0 <= rank < size:
        raise RankError(
            f"{rank_name}={rank} with {size_name}={size}: the rank must lie in [0, {size_name}); "
            "correct them, or pass rank= and world_size="
        )
    return Ranks(rank, size, f"{rank_name}, {size_name}")


def _integer(env: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    if default is not None and name not in env:
        return default
    try:
        return int(env[name])
    except ValueError:
        raise RankError(f"{name}={env[name]!r} is not an integer: correct or unset it") from None


def _tasks_of_node(layout: str, node: int) -> int:
    """Tasks of one node from Slurm's run-length form: "4(x2),3" is 4, 4, 3."""
    first = 0
    for part in layout.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            break
        first += int(match[2] or 1)
        if node < first and int(match[1]) > 0:
            return int(match[1])
    raise RankError(
        f"SLURM_STEP_TASKS_PER_NODE={layout!r} says no number of tasks for SLURM_NODEID={node}: "
        "correct it, or set LOCAL_WORLD_SIZE"
    )
