"""How many examples of a property are tried: all by `./test --all`, a fifth by `./test`."""

from __future__ import annotations

from hypothesis import settings

# What a property without a number of its own tries by `./test`, in place of 100.
QUICK = 20


def examples(number: int) -> int:
    """So many examples, or a fifth of them where the profile is the quick one."""
    return max(1, number * settings.default.max_examples // 100)
