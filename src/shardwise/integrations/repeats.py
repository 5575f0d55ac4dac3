"""The repeats of a padded epoch, which frameworks cut off the end of its last global batch."""

from __future__ import annotations

from shardwise.plan import Plan


def refuse_repeats(plan: Plan) -> None:
    """Refuse repeats that stand elsewhere: `sw.buckets` with a budget or groups has such."""
    if plan.num_padded and not plan.has_even_steps:
        raise ValueError(
            f"remainder='pad' of sw.buckets with a budget or groups has {plan.num_padded} repeats "
            "that do not stand at the end of the last global batch, where trainers cut them off: "
            "use remainder='drop', or leave them out by '__valid__' in a loop of your own"
        )
