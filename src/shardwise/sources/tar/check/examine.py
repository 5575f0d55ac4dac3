"""One walk through a shard and its index: the report that `doctor` and `verify` are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwise.errors import ShardwiseError
from shardwise.sources.tar.check.oddities import Oddities
from shardwise.sources.tar.check.problem import Problem, problem_of
from shardwise.sources.tar.index.build import build_index

if TYPE_CHECKING:
    from shardwise.sources.tar.index.index_store import IndexStore, SavedIndex
    from shardwise.sources.tar.index.shard_index import ShardIndex

__all__ = ["ShardReport", "examine_shard"]


@dataclass
class ShardReport:
    """A shard, its headers and the index that is kept of it.

    Attributes:
        url: the shard.
        oddities: counts of the walk through the headers.
        saved: the index as it is kept; None where the shard can't be opened.
        built: an index of the headers as they are; None where the shard is damaged.
        damage: why there is no `built`.
        problems: everything wrong with the shard and its index; filled by `verify_shard`.
    """

    url: str
    oddities: Oddities
    saved: SavedIndex | None = None
    built: ShardIndex | None = None
    damage: Problem | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """The shard's size; 0 where it can't be opened."""
        return 0 if self.saved is None else self.saved.stat.num_bytes

    @property
    def index(self) -> ShardIndex | None:
        """The index that reading would use: the one kept if it is fresh, else `built`."""
        if self.saved is not None and self.saved.state == "fresh":
            return self.saved.index
        return self.built

    @property
    def has_digests(self) -> bool:
        """Whether the index that is kept, fresh or stale, has digests."""
        index = None if self.saved is None else self.saved.index
        return index is not None and index.header.has_digests

    @property
    def findings(self) -> list[Problem]:
        """What is odd, or the damage alone where the headers could not be scanned to the end."""
        findings = [] if self.damage is None else [self.damage]
        if self.oddities.is_complete:
            has_end = self.built is None or self.built.header.has_end
            findings += self.oddities.findings(num_bytes=self.num_bytes, has_end=has_end)
        return findings


def examine_shard(url: str, *, store: IndexStore) -> ShardReport:
    """Scan the headers of a shard and load its index. Payloads are not read, nothing is written.

    Damage is reported, and never raised.

    Args:
        url: the shard.
        store: where its index is kept.
    """
    report = ShardReport(url, Oddities(url))
    try:
        report.saved = store.look(url)
        report.built = build_index(
            url, options=store.options, accept_unfinished=True, watch=report.oddities.watch
        )
    except ShardwiseError as error:
        report.damage = problem_of(error, url)
    return report
