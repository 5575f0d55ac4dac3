"""Hugging Face datasets under `sw.wrap`: by columns where that gives what the rows give."""

import pickle

import datasets
import numpy as np
import pytest
from PIL import Image

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.tables.huggingface import HuggingFaceSource
from shardwise.sources.wrap.source import WrapSource
from shardwise.testing import check_source

NUM_ROWS = 1003


@pytest.fixture(scope="module")
def hf():
    parts = [
        datasets.Dataset.from_dict(
            {
                "id": list(range(begin, end)),
                "text": [f"row {i}" for i in range(begin, end)],
                "data": [bytes([i % 256]) for i in range(begin, end)],
                "tokens": [[i, i + 1][: 1 + i % 2] for i in range(begin, end)],
            }
        )
        for begin, end in ((0, 500), (500, 1000), (1000, NUM_ROWS))
    ]
    return datasets.concatenate_datasets(parts)


def test_its_columns_keep_what_a_source_keeps(hf):
    source = sw.wrap(hf).source
    assert isinstance(source, HuggingFaceSource)
    assert repr(source) == "HuggingFaceSource(1003 rows)"
    check_source(
        source,
        expected=[
            {
                "__key__": str(i),
                "id": i,
                "text": f"row {i}",
                "data": bytes([i % 256]),
                "tokens": np.array([i, i + 1][: 1 + i % 2]),
            }
            for i in range(NUM_ROWS)
        ],
    )


def test_what_was_selected_and_shuffled_stays_so(hf):
    chosen = hf.shuffle(seed=3).select(range(100))
    ds = sw.wrap(chosen)
    check_source(ds.source)
    assert ds.load(np.arange(100))["id"].tolist() == list(chosen["id"])
    assert pickle.loads(pickle.dumps(ds))[7]["id"] == chosen[7]["id"]


def test_numbers_have_a_layout_and_any_field_a_decoder(hf):
    assert sw.wrap(hf).select("id").layout() == {"id": ((), np.dtype(np.int64))}
    assert sw.wrap(hf).decode(data=int, id=float).fields == ("id", "text", "data", "tokens")


def test_keys_are_the_samples_own(hf):
    named = hf.select(range(3)).add_column("__key__", ["a", "b", "c"])
    ds = sw.wrap(named)
    assert ds[1]["__key__"] == "b"
    assert "__key__" not in ds.fields
    with pytest.raises(DataError, match="no column 'x': the columns are 'id'"):
        ds.source.read(np.array([0]), ("x",))


@pytest.mark.parametrize(
    "change",
    [
        lambda hf: hf.with_format("numpy"),
        lambda hf: hf.with_format(columns=["id"]),
        lambda hf: hf.with_transform(lambda batch: {"id": [i + 1 for i in batch["id"]]}),
        lambda hf: hf.add_column("meta", [{"a": i} for i in range(NUM_ROWS)]),
        lambda hf: hf.add_column("parts", [[{"a": i}] for i in range(NUM_ROWS)]),
    ],
)
def test_what_rows_show_otherwise_than_columns_is_read_row_by_row(hf, change):
    ds = sw.wrap(change(hf))
    assert isinstance(ds.source, WrapSource)
    assert ds.load(np.array([5, 3]))["id"] == [change(hf)[i]["id"] for i in (5, 3)]


def test_images_are_what_the_dataset_decodes_them_to():
    pixels = np.full((4, 5, 3), 9, np.uint8)
    features = datasets.Features({"image": datasets.Image()})
    hf = datasets.Dataset.from_dict({"image": [Image.fromarray(pixels)]}, features=features)
    ds = sw.wrap(hf).decode(image=np.asarray)
    assert isinstance(ds.source, WrapSource)
    assert (ds[0]["image"] == pixels).all()


@pytest.mark.parametrize("decode", [True, False])
def test_stored_images_are_decoded_by_our_decoders_from_their_bytes(tmp_path, decode):
    pixels = [np.full((4, 5, 3), 9 * i, np.uint8) for i in range(3)]
    Image.fromarray(pixels[2]).save(tmp_path / "2.png")
    images = [Image.fromarray(pixels[0]), Image.fromarray(pixels[1]), str(tmp_path / "2.png"), None]
    features = datasets.Features(
        {"image": datasets.Image(decode=decode), "n": datasets.Value("int8")}
    )
    hf = datasets.Dataset.from_dict({"image": images, "n": range(4)}, features=features)
    ds = sw.wrap(hf).decode(image=sw.image(layout="HWC")).subset([2, 0, 1])
    assert (ds.load(np.arange(3))["image"] == np.array(pixels)[[2, 0, 1]]).all()
    assert (ds[0]["image"] == pixels[2]).all()
    assert ds.manifest.fingerprint == sw.wrap(hf).fingerprint
    with pytest.raises(DataError, match="no field 'image'"):
        sw.wrap(hf).decode(image=sw.image())[3]


@pytest.mark.parametrize("name", ["arrow", "pandas"])
def test_formats_whose_rows_are_tables_are_refused(hf, name):
    with pytest.raises(
        TypeError, match=r"format '.*': give .* wrap\(dataset.with_format\(None\)\)"
    ):
        sw.wrap(hf.with_format(name))


def test_a_dict_of_splits_asks_for_one(hf):
    with pytest.raises(TypeError, match=r"one of its splits, such as wrap\(dataset\['train'\]\)"):
        sw.wrap(datasets.DatasetDict({"train": hf}))


def test_the_fingerprint_tells_orders_apart(hf):
    words = [sw.wrap(each).fingerprint for each in (hf, hf.shuffle(seed=0), hf.shuffle(seed=1))]
    assert len(set(words)) == 3
    assert words[1] == sw.wrap(hf.shuffle(seed=0)).fingerprint


def test_an_empty_dataset_has_no_rows(hf):
    check_source(sw.wrap(hf.select([])).source, expected=[])


def test_a_null_is_a_field_that_the_row_lacks():
    ds = sw.wrap(datasets.Dataset.from_dict({"n": [1, None, 3]}))
    assert ds[1] == {"__key__": "1"}
    with pytest.raises(DataError, match="no value of 'n', and an array can't hold") as caught:
        ds.load(np.arange(3))
    assert caught.value.index == 1
