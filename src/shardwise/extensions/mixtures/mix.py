"""Several datasets as one, mixed by weights: `sw.mix`.

The samples of all datasets are concatenated, and the mixture brings the order in which a
loader takes them. Each dataset keeps its own fields, decoders and transforms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from shardwise.base.abilities import having
from shardwise.base.arguments import check_choice, suggest_names
from shardwise.dataset.dataset import Dataset
from shardwise.extensions.mixtures.dataset import MixedDataset
from shardwise.extensions.mixtures.options import (
    MixtureOptions,
    MixturePart,
    check_until,
    key_of,
    parse_schedule,
)
from shardwise.extensions.mixtures.sampler import BatchMixtureSampler, MixtureSampler
from shardwise.plan import WindowSampler, make_sampler
from shardwise.plan.arguments import whole
from shardwise.plan.permute import mix as mix_keys
from shardwise.plan.protocol import ForGlobalBatch

_Weights = Mapping[str, float]
# A block is looked through where a count falls into it: 65,536 draws cost 19 ms.
_MAX_BLOCK = 65_536


@suggest_names
def mix(
    datasets: Mapping[str, tuple[Dataset, float] | Dataset],
    *,
    until: Literal["first", "all"] | int | Mapping[str, int] = "first",
    schedule: Sequence[tuple[int | tuple[int, int], _Weights]] | None = None,
    per: Literal["sample", "batch"] = "sample",
    block: int = 256,
    seed: int = 0,
) -> Dataset:
    """Several datasets as one, whose samples come in the ratio of their weights.

    The mixture brings its own order: `sw.DataLoader(mixed)` needs no sampler and no shuffle. Over
    any whole blocks each dataset has its weight's share, up to 2.4 samples, on any number of ranks.
    Each dataset is shuffled in the way that suits it, in separate epochs: all of its samples come
    once before one comes again. Epochs of the mixture are lengths: each continues where the one
    before ended.

    A sample has "__source__", the name of its dataset; of a mixture in a mixture, "outer/inner". A
    field that a dataset lacks is not in its samples, and None in a batch.

    Args:
        datasets: `name: (dataset, weight)`. Weights are relative, so that they need not sum up to
            1; one of 0 is never drawn. With a `schedule` from position 0 on, the datasets alone
            will do, and weights here mean nothing.
        until: where an epoch ends: "first", once all samples of one dataset have come; "all",
            once those of all datasets have; a number of samples, over all ranks; or
            `{name: epochs}` of one dataset.
        schedule: `(position, weights)` from a position on, in samples over all ranks since the
            first epoch started; `((start, stop), weights)` for a linear ramp from the weights
            before. It is rounded up to whole blocks (batches, for `per="batch"`). A later entry
            changes nothing before it, and may name datasets that are new.
        per: "sample"; or "batch" for global batches of one dataset each.
        block: samples that are permuted among each other, so that no rank has a biased share.
        seed: makes another order.

    Raises:
        ValueError: no dataset, an empty one, weights that are negative or all 0, or an option
            that is not usable.
        TypeError: something is not a dataset, or not a number.

    Examples:
        >>> import shardwise as sw
        >>> web, code = sw.wrap(range(70)), sw.wrap(range(100, 120))
        >>> mixed = sw.mix({"web": (web, 0.75), "code": (code, 0.25)}, until="all", seed=3)
        >>> loader = sw.DataLoader(mixed, batch_size=8)
        >>> batch = next(iter(loader))
        >>> sorted(set(batch["__source__"]))
        ['code', 'web']
    """
    parts, weights = _checked_parts(datasets)
    names = tuple(parts)
    bare = [name for name in names if name not in weights]
    if schedule is None and bare:
        raise ValueError(
            f"mix(): {', '.join(map(repr, bare))} without a weight: give (dataset, weight), or the "
            "weights of all datasets in schedule="
        )
    check_choice("per", per, ("sample", "batch"))
    block = whole("block", block, least=1)
    if block > _MAX_BLOCK:
        raise ValueError(f"block={block}: use {_MAX_BLOCK} samples or fewer")
    options = MixtureOptions(
        changes=parse_schedule(_whole_schedule(schedule, weights), names),
        until=check_until(until, names),
        block=block,
        seed=whole("seed", seed),
    )
    if per == "sample":
        _refuse_batches_within(parts)
    kind = MixtureSampler if per == "sample" else BatchMixtureSampler
    sampler = kind({name: _part(name, part, seed) for name, part in parts.items()}, options)
    return MixedDataset(parts, sampler)


def _checked_parts(
    datasets: Mapping[str, tuple[Dataset, float] | Dataset],
) -> tuple[dict[str, Dataset], dict[str, float]]:
    """Split the argument into the datasets and the weights that it gives."""
    if not isinstance(datasets, Mapping):
        raise TypeError(
            f"mix({datasets!r:.80}): give a dict from names to datasets and weights, such as "
            "{'web': (a, 0.7), 'code': (b, 0.3)}"
        )
    if not datasets:
        raise ValueError("mix({}): give one dataset or more")
    parts: dict[str, Dataset] = {}
    weights: dict[str, float] = {}
    for name, entry in datasets.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"mix(): a dataset's name is a str that is not empty, not {name!r:.80}")
        if isinstance(entry, tuple | list):
            if len(entry) != 2:
                raise TypeError(f"mix(): {name!r} has {len(entry)} entries: give (dataset, weight)")
            parts[name], weights[name] = entry
        else:
            parts[name] = entry
        if not isinstance(parts[name], Dataset):
            raise TypeError(f"mix(): {name!r} is {parts[name]!r:.80}: wrap it with sw.wrap")
        if not len(parts[name]):
            raise ValueError(f"mix(): {name!r} has no samples: leave it out")
    return parts, weights


def _whole_schedule(schedule: Any, weights: dict[str, float]) -> Any:
    if schedule is None:
        return [(0, weights)]
    entries = list(schedule) if hasattr(schedule, "__iter__") else schedule
    is_list = isinstance(entries, list) and not isinstance(schedule, str | Mapping)
    first = entries[0] if is_list and entries else None
    if weights and isinstance(first, tuple | list) and len(first) == 2 and first[0] != 0:
        return [(0, weights), *entries]
    return entries if is_list else schedule


def _refuse_batches_within(parts: Mapping[str, Dataset]) -> None:
    for name, part in parts.items():
        if having(part.sampler, ForGlobalBatch) is not None:
            raise ValueError(
                f"mix(): {name!r} brings whole batches, as a mixture with per='batch' does, which "
                "per='sample' would tear apart: use per='batch' here, or per='sample' there"
            )


def _part(name: str, dataset: Dataset, seed: int) -> MixturePart:
    """The dataset to the plan: its own order where it is not a permutation of all samples."""
    sampler = dataset.sampler
    if sampler is None and dataset.default_shuffle != "full":
        own = make_sampler(
            len(dataset),
            shuffle=dataset.default_shuffle,
            seed=mix_keys(seed, 3, key_of(name)),
            shard_sizes=dataset.shard_sizes,
            window_shape=dataset.window_shape,
        )
        # One window is a permutation of all samples, which needs no tables of each epoch.
        is_one_window = isinstance(own, WindowSampler) and own.window >= own.num_samples
        sampler = None if is_one_window else own
    return MixturePart(len(dataset), dataset.fingerprint, sampler)
