"""Ranks that share an import: torchrun's environment, and an end with the first that fails."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.ranks import Run, run_several

PROGRAM = """
import json, os, signal, sys
import torch.distributed as dist

if sys.argv[1] == "fail":
    if os.environ["RANK"] == "1":
        sys.exit(3)
    signal.pause()
said = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    ranks = [None, None]
    dist.all_gather_object(ranks, dist.get_rank())
    dist.destroy_process_group()
    said |= {"ranks": ranks, "elastic": dist.is_torchelastic_launched()}
os.write(1, (json.dumps(said) + "\\n").encode())
"""


def test_a_rank_that_fails_ends_its_run_and_later_runs_begin(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    failed, two, alone = run_several(
        Run((program, "fail"), 2, check=False),
        Run((program, "say"), 2),
        Run((program, "say"), None),
    )
    assert failed.returncode == 3
    ranks = sorted((json.loads(line) for line in two.stdout.splitlines()), key=lambda r: r["RANK"])
    assert ranks == [
        {"RANK": r, "LOCAL_RANK": r, "WORLD_SIZE": "2", "ranks": [0, 1], "elastic": True}
        for r in "01"
    ]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    assert json.loads(alone.stdout) == dict.fromkeys(names)
