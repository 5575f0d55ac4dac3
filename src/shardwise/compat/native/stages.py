"""What each stage of a WebDataset pipeline says to a dataset and its loader, or why it can't."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

from shardwise.compat.webdataset import autodecode, filters, handlers, mapping
from shardwise.compat.webdataset.autodecode import Decoder
from shardwise.compat.webdataset.utils import FilterFunction
from shardwise.errors import DataError

# Stages by what they are here. "sample": one sample for each, run as they are. Of what is cached
# nothing is kept: a dataset reads it again.
_KINDS: dict[Any, str] = {
    mapping._map: "sample",
    mapping._map_dict: "sample",
    mapping._map_tuple: "map_tuple",
    mapping._to_tuple: "to_tuple",
    mapping._decode: "decode",
    mapping._associate: "sample",
    mapping._extract_keys: "sample",
    mapping._rename: "sample",
    mapping._rename_keys: "sample",
    mapping._xdecode: "sample",
    mapping._select: "select",
    mapping._info: "nothing",
    filters._shuffle: "shuffle",
    filters._batched: "batched",
    filters._unbatched: "unbatched",
    filters._unlisted: "unbatched",
    filters.detshuffle: "shuffle",
    filters._shuffle_shards: "shuffle",
    filters.Cached: "nothing",
    filters.LMDBCached: "nothing",
}
_ADVICE: dict[Any, tuple[str, str]] = {
    filters._rsample: (
        "it leaves samples out at random while they are read",
        "DataLoader(dataset, epoch_size=n) for shorter epochs",
    ),
    itertools.islice: (
        "it counts what one worker reads, not what the dataset holds",
        "dataset.subset(range(n))",
    ),
    mapping._log_keys: (
        "it counts what one worker reads",
        'the batch\'s "__key__" and "__index__", which say what was read',
    ),
}
_OWN = (
    "it is a function of the whole stream, and a dataset has single samples",
    "a function of one sample, in .map(fn)",
)


def known_as(stage: Any) -> Any:
    """The function or class of WebDataset's that a stage is of; None for the program's own."""
    kinds = (stage.f,) if isinstance(stage, FilterFunction) else type(stage).__mro__
    return next((kind for kind in kinds if kind in _KINDS or kind in _ADVICE), None)


def kind_of(stage: Any) -> str:
    """What to do with a stage: "sample", "decode", "shuffle", ..."""
    known = known_as(stage)
    if known not in _KINDS:
        raise refusal(stage, *_ADVICE.get(known, _OWN))
    return _KINDS[known]


def refusal(stage: Any, why: str, instead: str) -> ValueError:
    """The error that says which stage can't be taken, why, and what to write instead."""
    return ValueError(f"from_webdataset: the stage {name_of(stage)}: {why}; instead: {instead}")


def name_of(stage: Any) -> str:
    """A stage as the user wrote it, about."""
    if not isinstance(stage, FilterFunction):
        return getattr(stage, "__name__", None) or type(stage).__name__
    name = "slice" if stage.f is itertools.islice else _name(stage.f).removeprefix("_")
    shown = [_name(value) for value in stage.args]
    for key, value in stage.kw.items():
        if value is not handlers.reraise_exception:
            shown.append(f"{key}={_name(value)}")
    return f"{name}({', '.join(shown)})"


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def argument(stage: FilterFunction, place: int, name: str, default: Any) -> Any:
    """One of a stage's arguments, by its place behind the source or by name."""
    return stage.args[place] if len(stage.args) > place else stage.kw.get(name, default)


def skips_errors(stage: Any) -> bool:
    """Whether a stage's error handler goes on with the next sample."""
    given: Callable[..., Any] | None = getattr(stage, "handler", None)
    if isinstance(stage, FilterFunction) and stage.f is not itertools.islice:
        bound = inspect.signature(stage.f).bind_partial(None, *stage.args, **stage.kw)
        given = bound.arguments.get("handler")
    if given in (None, handlers.reraise_exception):
        return False
    if given in (handlers.ignore_and_continue, handlers.warn_and_continue):
        return True
    goes_on = given not in (handlers.ignore_and_stop, handlers.warn_and_stop)
    try:
        # Strict: a handler that goes on after some errors only has all others raised.
        goes_on = goes_on and given(DataError("from_webdataset asks if this handler goes on"))
    except Exception:  # noqa: BLE001 - the border to the user's handler
        return False
    if not goes_on:
        raise refusal(
            stage,
            f"handler={getattr(given, '__name__', given)} may end the epoch",
            "on_error='raise', 'skip' or 'replace' of the DataLoader",
        )
    return True


def decoder_of(kind: str, stage: FilterFunction) -> Decoder | None:
    """The decoder of a `.decode(...)`, which is a `map` of it, or of a stage `decode(...)`."""
    if kind == "decode":
        options = {name: value for name, value in stage.kw.items() if name != "handler"}
        return autodecode.make_decoder(*stage.args, **options)
    found = argument(stage, 0, "f", None) if stage.f is mapping._map else None
    return found if isinstance(found, Decoder) else None


def is_function(stage: Any) -> bool:
    """Whether a function of the user sees the values of the stages before."""
    if not isinstance(stage, FilterFunction):
        return False
    kind = kind_of(stage)
    collate = argument(stage, 1, "collation_fn", filters.default_collation_fn)
    if kind == "batched":
        return collate is not filters.default_collation_fn
    return kind not in ("shuffle", "nothing", "to_tuple", "unbatched")


def fields_of(stage: FilterFunction) -> list[list[str]]:
    """The fields that a `to_tuple` names, each with its alternatives."""
    given = stage.args
    fields = given[0].split() if len(given) == 1 and isinstance(given[0], str) else given
    return [name.split(";") if isinstance(name, str) else list(name) for name in fields]


def tuple_names(fields: list[list[str]]) -> tuple[str, ...] | None:
    """What the items of a tuple are called; None where two would have one name."""
    names = tuple(alternatives[0] for alternatives in fields)
    return names if len(set(names)) == len(names) else None
