"""A line of a coverage file: what one rank returned between two positions of an epoch.

Ranks append such lines while they train, `shardwise certify` adds them up. A line is foreign data
until `from_text` has checked it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from shardwise.plan.id_word import Counted, Tallied

_VERSION = 1
# More than any cluster has: a damaged number would have all of them looked for.
_MAX_RANKS = 1 << 20
_NONE = Tallied()


@dataclass(frozen=True, kw_only=True)
class CoverageLine:
    """One rank's returned samples between two positions of an epoch.

    Attributes:
        run: the id of the run: of all ranks where a process group or a launcher gives one, else of
            this rank alone, and not `is_shared`.
        resumed: the id of the run whose state was loaded; "" where none was, or it has no id.
        began, written: seconds since 1970, of the pass and of the line.
        number: which pass of the loader it was.
        begin: the position that the pass started at.
        first, last: the positions that this line covers, which the ranks' lines share.
        is_given: whether this counts indices that a sampler gave to torch's DataLoader, which takes
            them ahead of the program; False where the program's own batches are counted.
        begin_past, last_past: a digest of the order before the pass and up to `last`, for one that
            may change later; "" for others.
        handed_out, skipped, replaced: planned samples: got, left out or replaced as damaged.
        left_out: planned samples of steps that were skipped on purpose: `steps_skipped`, in words.
        excluded: samples left out between these positions, over all ranks, by `exclude`, or because
            they were `removed`, which is how many.
        planned: the samples that the plan gives this rank between these positions.
        dropped: at the epoch's end, the samples that the plan leaves out, over all ranks.
        expected: all samples of the epoch, dropped ones among them; None where the sampler has no
            closed form of them.
        is_whole: whether the epoch's samples are the data's, each once.
        recipe: a digest of decoders and functions of `map()`; "" in lines of earlier releases.
        global_batch_size: samples a step; in lines of earlier releases 0, for the product of batch
            and world size.
    """

    run: str
    is_shared: bool
    rank: int
    world_size: int
    batch_size: int
    remainder: str
    began: float
    number: int
    epoch: int
    begin: int
    first: int
    last: int
    num_samples: int
    is_end: bool
    is_given: bool
    fingerprint: str
    order: dict[str, Any]
    begin_past: str
    last_past: str
    handed_out: Tallied
    skipped: Tallied
    replaced: Tallied
    num_padded: int
    planned: Tallied
    dropped: Tallied
    expected: Tallied | None
    is_whole: bool
    left_out: Tallied = _NONE
    steps_skipped: str = ""
    excluded: Tallied = _NONE
    removed: int = 0
    resumed: str = ""
    recipe: str = ""
    written: float = 0.0
    global_batch_size: int = 0

    @property
    def counted(self) -> Counted:
        """The number of samples by outcome."""
        parts = self.handed_out, self.skipped, self.replaced
        return Counted(*parts, self.num_padded, self.left_out)

    def to_text(self) -> str:
        """The line as JSON, with its end: what is written at once."""
        entries = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values = {
            name: [value.count, value.word] if isinstance(value, Tallied) else value
            for name, value in entries.items()
        }
        return json.dumps({"version": _VERSION, **values}) + "\n"

    @classmethod
    def from_text(cls, text: str) -> CoverageLine:
        """Read a line."""
        try:
            entries = json.loads(text, parse_constant=_finite, parse_float=_finite)
        except (ValueError, RecursionError):
            raise ValueError("it is not JSON, or has a number that is not finite") from None
        if not isinstance(entries, dict) or "version" not in entries:
            raise ValueError("it is no line of coverage")
        if entries["version"] != _VERSION:
            raise ValueError(
                f"its version is {entries['version']!r}, this release reads {_VERSION}"
            )
        # Lines of earlier releases lack the entries of `_LATER`.
        entries = {**_LATER, "written": entries.get("began"), **entries}
        line = object.__new__(cls)  # a frozen dataclass takes 4 us for its fields
        line.__dict__.update(_check_fields(entries))
        if not (line.begin <= line.first < line.last <= line.num_samples):
            raise ValueError(
                f"its positions begin={line.begin}, first={line.first}, last={line.last} do not "
                f"ascend within num_samples={line.num_samples}"
            )
        if not line.rank < line.world_size <= _MAX_RANKS:
            raise ValueError(f"it is of rank {line.rank} of {line.world_size}")
        if not line.batch_size:
            raise ValueError("its batch_size is 0")
        if line.begin_past and not line.begin_past.split(" ")[0].isdecimal():
            raise ValueError(f"its begin_past is {line.begin_past!r:.60}")
        return line


_TYPES = {"str": str, "int": int, "bool": bool, "float": float, "Tallied": list}
_FIELDS = {
    field.name: _TYPES.get(str(field.type).removesuffix(" | None"), dict)
    for field in dataclasses.fields(CoverageLine)
}
_COUNTS = itemgetter(*(name for name, kind in _FIELDS.items() if kind is int))
_SUMS = [name for name, kind in _FIELDS.items() if kind is list]
_TYPES_READ = [Tallied if kind is list else kind for kind in _FIELDS.values()]
_LATER = {
    "resumed": "", "recipe": "", "left_out": [0, 0], "steps_skipped": "", "excluded": [0, 0],
    "global_batch_size": 0, "removed": 0,
}  # fmt: skip


def _finite(text: str) -> float:
    """A number; ValueError for one that no JSON can hold, at whatever depth it stands."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _check_fields(entries: dict[str, Any]) -> dict[str, Any]:
    """The fields of a line, if they have their types: about 5 us."""
    try:
        values = {name: entries[name] for name in _FIELDS}
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    for name in _SUMS:
        value = values[name]
        if type(value) is list and len(value) == 2:
            count, word = value
            if type(count) is type(word) is int and count >= 0 <= word:
                values[name] = Tallied(count, word) if count or word else _NONE
    # Exactly the types: in Python a bool is an int, too.
    if list(map(type, values.values())) != _TYPES_READ:
        for (name, value), kind in zip(values.items(), _TYPES_READ, strict=True):
            if type(value) is not kind and not (name == "expected" and value is None):
                raise ValueError(f"its {name} is {value!r:.60}")
    if min(_COUNTS(values)) < 0:
        name = next(n for n, kind in _FIELDS.items() if kind is int and values[n] < 0)
        raise ValueError(f"its {name} is {values[name]!r:.60}")
    return values
