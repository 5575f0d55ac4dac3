"""Packs: documents put together so that each pack is nearly full. Numpy in, numpy out.

Best fit, the longest documents first, within windows of neighbours in storage order: a pack holds
documents that lie near each other, and packing is linear in the number of documents. Packs are made
once and then are samples like any other, so the order of an epoch stays with the sampler.

Sources: D. S. Johnson, "Near-optimal bin packing algorithms", MIT, 1973 (best fit decreasing). With
limits: R. Panigrahy et al., "Heuristics for vector bin packing", 2011 (by the sum of the shares).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice

# The treatment of a document that is longer than a pack.
LongDocuments = Literal["split", "drop", "error"]

# Lengths and places in a pack are int32, as attention kernels have them.
_MAX_LENGTH = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Packs:
    """The pieces of documents that each pack holds.

    A piece is a document, or a part of one that is longer than a pack. The pieces of pack p are
    `starts[p]` to `starts[p + 1]`, in storage order.

    Attributes:
        length: tokens of a full pack.
        starts: int64 `[packs + 1]`, where each pack's pieces start.
        documents: int64 `[pieces]`, the document that a piece is of.
        begins: int32 `[pieces]`, the piece's first token in its document.
        sizes: int32 `[pieces]`, its tokens.
        wholes: int32 `[pieces]`, the tokens of its document.
        num_empty: documents without a token, which are in no pack.
        num_dropped: documents above a pack's length or limits that were left out.
    """

    length: int
    starts: NDArray[np.int64]
    documents: NDArray[np.int64]
    begins: NDArray[np.int32]
    sizes: NDArray[np.int32]
    wholes: NDArray[np.int32]
    num_empty: int = 0
    num_dropped: int = 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens in all packs, without padding."""
        return int(self.sizes.sum(dtype=np.int64))

    @property
    def efficiency(self) -> float:
        """The share of the packs' slots that hold a token; 1.0 without packs."""
        return self.num_tokens / (len(self) * self.length) if len(self) else 1.0

    @property
    def max_documents(self) -> int:
        """Pieces in the pack that has most."""
        return int(np.diff(self.starts).max(initial=0))


def checked_lengths(lengths: Any, num_documents: int | None = None) -> NDArray[np.int64]:
    """Lengths of documents as int64 `[documents]`."""
    array = np.asarray(lengths)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TypeError(
            f"lengths are {array.dtype} of shape {list(array.shape)}: give one whole number a "
            "document"
        )
    if num_documents is not None and len(array) != num_documents:
        raise ValueError(f"{len(array)} lengths for {num_documents} documents: give one each")
    bad = np.flatnonzero((array < 0) | (array > _MAX_LENGTH))
    if len(bad):
        raise ValueError(
            f"document {bad[0]} has the length {array[bad[0]]}: a length is in [0, {_MAX_LENGTH}]"
        )
    return array.astype(np.int64)


def pack_documents(
    lengths: NDArray[np.int64],
    *,
    length: int,
    window: int = 4096,
    long: LongDocuments = "split",
    limits: Mapping[str, tuple[float, NDArray[np.float64]]] | None = None,
    report: Callable[[int], object] | None = None,
) -> Packs:
    """Pack documents; about 3 us each, with limits 12 us.

    Args:
        lengths: tokens of each document, int64 `[documents]`, in storage order, as checked.
        length: tokens of a pack.
        window: neighbours that are packed with each other. Larger ones waste less, and spread a
            pack's documents over more of the storage.
        long: documents with more than `length` tokens are cut ("split"; the rest is packed as a
            document), left out and counted ("drop"), or an "error".
        limits: by name what a pack holds at most, and what each document needs of it: float64
            `[documents]`. A document that needs some is in one pack, whole.
        report: called with the number of documents that are packed, after each window.

    Raises:
        ValueError: a document fits in no pack, by `long`; or `long` is not one of the above.
    """
    check_choice("long", long, ("split", "drop", "error"))
    limits = limits or {}
    over = [needs > limit for limit, needs in limits.values()]
    is_cut = np.all([needs == 0 for _, needs in limits.values()], axis=0) & (long == "split")
    unfit = np.any([(lengths > length) & ~is_cut, *over], axis=0)
    if long != "drop" and unfit.any():
        first = int(unfit.argmax())
        more = [
            f", {name}={needs[first]:g} of {limit:g}" for name, (limit, needs) in limits.items()
        ]
        raise ValueError(
            f"document {first} has {lengths[first]} tokens, and a pack {length}{''.join(more)}: "
            f"{int(unfit.sum())} documents are too long; use long='drop', long='split' (which cuts "
            f"what needs tokens alone), larger limits, or length={int(lengths.max())}"
        )
    used = np.where(unfit, 0, lengths)
    parts: list[tuple[NDArray[Any], ...]] = []
    num_packs = 0
    for begin in range(0, len(used), window):
        documents, begins, sizes = _pieces(used[begin : begin + window], length)
        budgets = [(most, needs[begin + documents]) for most, needs in limits.values()]
        fit = _best_fit_under((length, sizes), *budgets) if limits else _best_fit(sizes, length)
        packs, count = _in_storage_order(fit)
        order = np.lexsort((begins, documents, packs))
        parts.append((
            packs[order] + num_packs, documents[order] + begin, begins[order], sizes[order]
        ))  # fmt: skip
        num_packs += count
        if report is not None:
            report(min(begin + window, len(used)))
    joined = [np.concatenate([part[i] for part in parts]) if parts else np.empty(0, np.int64)
              for i in range(4)]  # fmt: skip
    packs, documents, begins, sizes = joined
    counts = np.bincount(packs, minlength=num_packs)
    return Packs(
        length=length,
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        documents=documents.astype(np.int64),
        begins=begins.astype(np.int32),
        sizes=sizes.astype(np.int32),
        wholes=lengths[documents.astype(np.int64)].astype(np.int32),
        num_empty=int((lengths == 0).sum()),
        num_dropped=int(unfit.sum()),
    )


def _pieces(lengths: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], ...]:
    """Documents cut into pieces of at most `size` tokens: document, start and size of each."""
    counts = -(-lengths // size)
    documents = np.repeat(np.arange(len(lengths)), counts)
    numbers = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = numbers * size
    return documents, begins, np.minimum(lengths[documents] - begins, size)


def _best_fit(sizes: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Choose a pack for each piece."""
    packs = np.empty(len(sizes), np.int64)
    order = np.argsort(-sizes, kind="stable")
    # Room and number of each open pack as one sorted number, so that one bisection finds the
    # fullest pack that takes the piece.
    scale = len(sizes) + 1
    rooms: list[int] = []
    chosen: list[int] = []
    count = 0
    for piece in sizes[order].tolist():
        at = bisect_left(rooms, piece * scale)
        if at < len(rooms):
            room, pack = divmod(rooms.pop(at), scale)
        else:
            room, pack, count = size, count, count + 1
        chosen.append(pack)
        if room > piece:
            insort(rooms, (room - piece) * scale + pack)
    packs[order] = chosen
    return packs


def _best_fit_under(*limits: tuple[float, NDArray[Any]]) -> NDArray[np.int64]:
    """Choose a pack for each piece; sizes are sums of shares, and what fits is compared exactly."""
    needs = np.stack([each for _, each in limits])
    most = np.array([[limit] for limit, _ in limits], np.float64)
    sizes = (needs / most).sum(axis=0)
    packs = np.empty(len(sizes), np.int64)
    rooms, left, count = np.tile(most, len(sizes)), np.full(len(sizes), float(len(most))), 0
    for piece in np.argsort(-sizes, kind="stable").tolist():
        need = needs[:, piece]
        fits = np.flatnonzero((rooms[:, :count] >= need[:, None]).all(axis=0))
        pack = int(fits[left[fits].argmin()]) if len(fits) else count
        count = max(count, pack + 1)
        rooms[:, pack] -= need
        left[pack] -= sizes[piece]
        packs[piece] = pack
    return packs


def _in_storage_order(packs: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Number packs by their first piece, so that neighbours hold neighbours; how many there are."""
    _, firsts, inverse = np.unique(packs, return_index=True, return_inverse=True)
    ranks = np.empty(len(firsts), np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    return ranks[inverse], len(firsts)
