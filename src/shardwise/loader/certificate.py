"""The certificate: the samples that were returned, compared with those of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.plan.id_word import Counted, Tallied


@dataclass(frozen=True, slots=True)
class RankNumbers:
    """One rank's numbers for the others: returned and planned samples between two positions.

    `planned` is nothing where the epoch's samples are known in closed form.
    """

    epoch: int
    first: int
    last: int
    counted: Counted
    planned: Tallied

    def to_list(self) -> list[int]:
        """As numbers below 2**63."""
        c = self.counted
        parts = (c.handed_out, c.skipped, c.replaced, c.left_out)
        words = [n for each in parts for n in (each.count, each.word)]
        planned = [self.planned.count, self.planned.word]
        return [self.epoch, self.first, self.last, *words, c.num_padded, *planned]

    @classmethod
    def of(cls, numbers: list[int]) -> RankNumbers:
        """Make it from the numbers of a rank."""
        epoch, first, last, *words, padded, count, word = numbers
        handed_out, skipped, replaced, out = (Tallied(*words[at : at + 2]) for at in (0, 2, 4, 6))
        counted = Counted(handed_out, skipped, replaced, padded, out)
        return cls(epoch, first, last, counted, Tallied(count, word))


def certificate_of(
    ranks: list[RankNumbers],
    expected: Tallied | None,
    *,
    dropped: int,
    num_samples: int,
    is_once: bool,
    has_all: bool,
    is_given: bool = False,
    excluded: int = 0,
    removed: int = 0,
    steps_skipped: Sequence[str] = (),
) -> dict[str, Any]:
    """The certificate of what these ranks returned, all of them if `has_all`.

    `expected` is None for the sum of the ranks' plans; `is_once`: whether the epoch's samples
    are the data's, each once. `removed` ones are among the `excluded`. The rest is as of
    `CoverageLine`.
    """
    total = sum((rank.counted for rank in ranks), Counted())
    if expected is None:
        expected = sum((rank.planned for rank in ranks), Tallied())
    expected = expected - total.skipped - total.replaced - total.left_out
    places = sorted({(rank.epoch, rank.first, rank.last) for rank in ranks})
    epoch, first, last = places[0]
    is_equal = total.handed_out == expected
    certificate: dict[str, Any] = {
        "epoch": epoch,
        "count": total.handed_out.count,
        "word": f"{total.handed_out.word:016x}",
        "expected": f"{expected.word:016x}",
        "ok": is_equal and len(places) == 1,
        "from": first,
        "to": last,
        "num_samples": num_samples,
        "skipped": total.skipped.count,
        "replaced": total.replaced.count,
        "padded": total.num_padded,
        "dropped": dropped,
        "left_out": total.left_out.count + excluded,
        "removed": removed,
        "given": total.handed_out.count if is_given else 0,
        "ranks": len(ranks),
    }
    if len(places) > 1:
        text = "the ranks stand at different places: " + ", ".join(
            f"epoch {e}, positions {a} to {b}" for e, a, b in places[:4]
        )
    elif not is_equal:
        counts = f"{total.handed_out.count} samples, expected {expected.count}"
        text = f"NOT each sample once: the words differ ({counts})"
    else:
        text = _verdict(certificate, is_once=is_once, has_all=has_all)
        remarks = total.remarks(
            num_dropped=dropped,
            num_given=certificate["given"],
            num_excluded=excluded,
            num_removed=removed,
            steps_skipped=steps_skipped,
        )
        text = ", ".join([text, *remarks])
    certificate["verdict"] = f"epoch {epoch}: {text}"
    return certificate


def _verdict(c: dict[str, Any], *, is_once: bool, has_all: bool) -> str:
    """The verdict of a certificate without a fault."""
    first, last, num_samples = c["from"], c["to"], c["num_samples"]
    noun = "samples" if is_once else "positions of the order"
    if not has_all:
        return f"this rank's {c['count']} {noun} between positions {first} and {last}, exactly once"
    lacks = any(c[name] for name in ("skipped", "replaced", "dropped", "left_out"))
    if first == 0 and last == num_samples and not lacks:
        return f"every one of {num_samples} {noun} exactly once"
    return f"{c['count']} {noun} between positions {first} and {last} exactly once"


def no_certificate(epoch: int) -> dict[str, Any]:
    """The certificate of a loader that has returned nothing."""
    none = RankNumbers(epoch, 0, 0, Counted(), Tallied())
    return certificate_of([none], None, dropped=0, num_samples=0, is_once=True, has_all=False) | {
        "verdict": "nothing was handed out yet"
    }
