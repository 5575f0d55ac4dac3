"""The number of cores for this process: affinity, control group's quota, ranks on the node."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores(*, num_ranks: int = 1) -> int:
    """Cores for each of `num_ranks` processes on this node; at least 1."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    quota = _cgroup_cores(Path("/sys/fs/cgroup"))
    if quota is not None:
        cores = min(cores, quota)
    return max(1, int(cores / max(1, num_ranks)))


def _cgroup_cores(root: Path) -> float | None:
    """The CPU quota of the control group in cores (version 2, then 1); None without a quota."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max", or -1: no quota
    return int(quota) / int(period)
