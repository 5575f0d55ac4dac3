"""What WebDataset gets wrong, and this package must not: one test each."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import warnings
from itertools import islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import shardwise.compat.webdataset as wds
from shardwise.base.errors import DataError
from tests.support.tars import make_shards, payload, sample_key, write_tar

key = itemgetter("__key__")


# Ranks without RANK in spawned workers, and no nodesplitter: tests/compat/test_ranks_and_workers.py


def test_equalised_ranks_take_equal_steps_and_none_waits_for_another(urls, as_reader):
    plain, equal = set(), set()
    for rank in range(4):
        for worker in range(2):
            as_reader(rank, 4, worker, 2)
            plain.add(len(list(wds.WebDataset(urls).batched(4, partial=False))))
            equal.add(len(list(wds.WebDataset(urls).batched(4, partial=False).with_epoch(6))))
    # Whole shards are divided, so without a size the ranks differ.
    assert len(plain) > 1
    assert equal == {3}


def test_ddp_equalize_gives_each_rank_its_equal_share(urls, as_reader):
    for rank in range(4):
        as_reader(rank, 4)
        with pytest.warns(DeprecationWarning, match="with_epoch"):
            dataset = wds.WebDataset(urls).ddp_equalize(105)
        assert len(dataset) == len(list(dataset)) == 26


def damaged(path: Path, change) -> str:
    members = [(f"{sample_key(g)}.{f}", payload(g, f)) for g in range(20) for f in ("cls", "txt")]
    write_tar(path, members)
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data))
    return str(path)


def flip(data: bytearray) -> bytearray:
    # The header of the 11th member, the sixth sample's cls: 1,024 bytes a member.
    data[10 * 1024 + 20] ^= 1
    return data


def test_a_damaged_header_is_an_error_with_url_and_offset(tmp_path):
    url = damaged(tmp_path / "a.tar", flip)
    samples = iter(wds.WebDataset(url))
    assert [key(sample) for sample in islice(samples, 4)] == [sample_key(g) for g in range(4)]
    with pytest.raises(DataError, match="checksum does not hold") as caught:
        list(samples)
    assert (caught.value.url, caught.value.offset) == (url, 10 * 1024)
    assert isinstance(caught.value, tarfile.ReadError)


def test_of_a_damaged_shard_what_is_whole_comes_out_and_the_next_shard_follows(tmp_path):
    first = damaged(tmp_path / "a.tar", flip)
    (second,) = make_shards(tmp_path / "b", [3], start=50)
    seen = []

    def handler(error):
        seen.append(error)
        return True

    keys = [key(sample) for sample in wds.WebDataset([first, second], handler=handler)]
    assert keys == [sample_key(g) for g in (*range(4), 50, 51, 52)]
    assert [error.offset for error in seen] == [10 * 1024]


def test_a_shard_cut_between_members_gives_no_half_sample(tmp_path):
    url = damaged(tmp_path / "a.tar", lambda data: data[: 9 * 1024])
    samples = iter(wds.WebDataset(url))
    assert [key(sample) for sample in islice(samples, 4)] == [sample_key(g) for g in range(4)]
    with pytest.raises(DataError, match=r"lacks \['txt'\]") as caught:
        list(samples)
    assert (caught.value.url, caught.value.key) == (url, sample_key(4))


@pytest.mark.parametrize("num_bytes", [9 * 1024 + 100, 9 * 1024 + 520, 8 * 1024 + 518])
def test_a_shard_cut_inside_a_member_gives_no_half_sample(tmp_path, num_bytes):
    url = damaged(tmp_path / "a.tar", lambda data: data[:num_bytes])
    with pytest.raises(DataError, match="cut short"):
        list(wds.WebDataset(url))
    keys = [key(sample) for sample in wds.WebDataset(url, handler=wds.ignore_and_continue)]
    assert keys == [sample_key(g) for g in range(4)]
    opened = wds.tariterators.url_opener([{"url": url}])
    members = wds.tariterators.tar_file_expander(opened, handler=wds.ignore_and_continue)
    grouped = wds.tariterators.group_by_keys(members, handler=wds.ignore_and_continue)
    assert [key(sample) for sample in grouped] == keys


def test_a_handler_that_stops_at_the_last_sample_of_a_shard_ends_the_grouping():
    names = [("a.tar", ("a.x", "b.x", "a.y")), ("b.tar", ("c.x",))]
    members = [{"fname": n, "data": b"", "__url__": url} for url, each in names for n in each]
    grouped = wds.tariterators.group_by_keys(members, handler=wds.ignore_and_stop)
    assert [sample["__key__"] for sample in grouped] == ["a", "b"]


@pytest.mark.parametrize("doubled", [0, 50, 99])
def test_a_doubled_member_costs_that_member_only_if_a_handler_goes_on(tmp_path, doubled):
    members = [(f"{i:03d}.{field}", b"1") for i in range(100) for field in ("cls", "txt")]
    members.insert(2 * doubled + 2, (f"{doubled:03d}.cls", b"2"))
    url = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(DataError, match="two members for one field"):
        list(wds.WebDataset(url))
    for handler in (wds.ignore_and_continue, lambda error: True):
        samples = list(wds.WebDataset(url, handler=handler))
        assert [key(sample) for sample in samples] == [f"{i:03d}" for i in range(100)]
        assert samples[doubled]["cls"] == b"1"
    stopped = list(wds.WebDataset(url, handler=wds.ignore_and_stop))
    assert len(stopped) == doubled + 1


def test_parts_of_a_sample_that_stand_apart_cost_no_other_sample(tmp_path):
    members = [(f"{i}.{field}", b"1") for i in range(9) for field in ("cls", "txt")]
    url = write_tar(tmp_path / "a.tar", [*members[:10], ("1.jpg", b"1"), *members[10:]])
    samples = list(wds.WebDataset(url, handler=wds.ignore_and_continue))
    assert [key(sample) for sample in samples] == list("012345678")
    assert all("jpg" not in sample for sample in samples)


def test_a_reader_whose_shards_were_all_left_out_hears_of_the_handler(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="handler= left all of them out"):
        list(wds.WebDataset(str(tmp_path / "a.tar"), handler=wds.ignore_and_continue))


def test_a_directory_is_its_shards(tmp_path):
    make_shards(tmp_path / "train", [3, 4])
    for url in (f"{tmp_path}/train/", f"{tmp_path}/train", tmp_path / "train"):
        assert len(list(wds.WebDataset(url))) == 7
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == [
        "part-000.tar",
        "part-001.tar",
    ]


def test_lists_hold_patterns_globs_directories_and_paths(tmp_path, monkeypatch):
    urls = make_shards(tmp_path, [1, 2, 3])
    monkeypatch.setenv("WDS_ROOT", str(tmp_path))
    for given in (
        f"{tmp_path}/part-{{000..002}}.tar",
        f"{tmp_path}/part-*.tar",
        [f"{tmp_path}/part-{{000..001}}.tar", Path(urls[2])],
        [tmp_path],
        tuple(urls),
        iter(urls),
        "::".join(urls),
        "${ROOT}/part-{000..002}.tar",
    ):
        assert len(list(wds.WebDataset(given))) == 6, given
    assert wds.shardlists.expand_urls(["a.tar", f"{tmp_path}/b{{0..1}}.tar"])[1:] == [
        f"{tmp_path}/b0.tar",
        f"{tmp_path}/b1.tar",
    ]
    with pytest.raises(ValueError, match="WDS_NOWHERE"):
        wds.WebDataset("${NOWHERE}/a.tar")
    with pytest.raises(FileNotFoundError):
        wds.WebDataset(f"{tmp_path}/none-*.tar")
    with pytest.raises(TypeError, match="each shard"):
        wds.WebDataset([3])


def derived(url):
    """Other fields of a shard's samples, from a shard of their own."""
    return wds.WebDataset(wds.SimpleShardList([url.replace("part", "more")])).decode()


def merge_in(samples):
    url = others = None
    for sample in samples:
        if sample["__url__"] != url:
            url, others = sample["__url__"], iter(derived(sample["__url__"]))
        other = next(others)
        assert other["__key__"] == sample["__key__"]
        yield other | sample


def test_a_shard_list_of_one_is_read_whole_in_each_worker(tmp_path):
    urls = make_shards(tmp_path, [3, 4, 5])
    for url in urls:
        text = [(f"{s['__key__']}.json", b'"text"') for s in wds.WebDataset(url)]
        write_tar(Path(url.replace("part", "more")), text)
    dataset = wds.WebDataset(urls).compose(merge_in, wds.slice(9), wds.batched(2), wds.unbatched())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Said at a fork, where another test has imported it.
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
        samples = list(loader)
    assert sorted(key(sample) for sample in samples) == [sample_key(g) for g in range(12)]
    assert {sample["json"] for sample in samples} == {"text"}


def test_a_shell_keeps_its_own_variables(tmp_path, monkeypatch):
    make_shards(tmp_path, [3])
    monkeypatch.setenv("SHARD_DIRECTORY", str(tmp_path))
    assert len(list(wds.WebDataset("pipe:cat ${SHARD_DIRECTORY}/part-000.tar"))) == 3


def test_a_pipeline_with_a_length_pickles(tmp_path):
    dataset = wds.WebDataset(make_shards(tmp_path, [4])).map(key).with_length(4, silent=True)
    there = pickle.loads(pickle.dumps(dataset))
    assert len(there) == len(list(there)) == 4


@pytest.mark.long
def test_a_pipeline_with_a_length_goes_to_spawned_workers(tmp_path):
    dataset = wds.WebDataset(make_shards(tmp_path, [4])).map(key).with_length(4, silent=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert len(loader) == len(list(loader)) == 4


def test_a_compressed_shard_that_is_cut_is_noticed(tmp_path):
    (url,) = make_shards(tmp_path, [50], fields=("bin", "cls"))
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(Path(url).read_bytes())[:-100])
    with pytest.raises(DataError, match="cut short"):
        list(wds.WebDataset(str(packed)))


@pytest.mark.parametrize("kind", ["gnu", "pax", "ustar"])
def test_long_names_are_read_whole(tmp_path, kind):
    stem = "a" * 80 + "/" + "b" * 90
    members = [(f"{stem}{i}.{field}", field.encode()) for i in range(3) for field in ("cls", "txt")]
    url = write_tar(tmp_path / "a.tar", members, format=kind)
    assert [key(sample) for sample in wds.WebDataset(url)] == [f"{stem}{i}" for i in range(3)]


def test_batches_with_dicts_are_taken_apart():
    batch = {"x": np.arange(3), "about": {"id": [4, 5, 6]}}
    rows = list(wds.filters._unbatched([batch]))
    assert rows == [{"x": i, "about": {"id": 4 + i}} for i in range(3)]


def test_listed_leaves_out_a_part_of_a_list_if_it_is_told_to(tmp_path):
    dataset = wds.WebDataset(make_shards(tmp_path, [7])).map(key)
    assert [len(x) for x in dataset.listed(3)] == [3, 3, 1]
    assert [len(x) for x in dataset.listed(3, partial=False)] == [3, 3]


def test_no_warning_for_what_is_right(tmp_path):
    urls = make_shards(tmp_path, [4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(wds.WebDataset(urls, shardshuffle=True))) == 4
        assert len(list(wds.WebDataset(urls))) == 4


def test_a_decorated_stage_pickles():
    stage = twice(3)
    assert list(pickle.loads(pickle.dumps(stage))([1, 2])) == [1, 1, 1, 2, 2, 2]


@wds.pipelinefilter
def twice(source, times=2):
    for item in source:
        yield from [item] * times


def test_an_unknown_format_is_no_tar(tmp_path):
    for data, message in ((b"", "empty file"), (b"x" * 5000, "not a tar"), (b"abc", "cut short")):
        (tmp_path / "a.tar").write_bytes(data)
        with pytest.raises(tarfile.ReadError, match=message):
            list(wds.WebDataset(str(tmp_path / "a.tar")))


def test_two_tars_in_one_file_are_refused(tmp_path):
    first, second = make_shards(tmp_path, [2, 2])
    (tmp_path / "both.tar").write_bytes(Path(first).read_bytes() + Path(second).read_bytes())
    with pytest.raises(DataError, match="two tars"):
        list(wds.WebDataset(str(tmp_path / "both.tar")))


def test_a_stream_in_small_pieces_gives_the_same_samples(tmp_path):
    class Slow(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 777) if size >= 0 else 777)

        read1 = read

    (url,) = make_shards(tmp_path, [30], fields=("bin", "cls", "jpg"))
    shards = [{"url": url, "stream": Slow(Path(url).read_bytes())}]
    assert list(wds.tariterators.expand_samples(shards)) == [
        {k: v for k, v in sample.items() if k != "__local_path__"} for sample in wds.WebDataset(url)
    ]


def test_a_program_says_which_names_are_not_for_samples(tmp_path):
    names = ["tmp/a.txt", "b.txt", "__c__", "__d__/e.txt"]
    path = Path(write_tar(tmp_path / "0.tar", [(name, b"") for name in names]))
    for skip_meta, left in (
        (r"tmp/", [1, 3]),
        (None, [0, 1, 3]),
        (wds.tariterators.SKIPPED, [0, 1]),
    ):
        with path.open("rb") as file:
            found = wds.tariterators.tar_file_iterator(file, skip_meta)
            assert [each["fname"] for each in found] == [names[place] for place in left]
