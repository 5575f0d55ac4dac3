import os
from pathlib import Path

import pytest

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.storage import expand
from shardwise.storage.url_patterns import refuse_repeats


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.tar", "a.tar", "c.tar", "notes.txt", ".d.tar", "a.tar.swi", "sub/e.tar"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"")
    return tmp_path


def test_a_directory_that_was_removed_is_told_of(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StorageError, match=r"current directory was removed, and 'a.tar'"):
        expand("a.tar")
    assert expand("/a.tar") == ["/a.tar"]


def test_a_path_with_a_nul_is_refused():
    with pytest.raises(ValueError, match="holds a NUL"):
        expand("a\0b.tar")


def test_a_plain_name_is_kept_as_it_is_written_and_need_not_exist():
    assert expand("./no/such/x.tar") == ["./no/such/x.tar"]
    assert expand("s3://bucket//x.tar") == ["s3://bucket//x.tar"]


def test_braces_expand_in_local_and_remote_names_and_inside_lists():
    assert expand(["x-{00..01}.tar", "gs://b/{a,b}.tar"]) == [
        "x-00.tar",
        "x-01.tar",
        "gs://b/a.tar",
        "gs://b/b.tar",
    ]


def test_double_colons_are_part_of_a_name():
    assert expand("a.tar::b.tar") == ["a.tar::b.tar"]


def test_a_glob_gives_sorted_files_without_hidden_ones_directories_and_index_files(shards):
    assert expand("*.tar") == ["a.tar", "b.tar", "c.tar"]
    assert expand("[ab].tar") == ["a.tar", "b.tar"]
    assert expand("?.tar") == ["a.tar", "b.tar", "c.tar"]
    assert expand("**/e.tar") == ["sub/e.tar"]
    assert expand("a*") == ["a.tar"]
    assert expand(f"{shards}/*.tar") == [f"{shards}/{n}.tar" for n in "abc"]


def test_matches_and_listings_are_sorted_whatever_the_order_of_the_directory(tmp_path):
    names = [f"{i * 37 % 101:03d}.tar" for i in range(101)]
    for name in names:
        (tmp_path / name).touch()
    wanted = [str(tmp_path / name) for name in sorted(names)]
    assert expand(tmp_path) == wanted
    assert expand(f"{tmp_path}/*.tar") == wanted


def test_a_glob_leaves_out_indexes_and_manifests_that_lie_beside_the_shards(tmp_path):
    for name in ("a.tar", "a.tar.swi", "train.swm"):
        (tmp_path / name).touch()
    assert expand(f"{tmp_path}/*") == [f"{tmp_path}/a.tar"]
    assert expand(f"{tmp_path}/*.swm") == [f"{tmp_path}/train.swm"]


def test_globs_work_inside_braces(shards):
    assert expand("{sub/*,[bc]}.tar") == ["sub/e.tar", "b.tar", "c.tar"]


def test_a_directory_stands_for_its_own_shards(shards):
    assert expand(".") == ["./a.tar", "./b.tar", "./c.tar"]
    assert expand(shards) == [str(shards / n) for n in ("a.tar", "b.tar", "c.tar")]
    assert expand("{sub,.}") == ["sub/e.tar", "./a.tar", "./b.tar", "./c.tar"]
    assert expand("sub/", suffixes=(".tar", ".tgz")) == ["sub/e.tar"]


def test_a_directory_without_a_shard_says_what_was_looked_for(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "x.zip").touch()
    with pytest.raises(MissingShardError, match=r"no \*\.tar in the directory .*x\.zip") as caught:
        expand(tmp_path / "deep")
    assert caught.value.url == str(tmp_path / "deep")
    with pytest.raises(FileNotFoundError, match=r"subdirectories are not searched.*\*\*/\*\.npy'"):
        expand(tmp_path, suffixes=(".npy", ".bin"))
    (tmp_path / "deep" / "x.zip").unlink()
    with pytest.raises(MissingShardError, match="it is empty"):
        expand(tmp_path / "deep")


def test_a_glob_that_matches_nothing_names_the_pattern_and_where_it_looked(shards):
    with pytest.raises(MissingShardError, match="no file matches") as caught:
        expand("z*.tar")
    assert "z*.tar" in str(caught.value)
    assert str(shards) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["w#1.tar", "q?.tar", "{0..3}.tar", "x[1].tar", "50%20.tar", "a::b"]
)
def test_a_name_that_exists_is_that_file_whatever_pattern_it_could_be(shards, name):
    Path(name).touch()
    assert expand(name) == [name]
    assert expand([name, "b.tar"]) == [name, "b.tar"]


@pytest.mark.parametrize(
    "again", ["a.tar", "./a.tar", "sub/../a.tar", "*.tar", "file:a.tar", "{a,b}.tar"]
)
def test_a_file_named_twice_is_refused_by_name(shards, again):
    with pytest.raises(ValueError, match=r"'[^']*a.tar' is named twice"):
        expand(["a.tar", again])


@pytest.mark.parametrize(
    "urls",
    [["sub", "linked"], ["sub/*.tar", "linked/*.tar"], "{sub,linked}", "{sub,linked}/e.tar",
     ["sub/e.tar", "soft.tar"], ["sub", "hard.tar"]],
)  # fmt: skip
def test_a_file_is_refused_under_two_names_wherever_they_stand(shards, urls):
    Path("linked").symlink_to("sub")
    Path("soft.tar").symlink_to("sub/e.tar")
    Path("hard.tar").hardlink_to("sub/e.tar")
    with pytest.raises(ValueError, match=r"tar' is named twice, once as 'sub/e\.tar'"):
        expand(urls)


@pytest.mark.parametrize("again", ["s3://b/./a/1.tar", "s3://b/././a/./1.tar"])
def test_dots_in_a_remote_url_are_another_spelling(again):
    with pytest.raises(ValueError, match="is named twice"):
        refuse_repeats(["s3://b/a/1.tar", again])


def test_double_slashes_are_another_spelling_in_an_index_alone():
    urls = ["s3://b/a/1.tar", "s3://b/a//1.tar"]
    refuse_repeats(urls)
    with pytest.raises(ValueError, match="is named twice"):
        refuse_repeats(urls, in_index=True)


def test_a_remote_url_named_twice_is_refused():
    with pytest.raises(ValueError, match=r"s3://b/1\.tar' is named twice"):
        expand(["s3://b/{0..3}.tar", "s3://b/1.tar"])


def test_file_urls_become_paths(shards):
    assert expand(f"file://{shards}/a.tar") == [f"{shards}/a.tar"]
    assert expand(f"file://localhost{shards}/*.tar") == [f"{shards}/{n}.tar" for n in "abc"]
    assert expand("file:sub/{x,y}.tar") == ["sub/x.tar", "sub/y.tar"]
    odd = shards / "o #?%1.tar"
    odd.touch()
    assert expand(odd.as_uri()) == [str(odd)]


def test_a_tilde_is_the_home_directory(shards, monkeypatch):
    monkeypatch.setenv("HOME", str(shards))
    assert expand("~/a.tar") == [f"{shards}/a.tar"]
    assert expand("~/*.tar") == [f"{shards}/{n}.tar" for n in "abc"]


def test_pipes_are_kept_as_urls_and_run_nowhere():
    assert expand("pipe:touch ran; cat {0..1}.tar") == [
        "pipe:touch ran; cat 0.tar",
        "pipe:touch ran; cat 1.tar",
    ]


@pytest.mark.parametrize("nothing", [[], (), "", ["a.tar", ""]])
def test_naming_nothing_is_refused(nothing):
    with pytest.raises(ValueError, match="empty"):
        expand(nothing)


@pytest.mark.parametrize("wrong", [3, None, b"a.tar", [3], [b"a.tar"], {"a.tar": 1}])
def test_what_is_no_name_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="urls must be"):
        expand(wrong)


def test_plain_shard_names_cost_no_look_at_the_file_system(monkeypatch):
    looked = []
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: looked.append(path) or real(path))
    assert len(expand("/no/such/{0000..9999}.tar")) == 10_000
    assert not looked
