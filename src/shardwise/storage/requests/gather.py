"""Coroutines run at once, none of which outlives the first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["gather_or_cancel"]

T = TypeVar("T")


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; the first failure cancels the others, then is raised by itself.

    asyncio.TaskGroup would raise an exception group, which readers of single files don't expect.
    """
    all_of_them = list(coroutines)
    if len(all_of_them) < 2:
        return [await each for each in all_of_them]
    tasks = [asyncio.ensure_future(each) for each in all_of_them]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
