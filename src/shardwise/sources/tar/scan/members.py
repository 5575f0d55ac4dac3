"""The members of a shard: regular files with their names, offsets and sizes.

Long names (USTAR prefix, GNU, PAX) are put together here. A hard link has its target's payload; all
else that is not a regular file is counted and left out, or an error if it must be a field.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.base.shown import shown as shown_url
from shardwise.sources.tar.scan.elsewhere import ELSEWHERE, EarlierMembers, Members, link_targets
from shardwise.sources.tar.scan.headers import (
    BLOCK,
    IS_EXTENDED,
    IS_PAX,
    KIND,
    MARK,
    REMOVED,
    parse_pax,
    read_name,
    round_up,
    stored_names,
)
from shardwise.sources.tar.scan.names import MAX_NAME
from shardwise.sources.tar.scan.walk import HeaderRun, HeaderScan, shown

_logger = logging.getLogger("shardwise")

_REGULAR = b"0\0" + b"7"
_IS_REGULAR, _IS_ELSEWHERE = (
    np.isin(np.arange(256), list(kinds)) for kinds in (_REGULAR, bytes(ELSEWHERE))
)
_WHAT = {b"5"[0]: "directory", **dict.fromkeys(b"346V", "special file")}


def scan_members(scan: HeaderScan, ignored: Counter[str]) -> Iterator[Members]:
    """Regular files and hard links in order, many at a time; counts others in `ignored`."""
    earlier = EarlierMembers(scan, _regular_files)
    for run in scan.runs():
        kinds = run.blocks[:, KIND]
        marked = np.flatnonzero((run.blocks[:, MARK] == [*REMOVED]).all(axis=1))
        scan.removed += (run.positions[marked] + BLOCK).tolist()
        is_elsewhere = _IS_ELSEWHERE[kinds]
        is_member = _IS_REGULAR[kinds] | is_elsewhere
        for kind in kinds[~(is_member | IS_EXTENDED[kinds])].tolist():
            ignored[_WHAT.get(kind, "unknown type")] += 1
        long_names = _long_names(run, is_member, scan.url) if run.extended else {}
        rows = np.flatnonzero(is_member)
        members = _make_members(run, rows, long_names)
        problem = _find_cut_member(run, members, scan)
        if problem is not None:
            is_whole = members.offsets <= run.positions[-1]
            members, rows = members.take(is_whole), rows[is_whole]
        if is_elsewhere[rows].any():
            long_targets = _long_names(run, is_elsewhere, scan.url, ord("K"), b"linkpath")
            targets = link_targets(run.blocks, long_targets, rows)
            start = int(run.positions[0])
            members, without = earlier.resolve(members, kinds[rows], targets, start, ignored)
            problem = without or problem
        else:
            earlier.add(members)
        # V7 archives store a directory as a regular file with a slash after its name.
        last = members.names[np.arange(len(members)), np.maximum(members.lengths - 1, 0)]
        is_directory = last == ord("/")
        if is_directory.any():
            ignored["directory"] += int(is_directory.sum())
            members = members.take(~is_directory)
        if len(members):
            yield members
        if problem is not None:
            raise problem


def warn_of_lost(ignored: Counter[str], url: str) -> None:
    """Warn of members that hold data, or lead to some, and are left out."""
    kinds = (*ELSEWHERE.values(), "no extension", "unknown type")
    lost = {what: ignored[what] for what in kinds if ignored[what]}
    if lost:
        _logger.warning(
            "%s: members are left out that have no field's name, or a type that tar does not know "
            "(%s); `shardwise doctor` says more",
            shown_url(url), ", ".join(f"{what}: {count}" for what, count in lost.items()),
        )  # fmt: skip


def _regular_files(scan: HeaderScan) -> Iterator[Members]:
    for run in scan.runs():
        is_regular = _IS_REGULAR[run.blocks[:, KIND]]
        long_names = _long_names(run, is_regular, scan.url) if run.extended else {}
        yield _make_members(run, np.flatnonzero(is_regular), long_names)


def _make_members(run: HeaderRun, rows: NDArray[np.intp], long_names: dict[int, bytes]) -> Members:
    """The members of some rows of a run; `long_names`, by row, replace names in the headers."""
    blocks = run.blocks if len(rows) == len(run.blocks) else run.blocks[rows]
    names, lengths, prefixed = stored_names(blocks)
    # Names that are not, or not only, in the headers' name field, by row of the result.
    others = {int(row): read_name(blocks[row].tobytes()) for row in prefixed}
    others.update(zip(np.searchsorted(rows, list(long_names)), long_names.values(), strict=True))
    longest = max([names.shape[1], *map(len, others.values())])
    padded = names
    if longest > names.shape[1] or longest % 8:
        padded = np.zeros((len(names), -(-longest // 8) * 8), np.uint8)
        padded[:, : names.shape[1]] = names
    if others:
        packed = np.array(list(others.values()), dtype=f"S{padded.shape[1]}")
        padded[list(others)] = packed.view(np.uint8).reshape(len(others), -1)
        lengths[list(others)] = [len(name) for name in others.values()]
    return Members(padded, lengths, run.positions[rows] + BLOCK, run.sizes[rows])


def _long_names(
    run: HeaderRun, is_wanted: NDArray[np.bool_], url: str,
    gnu: int = ord("L"), record: bytes = b"path",
) -> dict[int, bytes]:  # fmt: skip
    """Names (or targets) by member's row: `gnu` is the kind of GNU's header, `record` PAX's key."""
    kinds = run.blocks[:, KIND]
    names: dict[int, bytes] = {}
    # An extended header is about the next header that is not extended.
    others = np.flatnonzero(~IS_EXTENDED[kinds])
    about = others[np.searchsorted(others, list(run.extended))]
    for (row, payload), member in zip(run.extended.items(), about.tolist(), strict=True):
        kind, position = int(kinds[row]), int(run.positions[row])
        name = None
        if kind == gnu or (IS_PAX[kind] and record + b"=" in payload):
            name = _stated_name(kind, payload, record, url, position)
        if name and is_wanted[member]:
            # The first of several names counts, as in the standard library.
            names.setdefault(member, name)
    return names


def _stated_name(kind: int, payload: bytes, record: bytes, url: str, position: int) -> bytes | None:
    problem = None
    name: bytes | None = None
    if not IS_PAX[kind]:
        name = payload.partition(b"\0")[0]
    else:
        try:
            name = parse_pax(payload).get(record)
        except ValueError as error:
            problem = str(error)
    if name is not None and kind == ord("g"):
        problem = "a global header that gives all members one name: pack the shard again"
    if name is not None and b"\0" in name:
        problem = f"a member's name with a NUL byte, {shown(name)}: readers take it for two names"
    if name is not None and len(name) > MAX_NAME:
        problem = f"a member's name of {len(name)} bytes: at most {MAX_NAME} are read"
    if problem is not None:
        raise DataError(problem, url=url, offset=position)
    return name


def _find_cut_member(run: HeaderRun, members: Members, scan: HeaderScan) -> DataError | None:
    """The error of a last member whose payload reaches past the end of the shard."""
    start, num_bytes = int(run.positions[-1]) + BLOCK, round_up(int(run.sizes[-1]))
    num_available = scan.source.available(start, num_bytes)
    if num_available == num_bytes:
        return None
    is_member = len(members) and members.offsets[-1] == start
    name = members.name(-1) if is_member else read_name(run.blocks[-1].tobytes())
    base, _, extension = name.rpartition(b"/")[2].partition(b".")
    return DataError(
        f"the shard is cut short: the member {shown(name)} reaches to byte {start + num_bytes}, "
        f"the shard ends at byte {start + num_available}",
        url=scan.url,
        key=(name[: len(name) - len(extension) - 1] if extension else base).decode(
            "utf-8", "backslashreplace"
        ),
        field=extension.decode("utf-8", "backslashreplace") or None,
        offset=int(run.positions[-1]),
    )
