"""Legs of a training: the passes of all ranks that began at one position, and how far they reach.

What was trained is what a checkpoint kept. A leg counts up to the position where the next one
begins, and a position is reached where every rank has a line that ends there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardwise.cli.coverage_lines import PlacedLine

__all__ = ["Leg", "RankPass", "legs_of"]


@dataclass(slots=True)
class RankPass:
    """One pass of one rank.

    Attributes:
        lines: its lines, by their first position.
    """

    lines: list[PlacedLine] = field(default_factory=list)

    @property
    def began(self) -> float:
        """When it began, in seconds since 1970."""
        return self.lines[0].line.began

    def chain(self) -> list[PlacedLine]:
        """The lines that follow one another without a gap, from where the pass began."""
        chain: list[PlacedLine] = []
        position = self.lines[0].line.begin
        for placed in self.lines:
            if placed.line.first == position:
                chain.append(placed)
                position = placed.line.last
        return chain

    def until(self, position: int) -> list[PlacedLine] | None:
        """The chain's lines up to a position; None where no line of the chain ends there."""
        chain = [placed for placed in self.chain() if placed.line.last <= position]
        return chain if chain and chain[-1].line.last == position else None

    def twice(self) -> list[tuple[PlacedLine, PlacedLine]]:
        """Lines that cover positions which another line of the pass covers too."""
        found, last = [], self.lines[0]
        for placed in self.lines[1:]:
            if placed.line.first < last.line.last:
                found.append((last, placed))
            if placed.line.last > last.line.last:
                last = placed
        return found


@dataclass(slots=True)
class Leg:
    """The passes of all ranks that began at one position, in one run where that is known.

    Attributes:
        passes: each rank's passes, the newest first.
    """

    passes: dict[int, list[RankPass]]

    @property
    def line(self) -> PlacedLine:
        """Any line: of what they all have in common."""
        return self._all()[0].lines[0]

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.line.line.epoch

    @property
    def begin(self) -> int:
        """The position that the passes began at."""
        return self.line.line.begin

    @property
    def world_size(self) -> int:
        """How many ranks there are, also such as have no line."""
        return self.line.line.world_size

    @property
    def began(self) -> tuple[float, float]:
        """When the first and the last of the passes began."""
        times = [each.began for each in self._all()]
        return min(times), max(times)

    @property
    def run(self) -> str:
        """The run's name: of rank 0 where each rank has one of its own."""
        return self.passes[min(self.passes)][0].lines[0].line.run

    def ends(self, rank: int) -> set[int]:
        """The positions up to which a rank's lines reach, without gaps."""
        return {p.line.last for each in self.passes.get(rank, []) for p in each.chain()}

    def reached(self) -> int:
        """The last position that all ranks reached; the beginning where there is none."""
        common = set.intersection(*(self.ends(rank) for rank in range(self.world_size)))
        return max(common, default=self.begin)

    def furthest(self) -> int:
        """The last position that any line reaches."""
        return max(p.line.last for each in self._all() for p in each.lines)

    def until(self, rank: int, position: int) -> list[PlacedLine] | None:
        """A rank's lines from the beginning up to a position: of its newest pass that has them."""
        chains = (each.until(position) for each in self.passes.get(rank, []))
        return next((chain for chain in chains if chain is not None), None)

    def copies(self, chain: list[PlacedLine], position: int) -> list[PlacedLine]:
        """The lines up to a position of other processes that had a chain's rank in the same pass.

        Ranks of a group that holds one model between them (tensor parallel) get equal batches.
        """
        if not (chain and chain[0].line.is_shared):
            return []
        first = chain[0]
        return [
            placed
            for each in self.passes[first.line.rank]
            for placed in each.chain()
            if placed.file != first.file
            and placed.line.number == first.line.number
            and placed.line.last <= position
        ]

    def has_gap(self, rank: int) -> bool:
        """Whether a rank has lines behind positions of which it has none."""
        reached = max(self.ends(rank), default=self.begin)
        return any(p.line.last > reached for each in self.passes[rank] for p in each.lines)

    def lacking(self, position: int) -> list[int]:
        """The ranks without a line that ends at a position."""
        return [r for r in range(self.world_size) if self.until(r, position) is None]

    def _all(self) -> list[RankPass]:
        return [each for passes in self.passes.values() for each in passes]


def legs_of(lines: Iterable[PlacedLine]) -> list[Leg]:
    """The legs of lines of one data and order, those that began last first."""
    passes: dict[tuple[tuple[object, ...], int, object], RankPass] = defaultdict(RankPass)
    for placed in lines:
        line = placed.line
        # Without a process group each rank has a run of its own: ranks belong together by where
        # they began, and in how large a world.
        run = line.run if line.is_shared else ""
        leg = (run, line.world_size, line.batch_size, line.remainder, line.epoch, line.begin)
        passes[leg, line.rank, (line.run, line.number, line.began)].lines.append(placed)
    legs: dict[object, dict[int, list[RankPass]]] = defaultdict(lambda: defaultdict(list))
    for (common, rank, _), each in passes.items():
        each.lines.sort(key=lambda p: (p.line.first, p.line.last, p.file, p.number))
        legs[common][rank].append(each)
    for ranks in legs.values():
        for of_rank in ranks.values():
            of_rank.sort(key=lambda each: each.began, reverse=True)
    return sorted((Leg(dict(r)) for r in legs.values()), key=lambda x: x.began[1], reverse=True)
