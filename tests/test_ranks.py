"""Rank discovery: who is believed, what is refused, and that it touches nothing."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from shardwise.base.errors import RankError
from shardwise.base.ranks import Ranks, discover, launched_run, local_world_size

TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
MPICH = {"PMI_RANK": "6", "PMI_SIZE": "7"}


@pytest.fixture
def env(monkeypatch):
    def set_all(*groups, **more):
        for group in (*groups, more):
            for name, value in group.items():
                monkeypatch.setenv(name, value)

    return set_all


def process_group(rank, size):
    return SimpleNamespace(rank=lambda: rank, size=lambda: size)


def mesh(ndim, rank=1, size=2, names=("dp", "tp")):
    return SimpleNamespace(
        ndim=ndim, mesh_dim_names=names, get_local_rank=lambda: rank, size=lambda: size
    )


def test_arguments_win_over_everything(env):
    env(TORCHRUN, SRUN)
    assert discover(0, 1) == Ranks(0, 1, "arguments")


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 4)])
def test_half_of_the_arguments_is_refused(env, rank, world_size):
    env(TORCHRUN)
    with pytest.raises(ValueError, match="give both, or neither"):
        discover(rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [(4, 4), (-1, 4), (0, 0), (0, -1)])
def test_arguments_out_of_range_are_refused_with_their_values(rank, world_size):
    with pytest.raises(ValueError, match=f"rank={rank} with world_size={world_size}"):
        discover(rank, world_size)


def test_arguments_that_are_no_integers_are_refused():
    with pytest.raises(TypeError, match="must be integers"):
        discover("0", 2)


def test_arguments_and_a_group_together_are_refused():
    with pytest.raises(ValueError, match="either rank and world_size, or group"):
        discover(0, 2, group=process_group(0, 2))


def test_a_group_wins_over_the_environment(env):
    env(TORCHRUN)
    assert discover(group=process_group(1, 2)) == Ranks(1, 2, "group")
    assert discover(group=mesh(1)) == Ranks(1, 2, "group")


def test_a_mesh_of_two_dimensions_is_refused_and_the_message_names_one_and_both_as_one():
    with pytest.raises(ValueError, match=r'mesh\["dp"\]; .* HSDP, pass mesh\._flatten\(\)'):
        discover(group=mesh(2))


def test_a_process_outside_the_group_is_refused():
    with pytest.raises(RankError, match="no member"):
        discover(group=process_group(-1, 2))
    with pytest.raises(TypeError, match="member"):
        discover(group=-100)  # what torch's new_group gives to those outside


def test_torchrun_slurm_and_mpi_are_believed_in_this_order(env):
    assert discover() == Ranks(0, 1, "default")
    env(MPICH)
    assert discover() == Ranks(6, 7, "PMI_RANK, PMI_SIZE")
    env(OPEN_MPI)
    assert discover() == Ranks(1, 3, "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE")
    env(SRUN)
    assert discover() == Ranks(5, 8, "SLURM_PROCID, SLURM_NTASKS")
    env(TORCHRUN)
    assert discover() == Ranks(2, 4, "RANK, WORLD_SIZE")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE='4' is set but RANK is not"),
        ({"RANK": "1"}, "RANK='1' is set but WORLD_SIZE is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 with WORLD_SIZE=4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK=-1 with WORLD_SIZE=4"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK='one' is not an integer"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE='' is not an integer"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK is not"),
        ({"PMI_RANK": "0"}, "PMI_SIZE is not"),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, "SLURM_PROCID is not"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS=2"),
        ({**SRUN, "SLURM_STEP_ID": "x"}, "SLURM_STEP_ID='x' is not an integer"),
    ],
)
def test_what_the_environment_leaves_open_is_refused_with_its_values(env, variables, said):
    env(variables)
    with pytest.raises(RankError) as caught:
        discover()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_NTASKS": "8"},  # an salloc shell
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # a batch script
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},  # interactive
    ],
)
def test_several_slurm_tasks_without_srun_are_refused_unless_something_else_speaks(env, variables):
    env(variables)
    with pytest.raises(RankError, match="SLURM_NTASKS=8, but srun did not start this process"):
        discover()
    assert discover(0, 1).world_size == 1
    env(OPEN_MPI)  # mpirun in a batch script
    assert discover() == Ranks(1, 3, "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE")


def test_one_slurm_task_is_one_rank_unless_it_holds_an_mpirun(env):
    env(SLURM_NTASKS="1")
    assert discover() == Ranks(0, 1, "default")
    env(SLURM_STEP_ID="0", SLURM_PROCID="0")
    assert discover() == Ranks(0, 1, "default")
    env(OPEN_MPI)
    assert discover().world_size == 3


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"MPI_LOCALNRANKS": "3"}, 3),
        ({"SLURM_NTASKS_PER_NODE": "8"}, 1),  # not in a step of srun
        ({**SRUN, "SLURM_NTASKS_PER_NODE": "8"}, 8),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1"}, 4),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4", "LOCAL_WORLD_SIZE": "2"}, 2),
    ],
)
def test_the_ranks_of_this_machine_are_told_by_the_launcher(env, variables, size):
    env(variables)
    assert local_world_size() == size


@pytest.mark.parametrize(
    "variables",
    [
        {"LOCAL_WORLD_SIZE": "0"},
        {"LOCAL_WORLD_SIZE": "many"},
        {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "2"},
        {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "four"},
    ],
)
def test_a_local_size_that_makes_no_sense_is_refused(env, variables):
    env(variables)
    with pytest.raises(RankError, match="correct"):
        local_world_size()


@pytest.mark.parametrize(
    ("env", "run"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, None),
        ({"TORCHELASTIC_RUN_ID": "a b", "TORCHELASTIC_RESTART_COUNT": "1"}, "a_b-1-0"),
        ({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "1"}, "17-3-1"),
        ({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}, "17-0-0"),
        # No step of srun: what runs in it need not be one program.
        ({"SLURM_JOB_ID": "17"}, None),
        ({"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "4294967290"}, None),
        ({"PMIX_NAMESPACE": "prterun-host-12@1"}, "prterun-host-12_1"),
    ],
)
def test_a_start_has_the_id_that_its_launcher_gave_it(
    env: dict[str, str], run: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in os.environ if n.startswith(("TORCHELASTIC", "SLURM", "PMIX"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert launched_run() == run
