"""WebDataset's rule for names: which part is the key, and which the field.

The key is the directory and the base name up to its first dot, the field what follows that dot,
in lower case: `train/0001.seg.PNG` is the field `seg.png` of the sample `train/0001`. Members whose
name gives no key and field are left out and counted, by why:

- "no extension": no dot in the base name, or nothing after it;
- "hidden": the base name starts with a dot, such as the `._*` files of macOS;
- "metadata": the base name or a directory is of the form `__x__`, and so is kept for programs.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import numpy as np
from numpy.typing import NDArray

_METADATA = re.compile(rb"(^|/)__[^/]*__($|/)")
# More distinct fields than this in one shard mean that keys hold dots.
MAX_FIELDS = 1024
# Linux's longest path, in bytes. A longer name would widen the array of all names.
MAX_NAME = 4096
# Up to 16 fields, one comparison of arrays each is faster than a dict look-up per row.
_USUAL_FIELDS = 16


def split_names(
    names: NDArray[np.uint8], lengths: NDArray[np.int64], ignored: Counter[str]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Find the dots that end keys, in the rows that are fields; counts the others by why."""
    width = names.shape[1]
    every = np.arange(len(names))
    is_dot = names == ord(".")
    is_slash = names == ord("/")
    base = np.zeros(len(names), np.int64)
    if is_slash.any():
        base = np.where(is_slash.any(axis=1), width - is_slash[:, ::-1].argmax(axis=1), 0)
        is_dot &= np.arange(width) >= base[:, None]
    dots = is_dot.argmax(axis=1)
    has_none = ~is_dot[every, dots] | (dots == lengths - 1)
    is_hidden = is_dot[every, np.minimum(base, width - 1)]
    is_metadata = np.zeros(len(names), np.bool_)
    is_underscore = names == ord("_")
    in_doubt = is_underscore.any() and (is_underscore[:, 1:] & is_underscore[:, :-1]).any(axis=1)
    for row in np.flatnonzero(in_doubt):
        name = names[row, : lengths[row]].tobytes()
        field = name[dots[row] + 1 :]
        # `a.__key__` would be mistaken for the key itself.
        reserved = field.startswith(b"__") and field.endswith(b"__")
        is_metadata[row] = reserved or _METADATA.search(name) is not None
    left_out = is_metadata | is_hidden | has_none
    if not left_out.any():
        return every, dots
    ignored["metadata"] += int(is_metadata.sum())
    ignored["hidden"] += int((is_hidden & ~is_metadata).sum())
    ignored["no extension"] += int((has_none & ~is_hidden & ~is_metadata).sum())
    rows = np.flatnonzero(~left_out)
    return rows, dots[rows]


class Fields:
    """The fields so far, numbered by first appearance."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def number(
        self, names: NDArray[np.uint8], lengths: NDArray[np.int64], dots: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The field's number for each name, int64 `[n]`; ValueError where they are too many."""
        width = int((lengths - dots).max()) - 1
        first = int(dots[0]) + 1
        if (dots == dots[0]).all():
            texts = names[:, first : first + width].copy()
        else:
            columns = dots[:, None] + np.arange(1, width + 1)
            texts = np.take_along_axis(names, np.minimum(columns, names.shape[1] - 1), axis=1)
            texts[columns >= lengths[:, None]] = 0
        is_upper = texts - np.uint8(ord("A")) < 26
        if is_upper.any():
            texts[is_upper] += 32
        packed = texts.view(f"S{width}")[:, 0]
        numbers = np.full(len(packed), -1, np.int64)
        for text, number in islice(self._numbers.items(), _USUAL_FIELDS):
            numbers[packed == text] = number
        # All fields are new in the first members of a shard; they are few.
        for row in np.flatnonzero(numbers < 0).tolist():
            numbers[row] = self._find(packed[row])
        return numbers

    def _find(self, text: bytes) -> int:
        number = self._numbers.get(text)
        if number is None:
            # Beyond ASCII, letters are put in lower case one by one.
            name = text.decode("utf-8", "surrogateescape").lower()
            if name not in self.names:
                if len(self.names) == MAX_FIELDS:
                    raise ValueError(
                        f"more than {MAX_FIELDS} fields, such as {self.names[-1]!r}: a key ends "
                        "at the first dot of the base name, so keys can't hold dots; rename the "
                        "members when packing"
                    )
                self.names.append(name)
            number = self._numbers[text] = self.names.index(name)
        return number
