"""What a mixture is of, and where its epochs end: checked, and in the words of the plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.plan.arguments import whole
from shardwise.plan.mixture_weights import MAX_DRAW, WeightChange
from shardwise.plan.protocol import Sampler

__all__ = ["MixtureOptions", "MixturePart", "Until", "check_until", "digest_of", "key_of"]

Until = str | int | Mapping[str, int]


@dataclass(frozen=True)
class MixturePart:
    """One dataset of a mixture.

    Attributes:
        num_ids: samples that it has.
        fingerprint: which samples these are.
        sampler: its own order; None for a permutation of all samples, another each epoch.
    """

    num_ids: int
    fingerprint: str = ""
    sampler: Sampler | None = None

    @property
    def epoch_size(self) -> int:
        """Positions in an epoch of its own."""
        return self.num_ids if self.sampler is None else self.sampler.num_samples

    def past(self, position: int) -> str:
        """A digest of what its first `position` samples depend on."""
        past = getattr(self.sampler, "past", None)
        if past is not None:
            # A mixture, which may have grown since: its data are in its past.
            return digest_of(past(position))
        order = None if self.sampler is None else self.sampler.spec()
        return digest_of([self.num_ids, self.fingerprint, order])


@dataclass(frozen=True)
class MixtureOptions:
    """How datasets are mixed; `shardwise.mix` documents them.

    Attributes:
        changes: weights, from positions on.
        until: "first", "all", `{name: epochs}`, or a number of samples.
        block: positions that are permuted among each other.
        seed: makes another order.
    """

    changes: tuple[WeightChange, ...]
    until: Until = "first"
    block: int = 256
    seed: int = 0


def check_until(until: Any, names: Sequence[str]) -> Until:
    """Check where epochs of a mixture end.

    Raises:
        ValueError: an unknown word or name, or less than one epoch or sample.
        TypeError: something else.
    """
    if until in ("first", "all") and isinstance(until, str):
        return until
    if isinstance(until, Mapping):
        if len(until) != 1 or next(iter(until)) not in names:
            raise ValueError(
                f"until={dict(until)!r:.80}: name one of {', '.join(map(repr, names))} with a "
                "number of its epochs"
            )
        return {name: whole(f"until[{name!r}]", n, least=1) for name, n in until.items()}
    if isinstance(until, str) or not hasattr(until, "__index__"):
        raise ValueError(
            f"until={until!r:.80}: use 'first', 'all', a number of samples, or {{name: epochs}}"
        )
    if whole("until", until, least=1) > MAX_DRAW // 2:
        raise ValueError(f"until={until!r:.80}: an epoch has at most 2**61 samples")
    return whole("until", until)


def key_of(name: str) -> int:
    """A number of 64 bits for a dataset's name, to key what must not depend on its place."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def digest_of(value: Any) -> str:
    """12 hex digits for a value of JSON."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
