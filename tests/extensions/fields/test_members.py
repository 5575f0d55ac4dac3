"""Patterns of fields: each sample's list of the members that match."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest
from PIL import Image

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.testing import assert_batches_equal, check_source
from tests.support.batch_servers import addresses, serving

COUNTS = [0, 1, 3, 12, 30, 0, 2, 5, 11, 1]


def jpeg(value, side=20):
    file = io.BytesIO()
    Image.fromarray(np.full((side, side + 4, 3), value, np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def dataset(tmp_path):
    """Sample n has COUNTS[n] pictures of brightness 8 * their number, and turns that name them."""
    with sw.TarWriter(str(tmp_path / "{shard}.tar"), max_samples=4) as writer:
        for n, count in enumerate(COUNTS):
            names = [f"{number}.jpg" for number in range(count)]
            turns = [None, *(f"some/where/{n:03d}.{name}" for name in names[::-1])]
            sample = {"__key__": f"chat/{n:03d}", "json": json.dumps({"images": turns})}
            writer.write({**sample, **{name: jpeg(8 * i) for i, name in enumerate(names)}})
    return sw.tar(tmp_path)


def loader(data, **options):
    fixed = {"executor": "inline", "output": "numpy", "rank": 0, "world_size": 1}
    return sw.DataLoader(data, 4, **{**fixed, "remainder": "uneven", **options})


EXECUTORS = [
    {"executor": "inline"},
    {"executor": None, "num_workers": 0, "num_threads": 2},
    {"executor": None, "num_workers": 1, "num_threads": 1},
    {"executor": "servers"},
]


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("crop", [{}, {"crop": "random"}], ids=str)
def test_lists_have_all_members_under_every_executor(dataset, options, crop):
    data = dataset.decode({"*.jpg": sw.image(size=16, **crop)}, json=sw.json())
    assert data.fields == ("json", "*.jpg")
    with serving(data) as servers:
        if options["executor"] == "servers":
            options = {"executor": sw.service(addresses(servers))}
        with loader(data, shuffle=True, **options) as it:
            batches = list(it)
            assert it.stats()["missing"] == {}
    for found, same in zip(batches, loader(data, shuffle=True, seed=0), strict=True):
        assert_batches_equal(found, same)
        for key, pictures in zip(found["__key__"], found["*.jpg"], strict=True):
            assert type(pictures) is list
            assert len(pictures) == COUNTS[int(key[-3:])]
            for number, picture in enumerate(pictures):
                assert picture.shape == (3, 16, 16)
                assert abs(int(picture.mean()) - 8 * number) < 3


def test_members_stand_in_natural_order_or_in_that_of_a_list_in_json(dataset):
    stored = dataset.select("*.jpg")
    assert stored[3] == {"__key__": "chat/003", "*.jpg": [jpeg(8 * i) for i in range(12)]}
    assert stored[0]["*.jpg"] == []
    ordered = dataset.select("json", "*.jpg", order="json.images")
    assert ordered[3]["*.jpg"] == [jpeg(8 * i) for i in range(11, -1, -1)]
    assert ordered.decode({"*.jpg": len}, json=sw.json())[2]["*.jpg"] == [
        *map(len, ordered[2]["*.jpg"])
    ]
    check_source(stored.source)
    check_source(ordered.source)
    assert pickle.loads(pickle.dumps(ordered))[4] == ordered[4]
    with loader(ordered.select("*.jpg")) as it:
        assert [len(each) for batch in it for each in batch["*.jpg"]] == COUNTS


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (["b.jpg", "a.jpg", "b.jpg"], ["b", "a", "b"]),
        (["b.jpg"], ["b", "a"]),
        (None, ["a", "b"]),
        (["c.jpg"], "names 'c.jpg': there is a.jpg, b.jpg"),
        (3, "no list of names"),
        ([{"x": 1}], "no list of names"),
    ],
)
def test_a_list_in_json_may_name_members_twice_or_not_at_all(tmp_path, images, expected):
    with sw.TarWriter(str(tmp_path / "0.tar")) as writer:
        turns = json.dumps({"turns": {"images": images}})
        writer.write({"__key__": "k", "json": turns, "a.jpg": b"a", "b.jpg": b"b"})
    data = sw.tar(tmp_path).select("*.jpg", order="json.turns.images").decode({"*.jpg": str})
    if isinstance(expected, list):
        assert data[0] == {"__key__": "k", "*.jpg": expected}
    else:
        with pytest.raises(DataError, match=expected) as caught:
            data[0]
        assert (caught.value.key, caught.value.field) == ("k", "json")
        assert caught.value.url.endswith("0.tar")


def test_a_damaged_member_is_named_and_its_sample_may_be_skipped(tmp_path):
    with sw.TarWriter(str(tmp_path / "0.tar")) as writer:
        for n in range(3):
            pictures = {"0.jpg": jpeg(3), "1.jpg": b"no picture" if n == 1 else jpeg(3)}
            writer.write({"__key__": f"{n}", **pictures})
    data = sw.tar(tmp_path).decode({"*.jpg": sw.image(size=8)})
    with pytest.raises(DataError, match="member 1 of 2") as caught:
        data[1]
    assert (caught.value.key, caught.value.field) == ("1", "*.jpg")
    [batch] = loader(data, on_error="skip")
    assert batch["__key__"] == ["0", "2"]


@pytest.mark.parametrize("ragged", ["list", "error", "pad", "nested"])
def test_lists_are_lists_whatever_ragged_is(dataset, ragged, caplog):
    data = dataset.decode({"*.jpg": sw.image(size=8)}).select("*.jpg")
    with loader(data, ragged=ragged, output="torch") as it:
        lists = [pictures for batch in it for pictures in batch["*.jpg"]]
    assert [len(pictures) for pictures in lists] == COUNTS
    assert "stacked" not in caplog.text


def test_patterns_of_mixtures_joins_and_concatenations(dataset, tmp_path):
    plain = sw.wrap([{"json": {}, "n": n} for n in range(6)])
    mixed = sw.mix({"chat": (dataset, 1), "plain": (plain, 1)}).select("*.jpg", "json")
    counts = [len(sample["*.jpg"]) for sample in mixed if "*.jpg" in sample]
    assert counts == COUNTS
    both = sw.concat([dataset.select("*.jpg"), dataset.select("*.jpg")])
    assert len(both.decode({"*.jpg": len})[13]["*.jpg"]) == 12
    texts = sw.wrap([{"__key__": f"chat/{n:03d}", "txt": n} for n in range(10)])
    chats = dataset.decode({"*.jpg": sw.image(size=4, crop="random")}).subset([1, 3])
    lists = [s["*.jpg"] for s in sw.join(texts, chats.select("*.jpg"), how="left")]
    assert [None if each is None else len(each) for each in lists] == [
        COUNTS[n] if n in (1, 3) else None for n in range(10)
    ]
    for joined in (sw.join(dataset, texts).select("txt", "*.jpg"),
                   sw.join(dataset.select("*.jpg"), texts)):  # fmt: skip
        assert [(s["txt"], len(s["*.jpg"])) for s in joined] == [*enumerate(COUNTS)]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d: d.select("*.png"), ValueError, r"no field '\*.png'"),
        (lambda d: d.decode({"*.png": len}), ValueError, r"no field '\*.png'"),
        (lambda d: d.map(dict).select("*.jpg"), ValueError, r"select\(\) after map\(\)"),
        (lambda d: d.select("*.jpg", "0.jpg"), ValueError, r"it is one of '\*\.jpg'"),
        (lambda d: d.decode({"*.jpg": 3}), TypeError, "is no decoder"),
        (lambda d: d.decode(sw.image()), TypeError, "field=decoder"),
        (lambda d: d.decode({"*.jpg": sw.optional(sw.image(size=4))}), ValueError, "makes masks"),
        (lambda d: d.select("json", order="json.images"), ValueError, "is for patterns"),
        (lambda d: d.select("*.jpg", order="txt.x"), ValueError, r"order='txt.x'.*0.jpg"),
        (lambda d: d.select("*.jpg", order=3), ValueError, "order=3"),
    ],
)
def test_what_can_not_be_a_list_is_refused(dataset, call, error, message):
    with pytest.raises(error, match=message):
        call(dataset)
