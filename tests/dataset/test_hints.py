"""What people bring from other libraries is answered with the lines to write here."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.arguments import suggest_names
from shardwise.base.hints import ARGUMENTS, CLASSES, METHODS
from tests.support.memory_source import MemorySource, numbered_samples

PICTURES = sw.wrap([{"jpg": n, "cls": n} for n in range(200)])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_other_libraries_is_answered_with_lines_that_run(name):
    with pytest.raises(AttributeError, match=rf"no {name}\(\)") as caught:
        getattr(PICTURES, name)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 2
    names = {"np": np, "sw": sw, "ds": PICTURES.decode(jpg=int)}
    names["loader"] = sw.DataLoader(PICTURES, batch_size=64, rank=0, world_size=1)
    for line in lines:
        exec(
            line.strip().replace("sw.image(size=224)", "int").replace("range(10)", "range(1)"),
            names,
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: PICTURES.decode("rgb"),
            r"ds\.decode\(jpg=sw\.image\('rgb', size=224\), cls=int\)",
        ),
        (lambda: PICTURES + PICTURES, r"ds = sw\.concat\(\[a, b\]\)"),
        (lambda: PICTURES["cls"], r"ds\.column\('cls'\)"),
        (lambda: PICTURES.subset(slice(9)), r"indices are integers, such as range\(100\)"),
        (lambda: PICTURES.filter("cls < 3"), r"not 'cls < 3': use filter\(lambda columns: "),
        (lambda: sw.Dataset("x.tar"), r"use sw\.tar\('x\.tar'\)"),
        (lambda: sw.Dataset(Path("t.parquet")), r"use sw\.parquet\('t\.parquet'\)"),
        (lambda: sw.Dataset([1, 2]), r"use sw\.wrap\(\.\.\.\)"),
    ],
)
def test_calls_of_another_form_are_answered_with_the_right_one(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("numbers", [range(5), np.arange(5), [1, 2]])
def test_samples_that_are_selected_as_hugging_face_does_are_told_of_subset(numbers):
    with pytest.raises(ValueError, match=r"are 'jpg', 'cls'; samples are .* ds\.subset\(numbers\)"):
        PICTURES.select(numbers)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_webdataset_is_answered_with_ours(name):
    with pytest.raises(AttributeError, match=re.escape(CLASSES[name])):
        getattr(sw, name)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_of_other_libraries_is_answered_with_what_to_write(name):
    @suggest_names
    def opened(urls, *, columns=None, fill=None):
        pass

    said = re.escape(ARGUMENTS[name])
    with pytest.raises(TypeError, match=rf"has no argument {name}=1: {said}"):
        opened("a.tar", **{name: 1})


@pytest.mark.parametrize(
    ("called", "name", "known"),
    [
        (sw.WeightedSampler, "probabilities", "weights"),
        (sw.lance, "where", "filter"),
        (sw.build, "where", "filter"),
        (sw.build, "transform", "map"),
        (sw.build, "tokenizer", "map"),
        (sw.pack, "seq_len", "length"),
        (sw.tokens, "context_length", "block"),
        (sw.TarWriter, "maxcount", "max_samples"),
        (sw.CacheSettings, "maxsize", "max_bytes"),
        (sw.lerobot, "delta_timestamps", "deltas"),
    ],
)
def test_an_argument_that_means_the_same_is_named_by_the_function_that_has_it(called, name, known):
    with pytest.raises(TypeError, match=rf"no argument {name}=1; did you mean {known}=\?$"):
        called(**{name: 1})


@pytest.mark.parametrize("name", ["cache_dir", "transform", "weights", "tokenizer", "filters"])
def test_the_loader_answers_arguments_of_other_libraries_too(name):
    with pytest.raises(TypeError, match=re.escape(f"{name}=1: {ARGUMENTS[name]}")):
        sw.DataLoader(PICTURES, batch_size=4, **{name: 1})


def calls_in(text):
    """The texts of the calls of this library's functions in a hint, the outermost ones."""
    while found := re.search(r"\b(?:sw|ds)\.\w+\(", text):
        end, depth = found.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield text[found.start() : end]
        text = text[end:]


@pytest.mark.parametrize("text", [*ARGUMENTS.values(), *CLASSES.values()])
def test_hints_call_functions_with_arguments_that_they_have(text):
    """A hint is said of every function: `until=` alone would be wrong for all but one."""
    rest = text
    for called in calls_in(text):
        rest = rest.replace(called, "")
        for call in ast.walk(ast.parse(called)):
            if isinstance(call, ast.Call):
                owner, name = call.func.value.id, call.func.attr
                given = [None] * (len(call.args) + (owner == "ds"))
                function = getattr(sw if owner == "sw" else sw.Dataset, name)
                inspect.signature(function).bind(*given, **{each.arg: 0 for each in call.keywords})
    for argument, name, other in re.findall(r"(\w+)=(?: of sw\.(\w+)(?: or sw\.(\w+))?)?", rest):
        for each in filter(None, (name, other)):
            assert argument in inspect.signature(getattr(sw, each)).parameters
        assert name, f"{argument}= of no function"


def test_an_own_argument_goes_before_those_of_other_libraries():
    @suggest_names
    def opened(url, *, transform=None):
        pass

    with pytest.raises(TypeError, match=r"did you mean transform=\?"):
        opened("a.tar", transforms=1)
    with pytest.raises(TypeError, match=r"has no argument xyz=1: it has url=, transform=$"):
        opened("a.tar", xyz=1)


def test_a_stream_of_another_library_is_answered_with_the_source_that_reads_its_files():
    class StreamingDataset:
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match=r"order of its own.*use sw\.mds\(url\)"):
        sw.DataLoader(StreamingDataset())


def test_an_attribute_that_nobody_has_is_named():
    with pytest.raises(AttributeError, match="'Dataset' object has no attribute 'shufle'"):
        PICTURES.shufle
    assert not hasattr(PICTURES, "shuffle")


def test_the_error_of_a_property_is_its_own():
    class Broken(MemorySource):
        @property
        def manifest(self):
            raise AttributeError("the source's own mistake")

        @manifest.setter
        def manifest(self, value):
            pass

    with pytest.raises(AttributeError, match="the source's own mistake"):
        sw.Dataset(Broken(numbered_samples(3))).manifest


def test_a_dataset_is_copied_and_pickled_as_before():
    for twin in (
        copy.copy(PICTURES),
        copy.deepcopy(PICTURES),
        pickle.loads(pickle.dumps(PICTURES)),
    ):
        assert twin[3] == PICTURES[3]
