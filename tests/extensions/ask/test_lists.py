"""Lists of samples by ids, keys and files of either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from tests.support.tars import make_shards

KEYS = [f"s{i:08d}" for i in range(20)]


def left(data: Any, exclude: Any) -> list[int]:
    it = sw.DataLoader(data, batch_size=4, executor="inline", output="numpy", exclude=exclude)
    return [i for batch in it for i in batch["__index__"].tolist()]


@pytest.fixture
def data(tmp_path: Path) -> sw.Dataset:
    return sw.tar(make_shards(tmp_path, [12, 8])).select("cls").map(lambda sample: sample)


REST = [i for i in range(20) if i not in (3, 7, 15)]


def test_ids_keys_and_files_of_them_name_the_same_samples(data: sw.Dataset, tmp_path: Path) -> None:
    keys = [KEYS[i] for i in (15, 3, 7)]
    (tmp_path / "keys.txt").write_text("\n".join(keys) + "\n\n")
    (tmp_path / "ids.txt").write_text("15\n3\n7\n")
    np.save(tmp_path / "ids.npy", np.array([15, 3, 7], dtype=np.uint16))
    np.save(tmp_path / "keys.npy", np.array(keys))
    lists: list[Any] = [
        [15, 3, 7],
        {3, 7, 15},
        (3, 7, 7, 15),
        np.array([3, 7, 15]),
        keys,
        set(keys),
    ]
    lists += [np.array(keys), tmp_path / "keys.txt", str(tmp_path / "ids.txt")]
    lists += [tmp_path / "ids.npy", tmp_path / "keys.npy"]
    for exclude in lists:
        assert left(data, exclude) == REST, exclude
    assert left(data, []) == list(range(20))


def test_lines_of_digits_are_keys_where_one_of_them_is(tmp_path: Path) -> None:
    data = sw.wrap([{"__key__": str(100 - i), "x": i} for i in range(10)])
    (tmp_path / "list.txt").write_text("95\n93\n")
    assert left(data, tmp_path / "list.txt") == [0, 1, 2, 3, 4, 6, 8, 9]
    (tmp_path / "list.txt").write_text("5\n7\n")
    assert left(data, tmp_path / "list.txt") == [0, 1, 2, 3, 4, 6, 8, 9]


def test_a_key_of_several_samples_names_them_all() -> None:
    data = sw.wrap([{"__key__": "ab"[i % 2], "x": i} for i in range(6)])
    assert left(data, ["a"]) == [1, 3, 5]


def test_the_keys_of_a_mixture_are_its_datasets() -> None:
    parts = {
        name: (sw.wrap([{"__key__": f"{name}{i}", "x": i} for i in range(10)]), 1) for name in "ab"
    }
    found = left(sw.mix(parts, until=20, block=4), ["a3", "b0"])
    assert not {3, 10} & set(found)


@pytest.mark.parametrize(
    ("exclude", "error", "message"),
    [
        (["nobody", KEYS[0]], ValueError, r"no sample has the key 'nobody' \(1 of 2 keys\)"),
        ([20], ValueError, "has 20 samples: is it the list of another dataset"),
        ([0.5], TypeError, r"exclude=\[0.5\]: give ids"),
        ([True], TypeError, "give ids"),
        ("missing.txt", sw.ShardwiseError, "missing.txt"),
    ],
)
def test_what_names_no_samples_is_refused(
    data: sw.Dataset, exclude: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        left(data, exclude)


def test_a_file_of_another_dataset_is_named(data: sw.Dataset, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("nobody\n")
    with pytest.raises(ValueError, match=r"exclude='.*bad.txt': no sample has the key 'nobody'"):
        left(data, tmp_path / "bad.txt")
    (tmp_path / "bad.txt").write_text("9" * 5000)
    with pytest.raises(ValueError, match=r"exclude='.*bad.txt': no sample has the key '9{57}"):
        left(data, tmp_path / "bad.txt")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(sw.DataError, match=r"no text of ids or keys.*bad.txt|bad.txt.*no text"):
        left(data, tmp_path / "bad.txt")


def test_the_path_of_an_array_is_an_order(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(20)
    np.save(tmp_path / "order.npy", order)
    data = sw.wrap(range(20))
    options = {"batch_size": 6, "executor": "inline", "output": "numpy", "seed": 5}
    by_path = sw.DataLoader(data, sampler=str(tmp_path / "order.npy"), **options)
    by_array = sw.DataLoader(data, sampler=order, **options)
    assert by_path.state_dict() == by_array.state_dict()
    assert next(iter(by_path))["__index__"].tolist() == order[:6].tolist()
    other = sw.DataLoader(data, sampler=order[::-1], **options)
    with pytest.raises(sw.StateError, match=r"ids: the state has"):
        other.load_state_dict(by_path.state_dict())
    whole = (tmp_path / "order.npy").read_bytes()
    huge = whole.replace(b"(20,), }           ", b"(9999999999999,), }")
    assert len(huge) == len(whole)
    assert huge != whole
    for name, content in (("cut.npy", b"\x93NUMPY"), ("text.npy", b"hello"), ("huge.npy", huge),
                          ("zip.npy", b"PK\3\4" + bytes(30))):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with pytest.raises(sw.DataError, match=name):
            sw.DataLoader(data, sampler=tmp_path / name)
    with pytest.raises(TypeError, match=r"'random'.* \.npy"):
        sw.DataLoader(data, sampler="random")
