"""Repeats of bucketed epochs, which no trainer could cut off."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.integrations.repeats import refuse_repeats

LENGTHS = np.arange(1, 51)


@pytest.mark.parametrize(
    "by", [sw.buckets(LENGTHS, budget=99), sw.buckets(None, batch_size=8, shape=LENGTHS % 3)]
)
def test_repeats_that_stand_elsewhere_are_refused(by) -> None:
    plan = sw.Plan(50, world_size=4, batch_by=by, remainder="pad")
    with pytest.raises(ValueError, match=f"{plan.num_padded} repeats that do not stand"):
        refuse_repeats(plan)
    refuse_repeats(sw.Plan(50, world_size=4, batch_by=by))
    refuse_repeats(sw.Plan(50, batch_size=8, remainder="pad", batch_by=sw.buckets(LENGTHS)))
