"""Memory files that are mapped without a descriptor."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from shardwise.base.errors import StorageError
from shardwise.engine.processes.shared_memory import anonymous_file, map_without_file


def descriptors_of(file):
    """The descriptors of a file: others of the process are those of other tests' threads, too."""
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.fstat(file)):
                found.append(descriptor)
    return found


def test_the_memory_lives_as_long_as_an_array_over_it_and_needs_no_descriptor():
    file = anonymous_file(8192)
    inode = f" {os.fstat(file).st_ino} "
    memory, other = map_without_file(file), map_without_file(file)
    assert descriptors_of(file) == [file]
    os.close(file)
    part = memory[4096:]
    del memory
    part[:] = 7
    assert (other[4096:] == 7).all()
    assert not other[:4096].any()
    del part, other
    with open("/proc/self/maps") as maps:
        assert not [line for line in maps if inode in line and "memfd:shardwise" in line]


def test_a_file_that_cannot_be_mapped_is_an_error():
    with pytest.raises(StorageError, match="can't map a memory file of 0 bytes"):
        map_without_file(anonymous_file(0))
