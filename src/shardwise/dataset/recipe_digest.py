"""The digest of a recipe: of what a dataset does to its samples.

It is of names, settings and code, not of a pickle: a pickle only names the functions of modules,
and its bytes may differ between two processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardwise.base.abilities import having
from shardwise.dataset.code_digest import code_digest, is_users_code, state_of
from shardwise.sources.protocol import HoldsDataset, content_key_of
from shardwise.sources.samples import MixedSamples, Samples, SourcedSamples, TransformedSamples


def recipe_digest(dataset: Samples, *, digest: Callable[[Any], str] = code_digest) -> str:
    """16 hex digits of what a dataset does to its samples; the same in every process.

    Decoders and functions count with the code that they call in the user's modules, as
    `code_digest` documents; so do a source and a wrapped dataset whose classes are the user's.
    """
    return digest(_recipe(dataset))


def _recipe(dataset: Any) -> Any:
    own = list[Any]()
    mixed = having(dataset, MixedSamples)
    if mixed is not None and isinstance(mixed.parts, Mapping):
        # Its datasets have recipes of their own.
        own += [(name, _recipe(part)) for name, part in mixed.parts.items()]
    if (made := having(dataset, TransformedSamples)) is not None:
        own += made.transforms.decoders, made.transforms.maps
    return (type(dataset).__qualname__, tuple(dataset.fields), own, _reading(dataset))


def _reading(dataset: Any) -> list[Any]:
    """What reads samples: the user's code, or the dataset of packs and windows."""
    own = having(dataset, SourcedSamples)
    source = None if own is None else own.source
    holder = having(source, HoldsDataset)
    wrapped = None if holder is None else holder.dataset
    kinds = [type(each) for each in (source, wrapped) if is_users_code(type(each))]
    # As `transform=` of torchvision's datasets.
    state = [each for each in state_of(wrapped) if isinstance(each, tuple) and callable(each[-1])]
    if having(wrapped, Samples) is not None:
        state.append(_recipe(wrapped))
    return [*kinds, *state, *content_key_of(source)]
