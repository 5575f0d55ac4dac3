"""Guesses of which files are read next, and how good they were. Used in the event loop's thread."""

from __future__ import annotations

__all__ = ["GuessedFiles"]

# After two wrong guesses in a row, stop prefetching guessed files until a guess is right.
_MAX_WRONG = 2


class GuessedFiles:
    """The files of a process that are guessed to be read next.

    Attributes:
        names: of the files, in the order in which they are expected.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._num_wrong = 0
        # Guessed files that a reader left out. Another thread may yet read them: their blocks stay
        # until the memory is needed or guessing is given up.
        self._skipped: list[str] = []

    @property
    def are_wrong(self) -> bool:
        """Whether two guesses in a row were wrong."""
        return self._num_wrong >= _MAX_WRONG

    def add(self, name: str) -> None:
        """Guess that a file is read after those that were guessed before."""
        if name not in self.names:
            self.names.append(name)

    def is_skipped(self, name: str) -> bool:
        """Whether a reader left a guessed file out."""
        return name in self._skipped

    def remove(self, name: str) -> None:
        """Forget a file."""
        for names in (self.names, self._skipped):
            if name in names:
                names.remove(name)

    def note_begun(self, name: str) -> list[str]:
        """Note that a file begins to be read in sequence; the files that are not read, it seems."""
        unread: list[str] = []
        if name in self._skipped:
            self._skipped.remove(name)
        elif name in self.names:
            at = self.names.index(name)
            self._skipped += self.names[:at]
            del self.names[: at + 1]
            self._num_wrong = self._num_wrong + 1 if at else 0
        elif self.names:
            self._num_wrong += 1
            unread += self.names
        if self.are_wrong:
            unread += self._skipped
        return unread
