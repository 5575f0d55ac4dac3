"""The state beside the shards: `build.json`, with the build and its progress, and failed inputs."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from shardwise.base.errors import DataError, StateError
from shardwise.base.shown import shown
from shardwise.extensions.build.place import STATE_NAME, Place
from shardwise.extensions.build.recipe import Failure, Recipe

_FORMAT = "shardwise-build"
_VERSION = 1
_ERRORS = ("errors.parquet", "errors.jsonl")


BuildReport = TypedDict("BuildReport", {
    "in": int, "out": int, "filtered": int, "failed": dict[str, int], "shards": int, "bytes": int,
    "seconds": float, "manifest": str | None, "errors": str | None,
})  # fmt: skip
BuildReport.__doc__ = "The counts and paths that `shardwise.build` returns."


@dataclass(frozen=True)
class BuildState:
    """The content of `build.json`: what the shards depend on, what there is, and what failed.

    `generation` numbers the retries, whose functions have the digest `functions_of_retry`;
    `failed` has the inputs by the shard that they are missing in, `sizes` those of local files.
    """

    identity: dict[str, Any]
    generation: int = 0
    is_complete: bool = False
    files: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    failed: dict[int, list[int]] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    functions_of_retry: str = ""

    def require(self, identity: dict[str, Any], place: Place, *, retries: bool) -> None:
        """Refuse another build's output. A retry may call other functions."""
        there = dict(self.identity)
        if self.generation and not self.is_complete:
            there["functions"] = self.functions_of_retry
        elif retries:
            there["functions"] = identity["functions"]
        lines = [
            f"    {name}: {there.get(name)!r} there, {identity[name]!r} now"
            for name in identity
            if there.get(name) != identity[name]
        ]
        if lines:
            raise StateError(
                f"{shown(place.root)!r} holds the output of another build:\n"
                + "\n".join(lines)
                + "\ngive another directory, or remove this one"
            )


def identity_of(recipe: Recipe, pattern: str) -> dict[str, Any]:
    """The facts that the shards of a build depend on, as JSON."""
    return {
        "input": recipe.source.fingerprint(),
        "num_inputs": len(recipe.source),
        "functions": recipe.functions(),
        "recipe": recipe.digest(),
        "samples_per_shard": recipe.samples_per_shard,
        "order": recipe.order,
        "seed": recipe.seed,
        "pattern": pattern,
    }


def load_state(place: Place) -> BuildState | None:
    """The state of the build in a directory; None if it has none."""
    data = place.read(STATE_NAME)
    if data is None:
        return None
    try:
        document = json.loads(data)
        written_by = (document.pop("format"), document.pop("version"))
        document["failed"] = {int(each): ids for each, ids in document["failed"].items()}
        state = BuildState(**document)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"the state of the build can't be read ({error}): remove the directory, and build anew",
            url=place.url(STATE_NAME),
        ) from error
    if written_by != (_FORMAT, _VERSION):
        raise DataError(
            f"the state is of {written_by[0]!r:.80}, version {written_by[1]!r:.80}, and this "
            f"release reads {_FORMAT!r}, version {_VERSION}: give another directory",
            url=place.url(STATE_NAME),
        )
    return state


def save_state(place: Place, state: BuildState) -> None:
    """Write `build.json`, whole or not at all."""
    document = {"format": _FORMAT, "version": _VERSION, **asdict(state)}
    place.write(STATE_NAME, json.dumps(document, indent=1).encode())


def write_errors(place: Place, failures: Sequence[Failure], *, as_table: bool) -> str | None:
    """Write `errors.parquet`, or `errors.jsonl` where pyarrow is not installed.

    Args:
        place: the output directory.
        failures: the inputs that failed.
        as_table: False for JSON in any case: beside Parquet shards, a table would be read as one.
    """
    if not failures:
        for name in _ERRORS:
            if place.has(name):
                place.remove(name)
        return None
    rows = [asdict(failure) for failure in failures]
    if as_table and (data := _table(rows)) is not None:
        place.write(_ERRORS[0], data)
        return _ERRORS[0]
    lines = [json.dumps(row) for row in rows]
    place.write(_ERRORS[1], ("\n".join(lines) + "\n").encode())
    return _ERRORS[1]


def _table(rows: list[dict[str, Any]]) -> bytes | None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return None
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()
