"""The account of a loader: what it returned in a pass, and what the plan gives it.

One per loader. It gives certificates, and writes the lines of a coverage directory. The tally of a
pass counts where the position counts, so never what was only prefetched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sized
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.request import BatchRows
from shardwise.loader.certificate import RankNumbers, certificate_of, no_certificate
from shardwise.loader.coverage_file import CoverageFile
from shardwise.loader.plan_options import fingerprint_of, recipe_of
from shardwise.loader.position import Pass
from shardwise.loader.rank_check import CurrentRanks
from shardwise.plan import Plan
from shardwise.plan.arguments import digest_of
from shardwise.plan.coverage_line import CoverageLine
from shardwise.plan.id_word import (
    Counted,
    IdWord,
    Tallied,
    dropped_samples,
    epoch_samples,
    left_out_samples,
    num_removed,
    padded_rows,
    planned_samples,
)
from shardwise.plan.protocol import epoch_parts, past_of

# 32 KiB of ids: numpy's cost a call is then small beside that of the ids.
_BUFFER_IDS = 4_096


class Tally:
    """The tally of returned samples, by the word of an epoch.

    `word` is called late: the fingerprint of a user's dataset may cost some reads.
    """

    def __init__(self, word: Callable[[], IdWord]) -> None:
        self._word = word
        self._clear()

    def _clear(self) -> None:
        self._buffered: list[bytes] = []
        self._num_buffered = 0
        self._counted = Counted()

    def add(self, rows: BatchRows) -> None:
        # A copy: the program may change the "__index__" of its batch. As bytes, it is made in two
        # thirds of the time that it takes to fill a part of an array.
        self._buffered.append(rows.ids.tobytes())
        self._num_buffered += len(rows.ids)
        if self._num_buffered >= _BUFFER_IDS:
            self._flush()
        if len(rows.skipped) or len(rows.replaced) or rows.num_padded:
            self._counted += Counted(
                skipped=self._tally_ids(rows.skipped),
                replaced=self._tally_ids(rows.replaced),
                num_padded=rows.num_padded,
            )

    def leave_out(self, samples: Tallied) -> None:
        """Count samples that are left out on purpose."""
        self._counted += Counted(left_out=samples)

    def take(self) -> Counted:
        """The sums since the last call, or the start."""
        self._flush()
        counted = self._counted
        self._clear()
        return counted

    def _flush(self) -> None:
        if self._num_buffered:
            ids = np.frombuffer(b"".join(self._buffered), dtype=np.int64)
            self._buffered.clear()
            self._num_buffered = 0
            self._counted += Counted(self._tally_ids(ids))

    def _tally_ids(self, ids: NDArray[np.int64]) -> Tallied:
        return Tallied(len(ids), self._word().of(ids)) if len(ids) else Tallied()


class PassAccount:
    """The account of one pass of one rank; lines of it are written one after the other.

    `dataset` may be a number of samples; `number` counts the passes of the loader.
    """

    def __init__(self, current: Pass, *, rank: int, dataset: Sized | int, number: int) -> None:
        self.current = current
        self.rank = rank
        self.dataset = dataset
        self.number = number
        self.began = time.time()
        self.tally = Tally(lambda: self.word)
        self.steps_skipped: list[str] = []
        # Batches in the tally: more than were returned, where they are counted ahead of that.
        self.num_added = 0
        # All that was taken from the tally, and what of it is in lines.
        self._all, self._noted = Counted(), Counted()
        self._num_noted, self._noted_end = 0, current.start

    @property
    def plan(self) -> Plan:
        return self.current.plan

    @property
    def end(self) -> int:
        current = self.current
        return self.plan.num_samples if current.is_whole else current.after()[1]

    @cached_property
    def word(self) -> IdWord:
        """The keyed sum for this data and epoch: `shardwise.plan.id_word`."""
        return IdWord(fingerprint_of(self.dataset, self.plan), self.current.epoch)

    def total(self) -> Counted:
        """Count the samples returned in this pass.

        Batches counted ahead, such as a sampler's, are subtracted where the plan has them after the
        returned ones: words of parts add up, so nothing need be kept of each batch.
        """
        self._all += self.tally.take()
        ahead = range(self.current.num_batches, self.num_added)
        if not ahead:
            return self._all
        epoch = self.current.epoch
        return self._all - Counted(
            planned_samples(self.plan, epoch, ahead, self.rank, self.word),
            num_padded=padded_rows(self.plan, epoch, ahead, self.rank),
        )

    @cached_property
    def _recipe(self) -> str:
        """It hashes what the dataset's functions hold: once per pass, not per line."""
        return recipe_of(self.dataset)

    def planned(self, first: int = 0) -> Tallied:
        """Tally the plan's samples for this rank in the batches returned, from one of them on."""
        steps = range(first, self.current.num_batches)
        return planned_samples(self.plan, self.current.epoch, steps, self.rank, self.word)

    @cached_property
    def dropped(self) -> Tallied:
        """The samples that the epoch leaves out at its end, over all ranks."""
        return dropped_samples(self.plan, self.current.epoch, self.word)

    def excluded(self, first: int) -> Tallied:
        """The samples that no rank gets from a position on because of `exclude`."""
        return left_out_samples(self.plan, self.current.epoch, first, self.end, self.word)

    def removed(self, first: int) -> int:
        """Count the samples, from position `first` on, that the data no longer has."""
        return num_removed(self.plan, self.current.epoch, first, self.end)

    @cached_property
    def expected(self) -> Tallied | None:
        """All samples of the epoch, in closed form if there is one."""
        return epoch_samples(self.plan.sampler, self.current.epoch, self.word)

    @property
    def is_data_once(self) -> bool:
        """Whether the epoch's samples are the data's, each once."""
        parts = epoch_parts(self.plan.sampler, self.current.epoch) or []
        whole = range(self.plan.order.num_ids)
        return len(parts) == 1 and isinstance(parts[0], range) and parts[0] == whole

    def _past(self, position: int) -> str:
        since_begin = self.current.epoch * self.plan.num_samples + position
        past = past_of(self.plan.sampler, since_begin)
        return "" if past is None else f"{since_begin} {digest_of(past)}"

    def line(self, file: CoverageFile, *, is_given: bool) -> CoverageLine | None:
        """The line of what was returned since the last line; None if nothing was."""
        current, plan = self.current, self.plan
        # Positions, not batches: an end without a batch may leave out what is left of the epoch.
        if self._noted_end >= self.end:
            return None
        counted = self.total() - self._noted
        planned = self.planned(self._num_noted)
        fingerprint, order = fingerprint_of(self.dataset, plan), plan.sampler.spec()
        run, is_shared = file.run(plan.world_size, digest_of([fingerprint, order]))
        return CoverageLine(
            run=run,
            is_shared=is_shared,
            resumed=file.resumed,
            rank=self.rank,
            world_size=plan.world_size,
            batch_size=plan.batch_size,
            global_batch_size=plan.global_batch_size,
            remainder=plan.remainder,
            began=self.began,
            written=time.time(),
            number=self.number,
            epoch=current.epoch,
            begin=current.start,
            first=self._noted_end,
            last=self.end,
            num_samples=plan.num_samples,
            is_end=current.is_whole,
            is_given=is_given,
            fingerprint=fingerprint,
            recipe=self._recipe,
            order=order,
            begin_past=self._past(current.start),
            last_past=self._past(self.end),
            handed_out=counted.handed_out,
            skipped=counted.skipped,
            replaced=counted.replaced,
            num_padded=counted.num_padded,
            left_out=counted.left_out,
            excluded=self.excluded(self._noted_end),
            removed=self.removed(self._noted_end),
            steps_skipped=self.steps_skipped[-1] if counted.left_out.count else "",
            planned=planned,
            dropped=self.dropped if current.is_whole else Tallied(),
            expected=self.expected,
            is_whole=self.is_data_once,
        )

    def noted(self, line: CoverageLine) -> None:
        """Note that the line is written: the next one starts after it."""
        self._noted += line.counted
        self._num_noted, self._noted_end = self.current.num_batches, line.last


class Account:
    """The accounts of a loader's passes: of the newest one, and where lines of them go."""

    def __init__(self, dataset: Sized | int, directory: str | os.PathLike[str] | None) -> None:
        self._dataset = dataset
        self._file = None if directory is None else CoverageFile(directory)
        self._newest: PassAccount | None = None
        self._num_passes = 0
        # Another rank, which gets the same batches, writes the lines.
        self.is_others = False

    def begin(self, current: Pass, *, rank: int) -> None:
        self._num_passes += 1
        new = PassAccount(current, rank=rank, dataset=self._dataset, number=self._num_passes)
        if self._newest is not None and self._newest.plan.fingerprint != new.plan.fingerprint:
            # The data grew: each file has lines of one fingerprint.
            self.resume(self.state_run)
        self._newest = new

    def add(self, rows: BatchRows, num_batches: int = 1) -> None:
        """Count a batch that is being returned, or the rows of some at once."""
        assert self._newest is not None
        self._newest.tally.add(rows)
        self._newest.num_added += num_batches

    def skip(self, num_steps: int, shown: str) -> None:
        """Count the next steps of the newest pass as left out; `shown` names them in words."""
        newest = self._newest
        assert newest is not None
        first = newest.current.num_batches
        steps, epoch = range(first, first + num_steps), newest.current.epoch
        samples = planned_samples(newest.plan, epoch, steps, newest.rank, newest.word)
        newest.tally.leave_out(samples)
        newest.num_added += num_steps
        newest.steps_skipped.append(shown)

    def note(self, current: Pass | None, *, is_given: bool = False) -> None:
        """Write a line of what the pass under way returned since the last one.

        `is_given`: whether it is what a sampler gave, see `CoverageLine.is_given`.
        """
        newest = self._newest
        # A pass that was left, or that belongs to the process that this one was forked from.
        if self._file is None or newest is None or newest.current is not current:
            return
        if newest.current.pid == os.getpid():
            line = newest.line(self._file, is_given=is_given)
            if line is not None:
                self._file.append(line, is_others=self.is_others)
                newest.noted(line)

    @property
    def state_run(self) -> str:
        """See `CoverageFile.state_run`; "" without a coverage directory."""
        return "" if self._file is None else self._file.state_run

    def resume(self, run: str, *, is_regrouped: bool = False) -> None:
        """Start another file and run: a state of `run` is loaded, or its ranks changed."""
        if self._file is not None:
            self._file.resume(run, is_regrouped=is_regrouped)

    def certificate(
        self, ranks: CurrentRanks, *, epoch: int, is_given: bool = False
    ) -> dict[str, Any]:
        """The certificate of the newest pass, see `DataLoader.certificate`.

        Where a process group has these ranks, their numbers are gathered. `epoch` is the next one.
        """
        is_gathered = ranks.are_of_group()
        newest = self._newest
        if newest is None:
            return no_certificate(epoch)
        total = newest.total()
        has_all = is_gathered or newest.plan.world_size == 1
        current = newest.current
        is_closed = has_all and current.is_whole and current.start == 0
        expected = newest.expected if is_closed else None
        planned = newest.planned() if expected is None else Tallied()
        own = RankNumbers(current.epoch, current.start, newest.end, total, planned)
        numbers = [own]
        if is_gathered:
            from shardwise.tensors.gather_numbers import gather_numbers

            numbers = [RankNumbers.of(row) for row in gather_numbers(own.to_list())]
        if expected is not None:
            expected -= newest.dropped + newest.excluded(current.start)
        return certificate_of(
            numbers,
            expected,
            dropped=newest.dropped.count if current.is_whole else 0,
            num_samples=newest.plan.num_samples,
            is_once=newest.is_data_once,
            has_all=has_all,
            is_given=is_given,
            excluded=newest.excluded(current.start).count,
            removed=newest.removed(current.start),
            steps_skipped=newest.steps_skipped,
        )

    def __getstate__(self) -> dict[str, Any]:
        """The directory travels, the passes do not: they are this process's."""
        return {**self.__dict__, "_newest": None}
