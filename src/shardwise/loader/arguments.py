"""Arguments of a loader: its data, whatever it came as, and checks of the options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from shardwise.base.collate import named
from shardwise.base.columns import mask_of
from shardwise.base.hints import call_for
from shardwise.dataset import Dataset
from shardwise.engine.batch.padding import Padding
from shardwise.engine.batch.ragged import Ragged
from shardwise.loader.frameworks import FrameworkAttributes
from shardwise.plan import Remainder
from shardwise.sources.samples import Samples


def as_dataset(data: Any) -> Samples:
    """A dataset as it is; anything else with a length and items by `sw.wrap`.

    Raises:
        TypeError: it is a path, a stream, or has no length and items; the message has the remedy.
    """
    kind = type(data)
    if isinstance(data, Dataset) or (hasattr(kind, "load") and hasattr(kind, "layout")):
        return cast("Samples", data)
    call = call_for(data)
    if call is not None:
        raise TypeError(f"a path is no dataset yet: use sw.DataLoader({call})")
    if isinstance(data, Mapping):
        names = ", ".join(repr(name) for name in list(data)[:5])
        raise TypeError(
            f"{kind.__name__} with {names} is no dataset but names things: choose one of its "
            "entries; for columns of equal length, such as x and y, use "
            "sw.DataLoader(list(zip(x, y)))"
        )
    if isinstance(data, list | tuple) and data and all(isinstance(d, Dataset) for d in data):
        raise TypeError("a list of datasets is no dataset: use sw.DataLoader(sw.concat([...]))")
    if isinstance(data, FrameworkAttributes) or any(
        f"{base.__module__}.{base.__name__}" == "torch.utils.data.dataloader.DataLoader"
        for base in kind.__mro__
    ):
        raise TypeError(
            f"sw.DataLoader({kind.__name__}): that is a loader already: iterate it as it is, or "
            "give its samples, sw.DataLoader(loader.dataset, batch_size=64)"
        )
    if not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise TypeError(
            f"sw.DataLoader({kind.__name__}): no dataset: give one of sw.tar(...) and the like, or "
            "an object with __len__ and __getitem__, such as a list"
        )
    is_stream = any(base.__name__ in ("IterableDataset", "IterDataPipe") for base in kind.__mro__)
    if is_stream or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"sw.DataLoader({kind.__name__}): its samples come in an order of its own, so no rank "
            "can tell which are its, and none can resume. Give a dataset with __len__ and "
            "__getitem__, or write the samples to shards with sw.TarWriter and open these with "
            "sw.tar(...); for a WebDataset pipeline there is sw.from_webdataset(pipeline)"
        )
    from shardwise.dataset.formats import wrap

    return wrap(data)


def checked_names(
    as_tuple: Sequence[str] | None,
    dataset: Samples,
    *,
    remainder: Remainder,
    ragged: Ragged,
    collate: Callable[[list[Any]], Any] | None,
) -> tuple[str, ...] | None:
    """The names of `as_tuple`, compared with what a batch will have where that is known.

    Raises:
        TypeError: no sequence of names: one str, or a set, whose order differs among ranks.
        ValueError: a batch will lack such an entry; or `ragged` with a collate of the user's.
    """
    if collate is not None and ragged != "list":
        raise ValueError(
            f"ragged={ragged!r} is for batches that the loader makes, and collate= makes its own: "
            "leave one of them out"
        )
    if as_tuple is None:
        return None
    if isinstance(as_tuple, str | bytes | set | frozenset) or not isinstance(as_tuple, Iterable):
        one = as_tuple if isinstance(as_tuple, str) else "cls"
        raise TypeError(f"as_tuple={as_tuple!r:.80}: give a sequence of names, such as ({one!r},)")
    names = tuple(as_tuple)
    if not names:
        raise ValueError("as_tuple=() would be batches of nothing: name a field or more")
    # Without samples, the fields are unknown; the plan refuses such data.
    if not dataset.is_mapped and len(dataset):
        known = ["__key__", "__index__", *dataset.fields, *dataset.mask_fields]
        known += ["__valid__"] if remainder == "pad" else []
        is_padded = ragged == "pad" or (isinstance(collate, Padding) and collate.mask)
        known += map(mask_of, dataset.fields) if is_padded else []
        named(dict.fromkeys(known), names)
    return names


def not_nested(dataset: Samples) -> Collection[str]:
    """The fields that are arrays also where others of arrays are nested tensors."""
    return {*dataset.layout(), *getattr(dataset, "padding", ())}
