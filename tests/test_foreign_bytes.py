"""What parsers raise of foreign bytes becomes an error of the library, and nothing else does."""

import pytest

from shardwise.base.errors import DataError, StorageError
from shardwise.base.foreign_bytes import as_data_error


class PanicException(BaseException):
    """A panic in Rust."""


@pytest.mark.parametrize(
    "raised",
    [ValueError("x"), SystemError("x"), RecursionError("x"), AssertionError("x"),
     PanicException("x"), type("ArrowMemoryError", (MemoryError,), {})("x")],
)  # fmt: skip
def test_an_error_of_a_parser_is_a_data_error_that_names_the_file(raised):
    with (
        pytest.raises(DataError, match=r"it is damaged: x \(url 'a', offset 3\)") as caught,
        as_data_error("it is damaged", url="a", offset=3),
    ):
        raise raised
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), MemoryError(), StorageError("down")])
def test_what_is_no_fault_of_the_bytes_passes(raised):
    with pytest.raises(type(raised)) as caught, as_data_error("it is damaged", url="a"):
        raise raised
    assert caught.value is raised


def test_an_error_of_the_library_without_a_file_gets_one():
    for own, wanted in ((None, "a"), ("b", "b")):
        with pytest.raises(DataError) as caught, as_data_error("it is damaged", url="a"):
            raise DataError("two columns", url=own)
        assert (caught.value.url, caught.value.reason) == (wanted, "two columns")
