"""Ranks that are checked where they are used, not only where they were discovered.

A loader may be made before there is a process group, and be used in processes that a launcher
started later. Keeps I10 there. No torch beyond what `shardwise.base.ranks` looks at.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from shardwise.base.errors import RankError
from shardwise.base.process_group import loader_worker, watch_group
from shardwise.base.ranks import Ranks, discover, inherited, ranks_of_group, uncertain

# The token of this interpreter and its forks; a process that was spawned has another.
_TOKEN = os.urandom(8)


class CurrentRanks:
    """The ranks of a loader or sampler, which may be made before its process group, or elsewhere.

    Discovered ranks give way to a process group that exists when they are used: launchers of
    notebooks, `torch.multiprocessing.spawn` and others send a loader to processes that they start
    later. Explicit ranks stay, since dividing data over a part of the ranks is the user's right;
    they are refused where they can't be this process's.

    Arguments and errors are those of `discover`, but a missing rank alone is not an error:
    Lightning's launcher leaves it to the process group.
    """

    def __init__(
        self, rank: int | None = None, world_size: int | None = None, *, group: Any = None
    ) -> None:
        self._is_explicit = not (rank is None and world_size is None and group is None)
        unsure = None if self._is_explicit else uncertain()
        self._ranks: Ranks = unsure or discover(rank, world_size, group=group)
        self._seen = ranks_of_group()
        self._home = _home()

    @property
    def has_travelled(self) -> bool:
        """Whether this process is another one than the one that made this object."""
        return _home() != self._home

    def now(self) -> Ranks:
        """The ranks as they are now, in this process or the one that this is a loader worker of."""
        current = ranks_of_group()
        if current is None:
            if self._ranks.source == "default" and self.has_travelled and not loader_worker():
                self._ranks = uncertain() or inherited()
        elif self._is_explicit:
            self._check_explicit(current)
        else:
            self._ranks = current
        return self._ranks

    def certain(self) -> Ranks:
        """The ranks as they are now, for a pass that is about to start."""
        ranks = self.now()
        if not ranks.is_certain:
            raise RankError(
                f"WORLD_SIZE={ranks.world_size} and LOCAL_RANK are set but RANK is not, and "
                "torch.distributed is not initialised: Lightning starts its processes so, and "
                "initialises it in trainer.fit, validate or test. Iterate the loader there, or "
                "in a hook; else set RANK too, or pass rank= and world_size="
            )
        return ranks

    def watch(self) -> Callable[[], None]:
        """A check for each batch of a pass that starts now: 1 us, and a RankError if ranks change.

        A process group that is gone raises no error until there is another one.
        """
        began = self.certain()

        def require_same() -> None:
            now = self.now()
            if not _is_same(began, now):
                raise RankError(
                    f"this pass began on rank {began.rank} of {began.world_size}, and this process "
                    f"is rank {now.rank} of {now.world_size} in torch.distributed now: its next "
                    "batches would leave out samples. Call loader.regroup() after the group was "
                    "made, on all ranks; of a sampler begin another pass at this position: state = "
                    "loader.state_dict(); loader.load_state_dict(state); iter(loader)"
                )

        return watch_group(require_same)

    def are_of_group(self) -> bool:
        """Whether a process group has the same ranks."""
        group = ranks_of_group()
        return group is not None and _is_same(self.now(), group)

    def _check_explicit(self, current: Ranks) -> None:
        explicit = self._ranks
        if _is_same(explicit, current) or explicit.world_size == 1 or self._seen == current:
            return
        # Ranks of a group that no longer exists: a subgroup does not outlive the whole one.
        seen = self._seen
        were_groups = seen is not None and (explicit.source == "group" or _is_same(explicit, seen))
        if self.has_travelled or were_groups or explicit.world_size == current.world_size:
            raise RankError(
                f"this was made with rank={explicit.rank} and world_size={explicit.world_size} "
                f"({explicit.source}), and is used in a process that is rank {current.rank} of "
                f"{current.world_size} in torch.distributed: make it in the process that uses it, "
                "or leave rank, world_size and group out to have them found there"
            )


def _is_same(one: Ranks, other: Ranks) -> bool:
    return (one.rank, one.world_size) == (other.rank, other.world_size)


def _home() -> tuple[bytes, int]:
    """The identity of this process; in a worker of torch's DataLoader, of its parent."""
    return _TOKEN, os.getppid() if loader_worker() else os.getpid()
