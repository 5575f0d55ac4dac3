import signal

import pytest

from shardwise.storage import atomic_write
from tests.support.forks import in_child
from tests.support.python_code import run_code


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def write_and_raise(target, error):
    with atomic_write(target) as file:
        file.write(b"new")
        raise error


def test_a_file_appears_whole_at_the_end_of_the_block(tmp_path):
    target = tmp_path / "x.bin"
    with atomic_write(target) as file:
        file.write(b"half")
        file.flush()
        assert not target.exists()
        (temporary,) = tmp_path.iterdir()
        assert temporary.name.startswith(".x.bin.")
        file.write(b" whole")
    assert target.read_bytes() == b"half whole"
    assert names_in(tmp_path) == ["x.bin"]


def test_a_directory_that_is_missing_is_named_and_not_the_temporary_file(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"no such directory: '.*/none'$"),
        atomic_write(tmp_path / "none" / "x"),
    ):
        pass


def test_text_is_utf8(tmp_path):
    with atomic_write(tmp_path / "x.txt", "w") as file:
        file.write("ä\n")
    assert (tmp_path / "x.txt").read_bytes() == b"\xc3\xa4\n"


def test_other_modes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="mode='ab'"):
        with atomic_write(tmp_path / "x", "ab"):
            pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_leaves_what_was_there_before(tmp_path, error):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    with pytest.raises(error):
        write_and_raise(target, error)
    assert target.read_bytes() == b"old"
    assert names_in(tmp_path) == ["x"]


def test_a_failing_rename_leaves_no_temporary_file(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="directory"):
        with atomic_write(tmp_path / "x") as file:
            file.write(b"new")
    assert names_in(tmp_path) == ["x"]


def test_an_existing_target_is_refused_at_the_beginning_and_at_the_end(tmp_path):
    target = tmp_path / "x"
    with pytest.raises(FileExistsError, match="overwrite=True"):
        with atomic_write(target, overwrite=False):
            target.write_bytes(b"another's")
    target_before = target.read_bytes()
    with pytest.raises(FileExistsError, match="exists already"):
        with atomic_write(target, overwrite=False):
            pytest.fail("the block ran")
    assert target.read_bytes() == target_before == b"another's"
    assert names_in(tmp_path) == ["x"]


def test_the_file_has_the_modes_that_an_ordinary_one_has(tmp_path):
    with open(tmp_path / "ordinary", "wb"):
        pass
    with atomic_write(tmp_path / "ours"):
        pass
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_the_longest_name_that_a_file_may_have_works(tmp_path):
    target = tmp_path / ("ä" * 127)
    with atomic_write(target) as file:
        file.write(b"1")
    assert target.read_bytes() == b"1"


def test_a_forked_child_that_leaves_the_block_does_not_take_the_file_away(tmp_path):
    target = tmp_path / "x"
    block = atomic_write(target, buffering=0)
    file = block.__enter__()
    file.write(b"1")
    in_child(lambda: block.__exit__(SystemExit, SystemExit(), None))
    block.__exit__(None, None, None)
    assert target.read_bytes() == b"1"


KILLED = """
import os, signal, sys
from shardwise.storage import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"x" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_the_old_file_and_only_a_hidden_one(tmp_path):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    assert run_code(KILLED, target).returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"
    left = names_in(tmp_path)
    assert left[1] == "x"
    assert left[0].startswith(".x.")
    assert left[0].endswith(".tmp")
