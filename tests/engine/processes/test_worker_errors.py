"""An error in a user's function: its frames first, once, and no row is run twice."""

from __future__ import annotations

import traceback

import pytest

from shardwise import DataLoader
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from tests.support.memory_source import MemorySource, numbered_samples

# One piece is made at a time.
EXECUTORS = ({"executor": "inline"}, {"num_threads": 1}, {"num_workers": 1})


class Unspeakable(Exception):
    def __str__(self):
        raise TypeError("no words")


def fails_at_six(log, error):
    """A function of a sample or of bytes that notes each call."""

    def deeper(number):
        if number == 6:
            raise error

    def fails(value):
        number = value["number"] if isinstance(value, dict) else int(bytes(value))
        with open(log, "a") as file:
            file.write(f"{number}\n")
        deeper(number)
        return value

    return fails


def caught(dataset, kind=DataError, **options):
    with (
        DataLoader(
            dataset, batch_size=16, output="numpy", rank=0, world_size=1, **options
        ) as loader,
        pytest.raises(kind) as found,
    ):
        list(loader)
    return found.value


def shown(error):
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("place", ["map", "decode", "collate"])
def test_the_users_frames_are_shown_once_and_before_the_librarys(place, options, tmp_path):
    log = tmp_path / "log"
    function = fails_at_six(log, ZeroDivisionError("six"))
    data = Dataset(MemorySource(numbered_samples(16)))
    if place == "decode":
        error = caught(data.decode(cls=function, txt=str), **options)
    elif place == "map":
        data = data.decode(cls=int).map(lambda s: {"number": s["cls"]}).map(function)
        error = caught(data, **options)
    else:
        data = data.decode(cls=int).map(lambda s: {"number": s["cls"]})
        collate = lambda samples: [function(sample) for sample in samples]  # noqa: E731
        error = caught(data, ZeroDivisionError, collate=collate, **options)
    assert log.read_text().split() == [str(number) for number in range(7)]
    text = shown(error)
    assert text.count(", in fails\n") == text.count(", in deeper\n") == 1
    if place != "collate":
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert (error.key, error.index, error.url) == ("key-00006", 6, "memory://set/000.mem")
        assert text.index(", in deeper") < text.index("/shardwise/")
        assert text.count("the direct cause") == 1
        assert "During handling" not in text
        assert text.count("\n") < 30, text


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_an_exception_that_can_not_be_put_in_words_is_told_of_all_the_same(options, tmp_path):
    function = fails_at_six(tmp_path / "log", Unspeakable())
    data = Dataset(MemorySource(numbered_samples(16))).decode(cls=function)
    error = caught(data, **options)
    assert "fails raised Unspeakable: <its message can't be had" in str(error)
    assert ", in deeper\n" in shown(error)


def test_a_single_sample_runs_its_decoder_once(tmp_path):
    log = tmp_path / "log"
    source = MemorySource(numbered_samples(16))
    source.read_sample = lambda index, fields: ("key-00006", [b"6"])
    data = Dataset(source).decode(cls=fails_at_six(log, KeyError("x"))).select("cls")
    with pytest.raises(DataError, match="fails raised KeyError") as found:
        data[6]
    assert (found.value.key, found.value.field, found.value.index) == ("key-00006", "cls", 6)
    assert log.read_text() == "6\n"


def test_of_several_errors_that_of_the_first_row_is_raised(tmp_path):
    """Whichever function raises it, and whatever the pieces are."""
    source = MemorySource(numbered_samples(64))
    data = Dataset(source).decode(
        txt=lambda value: 1 // (bytes(value) != b"text 9"),
        cls=lambda value: 1 // (int(bytes(value)) != 7),
    )
    mapped = Dataset(source).decode(cls=int, txt=lambda value: 1 // (bytes(value) != b"text 9"))
    mapped = mapped.map(lambda sample: {"x": 1 // (sample["cls"] != 8)})
    for options in (*EXECUTORS, {"num_threads": 3}):
        assert caught(data, **options).index == 7
        assert caught(mapped, **options).index == 8
    source.fail_at(3)
    for options in EXECUTORS:
        assert caught(mapped, **options).index == 3
