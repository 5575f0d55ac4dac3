"""Which servers there are, where that changes while a loader runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Directory", "ServerList"]


@dataclass(frozen=True, slots=True)
class ServerList:
    """The servers of one moment.

    Attributes:
        addresses: of those that can be asked.
        token: the secret that they ask for, or None.
        num_wanted: how many there should be.
        trouble: why there are fewer; empty where nothing is known.
    """

    addresses: tuple[str, ...]
    token: bytes | None
    num_wanted: int
    trouble: str = ""


class Directory(Protocol):
    """Knows the servers, and tells of changes."""

    @property
    def num_wanted(self) -> int:
        """How many servers there should be, as far as this process knows."""
        ...

    def open(self) -> None:
        """Reach what knows the servers; called in the thread that asks for batches.

        Raises:
            ServiceError: it can't be reached.
        """
        ...

    def follow(
        self, changed: Callable[[ServerList], None], failed: Callable[[str], None]
    ) -> Callable[[], None]:
        """Tell of the servers, and of each change, in a thread of its own.

        Args:
            changed: gets the servers.
            failed: gets the reason where it could not be asked; it is asked again.

        Returns:
            What ends this, and does not wait.
        """
        ...
