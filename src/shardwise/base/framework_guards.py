"""The hook for training frameworks: guards that know how a framework uses a loader.

Some frameworks rebuild, skip or iterate a loader in ways that would lose its order, and no call to
the loader shows it. A `Guard` in `shardwise.integrations` knows their names, one per
framework; the core calls the guards of the frameworks that the program has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

from shardwise.base.errors import MissingExtraError
from shardwise.base.plugins import find, own_names


class Guard:
    """Guards a loader against a framework; this base allows everything.

    A method raises `FrameworkError` where the framework would lose samples or their order.
    """

    def check_shuffle(self) -> None:
        """Called when the sampler of a loader that shuffles is requested."""

    def check_pass(self) -> None:
        """Called when a loader is iterated."""

    def wrap_batches(
        self,
        batches: Generator[Any, None, None],
        rest: Callable[[], Any],
        *,
        is_known: bool,  # noqa: ARG002 - for those that save the position
    ) -> Iterator[Any]:
        """Return the batches of a pass as the framework should see them.

        Args:
            batches: the pass, not yet started.
            rest: returns the `Plan` of the pass; called after its first batch was built.
            is_known: whether a framework saves the loader's position.
        """
        del rest
        return batches

    def check_generator(self, *, refuses_skips: bool) -> None:
        """Called when the generator of a loader of torch's class is requested.

        Args:
            refuses_skips: whether a loader made of its parts would have other batches.
        """

    def builds_model(self) -> bool:
        """Whether the loader is iterated for the shapes of its first batch only."""
        return False

    def saves_leaves(self) -> bool:
        """Whether the framework asks for a state to save its leaves one by one."""
        return False

    def find_divider(self) -> str | None:
        """Return the name of what iterates a sampler to divide its indices again, if anything."""
        return None


def active_guards() -> list[Guard]:
    """Return the installed guards of the frameworks that are imported."""
    guards = list[Guard]()
    for module in filter(sys.modules.__contains__, own_names("frameworks")):
        # A program with a framework may do without the integrations: nothing is guarded then.
        with suppress(MissingExtraError):
            guards.append(find("frameworks", module))
    return guards
