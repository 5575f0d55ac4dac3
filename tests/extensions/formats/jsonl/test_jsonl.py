"""JSON lines: every line once, wherever blanks, blocks and frames lie; damage is named."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.extensions.formats.jsonl import text as text_module
from shardwise.extensions.formats.jsonl.text import find_lines
from shardwise.storage.column_file import decode_columns, encode_columns
from shardwise.testing import check_source

VALUES = st.dictionaries(
    st.sampled_from(["text", "n", "deep"]),
    st.one_of(st.text(max_size=20), st.integers(), st.lists(st.none() | st.booleans(), max_size=3)),
    min_size=1,
)
LINES = st.lists(
    st.one_of(
        VALUES.map(json.dumps),
        VALUES.map(lambda value: f"  {json.dumps(value, ensure_ascii=False)} \r"),
        st.sampled_from(["", " ", "\t \r"]),
    ),
    max_size=30,
)


def zipped(data: bytes, suffix: str, cut: int) -> bytes:
    """The data as one file of two gzip members or zstd frames."""
    parts = data[:cut], data[cut:]
    if suffix == ".gz":
        return b"".join(map(gzip.compress, parts))
    if suffix == ".zst":
        return b"".join(bytes(pa.Codec("zstd").compress(part)) for part in parts)
    return data


@given(LINES, st.booleans(), st.sampled_from(["", ".gz", ".zst"]), st.data())
def test_every_line_that_is_not_blank_is_one_sample(tmp_path_factory, lines, ends, suffix, data):
    content = ("\n".join(lines) + ("\n" if ends else "")).encode()
    folder = tmp_path_factory.mktemp("lines")
    path = folder / f"a.jsonl{suffix}"
    path.write_bytes(zipped(content, suffix, data.draw(st.integers(0, len(content)))))
    expected = [json.loads(line) for line in lines if line.strip(" \t\r")]
    # A file without content is no gzip and no zstd.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_READ_BYTES", data.draw(st.integers(1, 40)))
        ds = sw.jsonl(path, ())
        assert [sample["record"] for sample in ds] == expected
    assert [sample["record"] for sample in sw.jsonl(path, ())] == expected
    order = data.draw(st.permutations(range(len(expected))))
    read = sw.jsonl(path, ()).source.read(np.array(order, np.int64))
    assert list(read.fields["record"]) == [expected[number] for number in order]


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_it_is_a_source_and_batches_are_equal_by_every_executor(tmp_path, suffix):
    rows = [{"text": "x" * number, "n": number, "ids": [number, 1]} for number in range(50)]
    plain = write(tmp_path / "plain", rows).read_bytes()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(zipped(plain, suffix, 300))
    ds = sw.jsonl(path)
    check_source(ds.source)
    found = []
    for executor in ("inline", "threads", "processes"):
        with sw.DataLoader(ds, 8, shuffle=True, executor=executor, rank=0, world_size=1) as loader:
            found.append([(b["__key__"], b["text"], b["ids"].tolist()) for b in loader])
    assert found[0] == found[1] == found[2]
    assert len({key for keys, _, _ in found[0] for key in keys}) == 48
    assert os.listdir(tmp_path).count(f"a.jsonl{suffix}.jli") == 1


def test_an_index_is_loaded_and_one_of_another_version_is_made_again(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", [{"n": 1}, {"n": 2}])
    assert len(sw.jsonl(path)) == 2
    scans = []
    found = find_lines

    def counted(file, codec):
        scans.append(file.url)
        return found(file, codec)

    monkeypatch.setattr("shardwise.extensions.formats.jsonl.source.find_lines", counted)
    assert [sample["n"] for sample in sw.jsonl(path)] == [1, 2]
    assert not scans
    write(path, [{"n": 3}, {"n": 4}, {"n": 5}])
    assert [sample["n"] for sample in sw.jsonl(path)] == [3, 4, 5]
    assert scans == [str(path)]
    index = Path(f"{path}.jli")
    index.write_bytes(index.read_bytes()[:-9])
    assert len(sw.jsonl(path)) == 3
    assert len(scans) == 2


@pytest.mark.parametrize(
    "offsets",
    [[], [0, 9], [9, 18, 27], [0, 18, 9, 27], [0, 9, 18, 1 << 40], [0, 9, 2**64 - 9, 27],
     np.array([0, 9, 18, 27], np.uint8)],
)  # fmt: skip
def test_an_index_that_does_not_fit_the_file_is_made_again(tmp_path, offsets):
    path = write(tmp_path / "a.jsonl", [{"n": 1}, {"n": 2}, {"n": 3}])
    assert len(sw.jsonl(path)) == 3
    index = Path(f"{path}.jli")
    metadata, _ = decode_columns(index.read_bytes())
    column = offsets if isinstance(offsets, np.ndarray) else np.array(offsets, np.uint64)
    index.write_bytes(encode_columns(metadata, {"offsets": column}))
    assert [sample["n"] for sample in sw.jsonl(path)] == [1, 2, 3]


@pytest.mark.parametrize("text", [b" ", b"\n"])
def test_a_few_bytes_that_become_very_long_lines_take_little_memory(tmp_path, monkeypatch, text):
    monkeypatch.setattr("shardwise.extensions.formats.jsonl.text._MAX_LINE_BYTES", 32 << 20)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(text * (48 << 20), 1))
    if text == b"\n":
        assert len(sw.jsonl(path)) == 0
        return
    with pytest.raises(sw.DataError, match="a line has more than 33,554,432 bytes") as caught:
        len(sw.jsonl(path))
    assert caught.value.url == str(path)


def test_a_file_that_was_replaced_under_a_pickled_source_is_stale(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"n": 1}, {"n": 2}])
    ds = sw.jsonl(path)
    assert len(ds) == 2
    travelled = pickle.dumps(ds)
    write(path, [{"n": 3}, {"n": 4}, {"n": 5}])
    with pytest.raises(sw.StaleIndexError):
        pickle.loads(travelled)[1]


def test_the_index_lies_where_index_says(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"n": 1}])
    assert len(sw.jsonl(path, index=tmp_path / "other")) == 1
    assert [each.suffix for each in (tmp_path / "other").iterdir()] == [".jli"]
    assert not Path(f"{path}.jli").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"n": ', "the line is no JSON"),
        ("[1, 2]", "no JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"n": "\xff"}', "the line is no JSON"),
        ('{"n": ' + "9" * 5000 + "}", "the line is no JSON"),
    ],
)
def test_a_damaged_line_is_named_and_can_be_skipped(tmp_path, line, said):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n\n' + line.encode("latin-1") + b'\n{"n": 3}\n')
    ds = sw.jsonl(path)
    with pytest.raises(sw.DataError, match=said) as caught:
        ds[1]
    assert (caught.value.url, caught.value.key) == (str(path), "a.jsonl:1")
    assert (caught.value.offset, caught.value.index) == (10, 1)
    with sw.DataLoader(ds, 3, on_error="skip", num_threads=0, rank=0, world_size=1) as loader:
        assert [batch["n"].tolist() for batch in loader] == [[1, 3]]


def test_fields_are_those_of_the_first_lines_or_as_named(tmp_path, caplog):
    rows = [{"text": "a"}, {"text": "b", "lang": "de"}, *[{"text": "c"}] * 1000, {"late": 1}]
    ds = sw.jsonl(write(tmp_path / "a.jsonl", rows))
    assert ds.source.fields == ("text", "lang")
    assert ds[1] == {"__key__": "a.jsonl:1", "text": "b", "lang": "de"}
    with caplog.at_level(logging.WARNING, "shardwise"):
        assert "late" not in ds[1002]
        assert ds[1002]["__key__"] == "a.jsonl:1002"
    assert "'late?'" in caplog.text
    assert sw.jsonl(tmp_path / "a.jsonl", ("late?",))[1002]["late"] == 1
    with pytest.raises(sw.DataError, match="did you mean 'text'"):
        len(sw.jsonl(tmp_path / "a.jsonl", ("txt",)).source.fields)


@pytest.mark.parametrize(
    ("fields", "error"),
    [("text", TypeError), ({"text": str}, TypeError), ((1,), TypeError), (("a", "a?"), ValueError)],
)
def test_other_fields_are_refused(tmp_path, fields, error):
    with pytest.raises(error, match="fields="):
        sw.jsonl(write(tmp_path / "a.jsonl", []), fields)


def test_files_of_another_kind_are_called_by_their_names(tmp_path):
    document = tmp_path / "a.jsonl"
    document.write_text("[\n{}\n]")
    with pytest.raises(sw.DataError, match=r"jq -c"):
        len(sw.jsonl(document).source.fields)
    document.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(sw.DataError, match=r"a Parquet file: sw\.parquet opens it"):
        len(sw.jsonl(document))
    document.write_bytes(gzip.compress(b'{"n": 1}\n' * 1000)[:-30])
    with pytest.raises(sw.DataError, match="the gzip data is damaged or cut"):
        len(sw.jsonl(document))


@pytest.mark.parametrize(
    "opener",
    [sw.tar, sw.parquet, sw.lance, sw.mds, sw.litdata, sw.tfrecord, sw.tokens, sw.wrap, sw.files],
)
def test_every_other_opener_names_it(tmp_path, opener):
    path = str(write(tmp_path / "a.jsonl", [{"text": "a"}]))
    with pytest.raises((sw.DataError, TypeError), match=r"sw\.jsonl"):
        len(opener(path))


def test_texts_of_many_files_in_a_directory(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", [{"n": 10 * number + row} for row in range(number)])
    (tmp_path / "3.json.gz").write_bytes(gzip.compress(b'{"n": 30}'))
    assert [sample["n"] for sample in sw.jsonl(tmp_path)] == [10, 20, 21, 30]
