"""Arguments of a loader: its data, whatever it came as, checks of the options, and torch's names.

An argument of torch's DataLoader that means the same is taken under torch's name. Of the others
only the values that change nothing are taken, so that a program that passes torch's defaults runs;
any other value is an error that names the replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, Literal, NamedTuple, TypedDict, cast

from shardwise.base.abilities import having
from shardwise.base.arguments import check_flag, check_function
from shardwise.base.collate import named
from shardwise.base.columns import mask_of
from shardwise.base.hints import CLASSES, call_for, hint_for_argument
from shardwise.codecs.image_decoder import Image
from shardwise.dataset import Dataset
from shardwise.engine.batch.padding import Padding
from shardwise.engine.batch.ragged import Ragged
from shardwise.loader.frameworks import FrameworkAttributes
from shardwise.loader.returned_types import B
from shardwise.plan import Remainder
from shardwise.sources.samples import MixedSamples, Samples, TransformedSamples

_PIPELINE = "for a WebDataset pipeline there is sw.from_webdataset(pipeline)"


class TorchArguments(TypedDict, Generic[B], total=False):
    """torch's names that `sw.DataLoader` takes beside its own, with the values that it takes."""

    drop_last: bool
    collate_fn: Callable[[list[Any]], B] | None
    persistent_workers: bool
    in_order: Literal[True]
    multiprocessing_context: Literal["spawn"] | None
    batch_sampler: None
    worker_init_fn: None
    generator: None
    pin_memory_device: Literal[""]


class TorchArgument(NamedTuple):
    """One of torch's arguments.

    Attributes:
        ours: what to write here.
        why: what differs, in one sentence.
        accepted: the values that are accepted; None for all.
    """

    ours: str
    why: str
    accepted: tuple[Any, ...] | None = None


TORCH_ARGUMENTS: Mapping[str, TorchArgument] = {
    "drop_last": TorchArgument(
        "remainder=", "True is 'drop' and False 'uneven', in equal steps on all ranks; or 'pad'."
    ),
    "collate_fn": TorchArgument(
        "collate=", "Samples are dicts; with as_tuple=(...) they are tuples of these fields."
    ),
    "persistent_workers": TorchArgument(
        "nothing", "Workers live until close(), and the batches are the same."
    ),
    "in_order": TorchArgument("nothing", "There is one order, whichever worker is first.", (True,)),
    "multiprocessing_context": TorchArgument(
        "nothing", "Workers are fresh interpreters, as with 'spawn'.", (None, "spawn")
    ),
    "batch_sampler": TorchArgument(
        "batch_size= with sampler= or shuffle=",
        "The plan cuts the order into equal steps for all ranks. sw.torch.BatchSampler is for "
        "torch's own DataLoader.",
        (None,),
    ),
    "worker_init_fn": TorchArgument(
        "ds.map(fn) with fn(sample, rng)",
        "Randomness is keyed by seed, epoch and sample, not by worker. Open files when fn is "
        "first called.",
        (None,),
    ),
    "generator": TorchArgument(
        "seed=",
        "The order is a function of seed and epoch, the same on all ranks.",
        (None,),
    ),
    "pin_memory_device": TorchArgument("device=", "Batches come on that device.", ("",)),
}


def translate(
    arguments: Mapping[str, Any],
    *,
    remainder: Remainder | None,
    collate: Callable[[list[Any]], Any] | None,
    options: Collection[str],
) -> tuple[Remainder | None, Callable[[list[Any]], Any] | None]:
    """Translate torch's arguments into the loader's own `remainder` and `collate`.

    `remainder` and `collate` are the loader's arguments, or None; `options` names all of them.

    Raises:
        TypeError: the argument does not exist; the message has similar names. Or a value is of
            another type than torch's.
        ValueError: a value that has no meaning here, or that contradicts the loader's own argument.
    """
    for name, value in arguments.items():
        argument = TORCH_ARGUMENTS.get(name)
        if argument is None:
            hint = hint_for_argument(name, [*options, *TORCH_ARGUMENTS])
            raise TypeError(f"DataLoader() has no argument {name}={value!r:.80}{hint}")
        if argument.accepted is not None and _plain(value) not in argument.accepted:
            remedy = (
                f"use {argument.ours} instead" if argument.ours != "nothing" else "leave it out"
            )
            raise ValueError(f"DataLoader({name}={value!r:.80}): {remedy}. {argument.why}")
        if name in ("drop_last", "persistent_workers") and value is not None:
            check_flag(name, value)
    if (drop_last := arguments.get("drop_last")) is not None:
        if remainder is not None and bool(drop_last) != (remainder == "drop"):
            raise ValueError(
                f"drop_last={drop_last} and remainder={remainder!r} contradict each other: leave "
                "drop_last= out"
            )
        remainder = remainder or ("drop" if drop_last else "uneven")
    if (collate_fn := arguments.get("collate_fn")) is not None:
        if collate is not None:
            raise ValueError("collate= and collate_fn= are the same argument: leave one out")
        check_function("collate_fn", collate_fn)
        collate = collate_fn
    return remainder, collate


def _plain(value: Any) -> Any:
    """The name of a multiprocessing context, which is as good as the context itself."""
    method = getattr(value, "get_start_method", None)
    return method() if callable(method) else value


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
            f"sw.tar(...); {CLASSES.get(kind.__name__, _PIPELINE)}"
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
    return {*dataset.layout(), *dataset.padding}


def list_decoders(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the decoder of each decoded field; of a mixture those of all datasets."""
    mixed = having(dataset, MixedSamples)
    if mixed is not None:
        yield from chain.from_iterable(map(list_decoders, mixed.parts.values()))
    elif (made := having(dataset, TransformedSamples)) is not None:
        yield from made.transforms.decoders.items()


def has_images_for_device(dataset: Any) -> bool:
    """Whether an image decoder of a dataset has `decode_on=`."""
    return any(isinstance(d, Image) and d.decode_on != "cpu" for _, d in list_decoders(dataset))
