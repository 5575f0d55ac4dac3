"""Removed samples: no byte of them is left, no reader gets them, and nothing else moves."""

from __future__ import annotations

import io
import os
import shutil
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import shardwise as sw
import shardwise.compat.webdataset as wds
from shardwise.base.errors import DataError, StaleIndexError, StorageError
from shardwise.extensions.certify.command import certified
from shardwise.extensions.living import redaction
from shardwise.extensions.tools.shard_checks import verify_shard
from shardwise.sources.tar.index.build import build_indexes
from shardwise.sources.tar.index.index_store import IndexStore
from shardwise.storage import StorageOptions
from tests.support.commands import document, run
from tests.support.linked_tars import make_linked
from tests.support.servers import AzureServer
from tests.support.tars import make_shards, payload, sample_key, write_tar

SIZES, GONE = [9, 4, 10], [2, 10, 22]
KEPT = sorted({*range(sum(SIZES))} - {*GONE})
LOADER: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "remainder": "uneven"}


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    paths = make_shards(tmp_path / "data", SIZES)
    build_indexes(paths)
    return paths


def redact(shards: list[str], gone: list[int] = GONE) -> None:
    redaction.redact(shards, [*map(sample_key, gone)], IndexStore())


def ids_of(batches: Iterator[Any] | Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["__index__"]]


def problems(shards: list[str]) -> list[str]:
    return [each.message for url in shards for each in verify_shard(url).problems]


def test_no_byte_is_left_and_nothing_else_moves(shards: list[str]) -> None:
    before, data = sw.tar(shards), [Path(path).read_bytes() for path in shards]
    old_samples, fingerprint = [*before], before.fingerprint
    redact(shards)
    assert problems(shards) == []
    for path, old in zip(shards, data, strict=True):
        new = Path(path).read_bytes()
        assert len(new) == len(old)
        # Members, with their names, stay where they were.
        with tarfile.open(path) as tar, tarfile.open(fileobj=io.BytesIO(old)) as was:
            assert [(m.name, m.offset_data, m.size) for m in tar] == [
                (m.name, m.offset_data, m.size) for m in was
            ]
    everything = b"".join(Path(path).read_bytes() for path in shards)
    assert payload(2, "bin") not in everything
    after = sw.tar(shards)
    assert (after.fingerprint, len(after)) == (fingerprint, sum(SIZES))
    assert after.removed.tolist() == GONE
    assert [*after] == [old_samples[i] for i in KEPT]
    assert after[[3, 21]] == [old_samples[3], old_samples[21]]
    for read in (lambda: after[10], lambda: after[[0, 10]], lambda: after.load(np.array([10]))):
        with pytest.raises(DataError, match=r"was removed by `shardwise redact`.*s00000010.*10"):
            read()


@pytest.mark.parametrize(
    "options", [{"executor": "inline"}, {"num_workers": 0, "num_threads": 2}, {"num_workers": 1}],
    ids=["inline", "threads", "processes"],
)  # fmt: skip
def test_loaders_leave_removed_samples_out_and_count_them(
    shards: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    redact(shards)
    directory = tmp_path / "coverage"
    with sw.DataLoader(sw.tar(shards), **LOADER, **options, coverage=directory) as loader:
        assert len(loader) == 5
        assert sorted(ids_of(loader)) == KEPT
        assert loader.stats()["removed"] == 3
        certificate = loader.certificate()
    assert (certificate["ok"], certificate["removed"], certificate["left_out"]) == (True, 3, 3)
    assert certificate["verdict"].endswith("left out on purpose: 3 samples removed")
    [epoch] = certified(directory, sw.tar(shards))["orders"][0]["epochs"]
    assert (epoch["ok"], epoch["removed"], epoch["handed_out"]) == (True, 3, 20)


def test_states_of_before_go_on_without_the_removed_samples(shards: list[str]) -> None:
    for num_steps in range(1, 6):
        loader = sw.DataLoader(sw.tar(shards), **LOADER, executor="inline", exclude=[7])
        batches = iter(loader)
        before = [int(i) for _ in range(num_steps) for i in next(batches)["__index__"]]
        state = loader.state_dict()
        if num_steps == 1:
            copies = [shutil.copy(path, f"{path}.copy") for path in shards]
        redact(shards)
        rest = []
        for rank in range(2):
            ranks = {"rank": rank, "world_size": 2, "executor": "inline"}
            again = sw.DataLoader(sw.tar(shards), **{**LOADER, "batch_size": 1}, **ranks)
            again.load_state_dict(state)
            rest += ids_of(again)
        assert {*rest}.isdisjoint(GONE)
        assert sorted([*before, *rest]) == sorted({*KEPT, *before} - {7})
        for path, copy in zip(shards, copies, strict=True):
            shutil.copy(copy, path)
            Path(f"{path}.swi").unlink()
        build_indexes(shards)


def test_torch_loaders_leave_them_out(shards: list[str]) -> None:
    redact(shards)
    data = sw.tar(shards).decode(cls=int, txt=sw.text())
    it = sw.torch.IterableDataset(data, **LOADER)
    assert sorted(ids_of(DataLoader(it, batch_size=None, num_workers=1))) == KEPT
    assert sorted(i for ids in sw.torch.BatchSampler(data, **LOADER) for i in ids) == KEPT
    assert sorted(sw.torch.DistributedSampler(data, 1, 0)) == KEPT


def test_parts_and_mixtures_know_what_was_removed(shards: list[str]) -> None:
    redact(shards)
    data = sw.tar(shards).decode(cls=int)
    part = data.subset([22, 3, 10, 5])
    assert part.removed.tolist() == [0, 2]
    assert [sample["cls"] for sample in part] == [3, 5]
    assert sw.concat([part, data]).removed.tolist() == [0, 2, 6, 14, 26]
    mixture = sw.mix({"a": (part, 0.5), "b": (data, 0.5)}, until="all")
    assert mixture.removed.tolist() == [0, 2, 6, 14, 26]
    loader = sw.DataLoader(mixture, batch_size=4, executor="inline", remainder="uneven")
    assert {*ids_of(loader)} == {*range(27)} - {0, 2, 6, 14, 26}
    assert data.column("cls", progress=False).tolist() == [
        0 if i in GONE else i % 10 for i in range(23)
    ]
    assert data.column("txt", progress=False)[[2, 3]].tolist() == ["", sample_key(3)]


def test_packs_lose_what_was_removed_of_them(tmp_path: Path) -> None:
    members = [(f"{i:03d}.npy", _npy(np.full(3, i + 1))) for i in range(20)]
    path = write_tar(tmp_path / "tokens.tar", members)
    data = sw.tar(path).decode(npy=sw.npy())
    packs = sw.pack(data, length=7, lengths=[3] * 20, fields="npy", progress=False)
    redaction.redact([path], ["004"], IndexStore())
    data = sw.tar(path).decode(npy=sw.npy())
    again = sw.pack(data, length=7, lengths=[3] * 20, fields="npy", progress=False)
    assert again.fingerprint == packs.fingerprint
    assert len(again.removed) == 1
    loader = sw.DataLoader(again, batch_size=2, executor="inline", output="numpy")
    tokens = np.concatenate([batch["npy"].ravel() for batch in loader])
    assert 5 not in tokens
    assert len(np.unique(tokens[tokens > 0])) == 18


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array.astype(np.int64))
    return file.getvalue()


def killed(action: Callable[[], object], module: Any, name: str, call: int) -> None:
    """Run an action in a fork that dies by SIGKILL where a function is called for that time."""
    pid = os.fork()
    if pid == 0:
        function, calls = getattr(module, name), iter(range(100))

        def die(*args: Any, **options: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        setattr(module, name, die)
        action()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("module", "name", "call", "are_removed", "is_left"),
    [
        (redaction, "_publish", 0, False, False),
        (redaction, "_edit_file", 0, True, True),
        (redaction.shutil, "copymode", 0, True, True),
        (redaction, "_publish", 1, True, False),
        (redaction, "_edit_file", 1, True, True),
    ],
)
def test_a_killed_run_shows_no_part_of_a_sample_and_running_again_ends_it(
    shards: list[str], module: Any, name: str, call: int, are_removed: bool, is_left: bool
) -> None:
    killed(lambda: redact(shards), module, name, call)
    data = sw.tar(shards)
    removed = data.removed.tolist()
    assert removed == GONE[: len(removed)]
    assert bool(removed) == are_removed
    old = make_shards(Path(shards[0]).parent / "old", SIZES)
    assert [*data] == [sample for i, sample in enumerate(sw.tar(old)) if i not in removed]
    assert ("the sample was removed, and its payload is not zeros" in problems(shards)) == is_left
    redact(shards)
    assert problems(shards) == []
    assert sw.tar(shards).removed.tolist() == GONE
    names = {path.name for path in Path(shards[0]).parent.iterdir() if path.is_file()}
    assert not [name for name in names if name.endswith(".tmp")]


def test_verify_finds_payloads_that_came_back(shards: list[str]) -> None:
    original = shutil.copy2(shards[0], f"{shards[0]}.copy")
    redact(shards)
    shutil.copy2(original, shards[0])
    found = document("verify", *shards, exit_code=1)["problems"]
    assert {(each["key"], each["field"]) for each in found} == {
        (sample_key(2), field) for field in ("bin", "cls", "txt")
    }
    assert "run `shardwise redact` with its key again" in found[0]["hint"]


def test_digests_of_the_zeros_are_kept(shards: list[str]) -> None:
    build_indexes(shards, digests=True)
    redact(shards)
    assert problems(shards) == []
    assert sorted(ids_of(sw.DataLoader(sw.tar(shards), **LOADER, executor="inline"))) == KEPT


def test_the_shard_itself_says_what_was_removed(shards: list[str], tmp_path: Path) -> None:
    other, whole = str(tmp_path / "index"), Path(shards[0]).read_bytes()
    build_indexes(shards, index=other)
    redact(shards, GONE[:1])
    with pytest.raises(StaleIndexError, match="its headers are others"):
        len(sw.tar(shards, index=other))
    for path in shards:
        Path(f"{path}.swi").unlink()
    assert sw.tar(shards).removed.tolist() == GONE[:1]
    build_indexes(shards, index=other)
    assert sw.tar(shards, index=other).removed.tolist() == GONE[:1]
    redact(shards, [0, 22])
    with pytest.raises(StaleIndexError, match="its headers are others"):
        len(sw.tar(shards, index=other))
    assert [sample["__key__"] for sample in wds.WebDataset(shards, shardshuffle=False)] == [
        sample_key(i) for i in range(23) if i not in (0, 2, 22)
    ]
    # A copy of before, over the shard: not what the index says, and not read either.
    Path(shards[0]).write_bytes(whole)
    assert sw.tar(shards).removed.tolist() == [0, 2, 22]


def test_indexes_that_are_made_again_keep_what_was_removed(shards: list[str]) -> None:
    redact(shards)
    for path in shards:
        os.utime(path, ns=(1, 1))
    build_indexes(shards, force=True, digests=True)
    assert sw.tar(shards).removed.tolist() == GONE
    assert problems(shards) == []


def test_manifests_are_written_again_and_old_ones_are_refused(
    shards: list[str], tmp_path: Path
) -> None:
    manifest, old = str(tmp_path / "data" / "all.swm"), str(tmp_path / "data" / "old.swm")
    for path in (manifest, old):
        run("index", "--merge", path, *shards)
    keys = tmp_path / "keys.txt"
    keys.write_text("\n".join(map(sample_key, GONE)) + "\n\n")
    assert document("redact", manifest, "--keys", keys)["num_removed"] == 3
    data = sw.tar(manifest)
    assert data.removed.tolist() == GONE
    assert sorted(ids_of(sw.DataLoader(data, **LOADER, executor="inline"))) == KEPT
    with pytest.raises(StaleIndexError, match="1 samples were removed since"):
        sw.tar(old, check="all")
    assert document("redact", manifest, "--keys", keys)["num_removed"] == 0
    assert "0 in 3 shards" in run("redact", manifest, "--keys", keys).stdout


def test_wrong_keys_remove_nothing(shards: list[str], tmp_path: Path) -> None:
    keys, before = tmp_path / "keys.txt", [Path(path).read_bytes() for path in shards]
    keys.write_text(f"{sample_key(1)}\nother\n")
    result = run("redact", *shards, "--keys", keys, exit_code=2)
    assert "no shard has 1 of 2 keys, such as 'other'" in " ".join(result.stderr.split())
    keys.write_text("\n")
    assert document("redact", *shards, "--keys", keys) == {"num_removed": 0, "shards": []}
    run("redact", *shards, "--keys", tmp_path / "none.txt", exit_code=1)
    assert [Path(path).read_bytes() for path in shards] == before
    assert not len(sw.tar(shards).removed)


def test_payloads_of_other_samples_stay(tmp_path: Path) -> None:
    path = str(make_linked(tmp_path, "gnu"))
    key = sw.tar(path)[0]["__key__"]
    with pytest.raises(DataError, match="by a hard link another sample has this payload"):
        redaction.redact([path], [key], IndexStore())
    assert not len(sw.tar(path).removed)


def test_a_file_with_two_names_is_refused(shards: list[str]) -> None:
    os.link(shards[0], f"{shards[0]}.second")
    with pytest.raises(StorageError, match="has 2 names"):
        redact(shards[:1], [2])
    Path(f"{shards[0]}.second").unlink()
    redact(shards[:1], [2])
    assert problems(shards[:1]) == []


def test_a_whole_shard_may_be_removed(shards: list[str]) -> None:
    redact(shards, [*range(9, 13)])
    assert len([*sw.tar(shards)]) == 19
    assert [*sw.tar(shards[1])] == []
    with pytest.raises(ValueError, match=r"no batch to give: removed were 4 samples .* of 4"):
        sw.DataLoader(sw.tar(shards[1]), batch_size=2, remainder="uneven")


def test_objects_are_replaced_if_they_are_the_version_that_was_read(
    azure: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    [path] = make_shards(tmp_path / "data", [9])
    url = azure.put("part-000.tar", Path(path).read_bytes())
    options = StorageOptions.of(azure.config)
    store = IndexStore(None, options)
    build_indexes(url, options=options)
    assert redaction.redact([url], [sample_key(2)], store) == {url: 1}
    assert verify_shard(url, options=options).problems == []
    data = sw.tar(url, storage=azure.config)
    assert data.removed.tolist() == [2]
    assert [sample["__key__"] for sample in data] == [sample_key(i) for i in range(9) if i != 2]

    read = redaction.read_whole

    def replaced(url: str, **more: Any) -> bytes:
        found = read(url, **more)
        azure.put("part-000.tar", Path(path).read_bytes())  # another writer
        return found

    monkeypatch.setattr(redaction, "read_whole", replaced)
    with pytest.raises(StaleIndexError, match="was replaced while it was in use"):
        redaction.redact([url], [sample_key(3)], store)
    assert read(url, options=options) == Path(path).read_bytes()


def test_windows_end_at_removed_rows(shards: list[str]) -> None:
    redact(shards)
    data = sw.tar(shards).decode(cls=lambda _: 1)
    windows = sw.windows(data, by="cls", deltas={"txt": [-1, 1]}, fps=1)
    assert windows.removed.tolist() == GONE
    masks = {sample["__key__"]: sample["txt.mask"].tolist() for sample in windows}
    assert [*masks] == [sample_key(row) for row in KEPT]
    for row in KEPT:
        assert masks[sample_key(row)] == [row - 1 in KEPT, row + 1 in KEPT]


def test_filters_and_show_pass_over_removed_samples(shards: list[str]) -> None:
    redact(shards)
    data = sw.tar(shards)
    chosen = data.filter(lambda columns: [True] * len(columns["txt"]), columns=["txt"])
    assert chosen.fingerprint == data.subset(range(len(data))).fingerprint
    assert chosen.removed.tolist() == GONE
    none = data.filter(lambda columns: [False] * len(columns["txt"]), columns=["txt"])
    assert list(none) == []
    assert [cell.key for cell in sw.show(data, num_samples=4).cells] == [
        sample_key(row) for row in KEPT[:4]
    ]
    assert "DataError" not in data._repr_html_()
