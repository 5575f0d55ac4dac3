"""`sw.pack`: packs of documents as samples, with what attention needs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.testing import check_source

SIZES = [3, 0, 9, 2, 4, 13, 1, 1, 6, 2]


def documents(sizes=SIZES):
    """Token 100 * document + place, and labels one more."""
    return [np.arange(n) + 100 * i for i, n in enumerate(sizes)]


def dataset(sizes=SIZES):
    return sw.wrap([{"tokens": d, "labels": d + 1, "other": 0} for d in documents(sizes)])


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 30, 300).tolist()
    with sw.TarWriter(str(tmp_path / "{shard}.tar"), max_samples=70) as writer:
        for i, tokens in enumerate(documents(sizes)):
            writer.write({"__key__": f"{i}", "tokens": tokens.astype(np.int32).tobytes()})
    return tmp_path, sizes


def of_shards(folder):
    return sw.tar(folder).decode(tokens=sw.array("int32"))


def pieces(pack, *, field="tokens"):
    """The documents of a pack as lists of tokens, by its bounds."""
    bounds = [b for b in pack["cu_seqlens"].tolist() if b <= pack["loss_mask"].sum()]
    ends = sorted(set(bounds))
    return [pack[field][a:b].tolist() for a, b in itertools.pairwise(ends)]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 25), max_size=25),
    st.integers(1, 12),
    st.integers(1, 9),
    st.sampled_from(["split", "drop"]),
)
def test_every_token_of_every_document_is_in_the_packs_once(sizes, length, window, long):
    packs = sw.pack(dataset(sizes), length=length, window=window, long=long)
    seen = sorted(token for pack in packs for piece in pieces(pack) for token in piece)
    kept = [d for d in documents(sizes) if long == "split" or len(d) <= length]
    assert seen == sorted(t for d in kept for t in d.tolist())
    for pack in packs:
        for number, piece in enumerate(pieces(pack)):
            assert piece == list(range(piece[0], piece[0] + len(piece)))
            assert piece[0] // 100 == pack["documents"][number]


def test_the_fields_of_a_pack_say_where_its_documents_are():
    packs = sw.pack(dataset(), length=10, pad=-7, fields=("tokens", "labels"))
    every = list(packs)
    assert len(every) == len(packs) == 5
    for pack in every:
        used = int(pack["loss_mask"].sum())
        assert pack["loss_mask"].tolist() == [True] * used + [False] * (10 - used)
        assert (pack["tokens"][used:] == -7).all()
        assert (pack["labels"][used:] == -7).all()
        assert (pack["labels"][:used] == pack["tokens"][:used] + 1).all()
        bounds = pack["cu_seqlens"]
        assert bounds.dtype == np.int32
        assert bounds[0] == 0
        assert bounds[-1] == 10
        assert (np.diff(bounds) >= 0).all()
        assert used in bounds
        assert pack["max_seqlen"] == np.diff(bounds).max()
        expected_ids, expected_places = [], []
        for number, piece in enumerate(pieces(pack)):
            expected_ids += [number] * len(piece)
            expected_places += range(len(piece))
        assert pack["document_ids"].tolist() == expected_ids + [-1] * (10 - used)
        assert pack["position_ids"].tolist() == [*expected_places, *range(10 - used)]
    # Each field's own padding.
    pads = sw.pack(dataset(), length=10, pad={"labels": -100}, fields=("tokens", "labels"))
    assert {int(p["labels"][-1]) for p in pads if not p["loss_mask"][-1]} == {-100}


def test_it_is_a_source_like_others(shards):
    folder, sizes = shards
    for ds in (dataset(), of_shards(folder), of_shards(folder).subset([7, 3, 250, 3])):
        check_source(sw.pack(ds, length=32).source)
    packs = sw.pack(of_shards(folder), length=32)
    assert packs.source.packs.num_tokens == sum(sizes)
    assert packs.source.packs.num_empty == sizes.count(0)
    assert len(packs.shard_sizes) == 5
    assert packs.default_shuffle == "window"


def test_packs_are_made_once_and_anew_for_other_lengths(shards):
    folder, _ = shards

    def kept():
        return sorted(p.name for p in (folder / ".shardwise").glob("packs-*"))

    packs = sw.pack(of_shards(folder), length=32)
    again = sw.pack(of_shards(folder), length=32)
    assert packs.fingerprint == again.fingerprint
    assert len(kept()) == 1
    assert packs[5]["tokens"].tolist() == again[5]["tokens"].tolist()
    other = sw.pack(of_shards(folder), length=33)
    assert other.fingerprint != packs.fingerprint
    assert len(kept()) == 2


def test_lengths_are_counted_named_or_given(shards):
    folder, sizes = shards
    ds = of_shards(folder)
    expected = sw.pack(ds, length=32).fingerprint
    assert sw.pack(ds, length=32, lengths=np.array(sizes)).fingerprint == expected
    items = [{"tokens": d, "n": len(d)} for d in documents()]
    named = sw.pack(sw.wrap(items), length=10, lengths="n", fields="tokens")
    assert named.source.packs.num_tokens == sum(SIZES)


def test_a_map_may_make_the_tokens():
    texts = sw.wrap([{"text": "ab"}, {"text": "cde"}])
    packs = sw.pack(
        texts.map(lambda s: {"tokens": np.array([ord(c) for c in s["text"]])}), length=5
    )
    assert bytes(packs[0]["tokens"].tolist()) == b"abcde"
    lists = sw.pack(sw.wrap([{"input_ids": [1, 2]}, {"input_ids": [3]}]), length=3)
    assert lists[0]["input_ids"].tolist() == [1, 2, 3]


def test_a_pack_of_a_batch_reads_each_document_once_in_storage_order(shards):
    folder, _ = shards
    ds = of_shards(folder)
    packs = sw.pack(ds, length=8)
    reads = []
    inner = packs.source.dataset
    load = inner.load
    inner.load = lambda ids, **rest: reads.append(ids.tolist()) or load(ids, **rest)
    packs[[3, 0, 2]]
    assert len(reads) == 1
    assert reads[0] == sorted(set(reads[0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:-1], "has 12 tokens in 'tokens', and was packed as one of 13"),
        (lambda d: np.append(d, 1), "has 14 tokens"),
        (lambda d: d.astype(float), "one row of whole numbers"),
        (lambda d: d[None], "one row of whole numbers"),
        (lambda d: None, "no field 'tokens'"),
        (lambda d: np.full(13, 2**64 - 1, np.uint64), "do not fit into int64"),
    ],
)
def test_a_document_that_is_not_the_one_that_was_packed_names_itself(change, message):
    items = [{"__key__": f"d{i}", "tokens": d} for i, d in enumerate(documents())]
    items[5] = items[5] | {"tokens": change(items[5]["tokens"])}
    packs = sw.pack(sw.wrap(items), length=6, lengths=SIZES)
    with pytest.raises(sw.DataError, match=message) as raised:
        list(packs)
    assert raised.value.key == "d5"
    assert raised.value.url.startswith("wrap:")
    assert 5 in packs.select("documents")[raised.value.index]["documents"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lengths": [3] * 9}, ValueError, "9 lengths for 10 documents"),
        ({"lengths": [-1] + [3] * 9}, ValueError, "document 0 has the length -1"),
        ({"lengths": [1.5] * 10}, TypeError, "float64"),
        ({"lengths": [[3]] * 10}, TypeError, "one whole number a document"),
        ({"lengths": [2**31] * 10}, ValueError, "document 0 has the length 2147483648"),
        ({"lengths": "nope"}, ValueError, "no field 'nope'"),
        ({"long": "error"}, ValueError, "document 5 has 13 tokens, and a pack 10"),
        ({"long": "cut"}, ValueError, "'split'"),
        ({"length": 0}, ValueError, "length"),
        ({"window": 0}, ValueError, "window"),
        ({"fields": "nope"}, ValueError, "no field 'nope'"),
        ({"fields": ()}, TypeError, "fields"),
        ({"fields": 3}, TypeError, "fields"),
        ({"pad": "x"}, TypeError, "pad"),
        ({"pad": {"x": 1}}, ValueError, "'x'"),
        ({"pad": -1, "dtype": "uint16"}, ValueError, "does not fit"),
        ({"dtype": "float32"}, TypeError, "integers"),
        ({"length": 1 << 31}, ValueError, "length=2147483648 must be at most 16777216"),
        ({"window": 1 << 63}, ValueError, "window=9223372036854775808 must be at most"),
        ({"limits": 30}, TypeError, "limits=30: give numbers by name"),
        ({"limits": {"tokens": True}}, ValueError, r"limits\['tokens'\]=True: a number above 0"),
        ({"limits": {"other": 10**400}}, ValueError, "a number above 0, or"),
        ({"limits": {"other": 0}}, ValueError, r"limits\['other'\]=0: a number above 0"),
        ({"limits": {"other": (3, [1], 2)}}, ValueError, "a number above 0, or"),
        ({"limits": {"other": "3"}}, ValueError, "a number above 0, or"),
        ({"limits": {"nope": 3}}, ValueError, "no field 'nope'"),
        ({"limits": {"x": (3, [1.0])}}, ValueError, r"limits\['x'\]: 1 numbers for 10 documents"),
        ({"limits": {"x": (3, [-1.0] * 10)}}, ValueError, r"limits\['x'\]"),
        ({"limits": {"x": (3, ["a"] * 10)}}, TypeError, r"limits\['x'\] must be numbers"),
        (
            {"limits": {"x": (3, [4, *[1] * 9])}},
            ValueError,
            "document 0 has 3 tokens, and a pack 10, x=4 of 3: 2 documents are too long",
        ),
        ({"max_documents": 1 << 40}, ValueError, "max_documents=1099511627776 must be at most 10"),
    ],
)
def test_a_bad_argument_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        sw.pack(dataset(), **({"length": 10} | options))


def test_which_field_has_the_tokens_is_asked_and_names_do_not_clash():
    with pytest.raises(ValueError, match="which field"):
        sw.pack(sw.wrap([{"a": [1], "b": [2]}]), length=3)
    with pytest.raises(ValueError, match="'loss_mask' itself"):
        sw.pack(sw.wrap([{"loss_mask": [1]}]), length=3)
    with pytest.raises(TypeError, match=r"sw\.wrap"):
        sw.pack([1, 2], length=3)
    with pytest.raises(sw.DataError, match="no field 'tokens'"):
        sw.pack(sw.wrap([{"a": [1]}]).map(dict), length=3)


def test_packs_of_several_datasets_have_one_shape_with_room_for_as_many_documents():
    parts = {"short": dataset([1, 1, 2, 1, 2, 3]), "long": dataset([9, 5, 4, 8])}
    packs = {name: sw.pack(part, length=10, max_documents=7) for name, part in parts.items()}
    for pack in packs.values():
        check_source(pack.source)
        assert pack[0]["cu_seqlens"].shape == (9,)
        assert pack[0]["documents"].shape == (7,)
    mixed = sw.mix({name: (pack, 1) for name, pack in packs.items()}, until=4, block=2)
    [batch] = sw.DataLoader(mixed, batch_size=4, output="numpy")
    assert batch["cu_seqlens"].shape == (4, 9)
    assert set(batch["__source__"]) == {"short", "long"}
    with pytest.raises(ValueError, match="max_documents=2, and the fullest pack has"):
        sw.pack(parts["short"], length=10, max_documents=2)


def test_nothing_to_pack_is_an_empty_dataset():
    for ds in (sw.wrap([]), dataset([0, 0]), dataset().subset([])):
        packs = sw.pack(ds, length=4)
        assert len(packs) == len(sw.pack(ds, length=4, limits={"other": 1})) == 0
        with pytest.raises(ValueError, match="no samples"):
            sw.DataLoader(packs, batch_size=2)
    dropped = sw.pack(dataset([9, 9]), length=4, long="drop")
    assert (len(dropped), dropped.source.packs.num_dropped) == (0, 2)


def interleaved(num=300):
    """Texts with pictures: 0 to 4 in each, whose values say the document."""
    rng = np.random.default_rng(0)
    items = []
    for i in range(num):
        count = int(rng.integers(0, 5))
        pictures = [np.full((3, 2 + i % 3, 2), i % 256, np.uint8) for _ in range(count)]
        tokens = np.arange(rng.integers(1, 60)) + 1000 * i
        items.append({"tokens": tokens, "images": count, "pictures": pictures, "name": f"n{i}"})
    return items


def check_interleaved(pack, items):
    documents = [int(d) for d in pack["documents"] if d >= 0]
    assert pack["name"] == [items[d]["name"] for d in documents]
    assert list(pack["images"])[: len(documents)] == [items[d]["images"] for d in documents]
    assert sum(pack["images"]) <= 8
    for document, pictures in zip(documents, pack["pictures"], strict=True):
        expected = items[document]["pictures"]
        assert [p.tolist() for p in pictures] == [p.tolist() for p in expected]


def test_other_fields_ride_along_in_the_order_of_the_documents_under_limits():
    items = interleaved()
    packs = sw.pack(sw.wrap(items), length=256, limits={"images": 8, "pictures": 7})
    check_source(packs.source)
    for pack in packs:
        check_interleaved(pack, items)
        assert sum(pack["images"]) <= 7
    assert sorted(name for pack in packs for name in pack["name"]) == sorted(
        item["name"] for item in items
    )
    # A column that is no field; and no limit but the length.
    pixels = [sum(p[0].size for p in item["pictures"]) for item in items]
    packs = sw.pack(sw.wrap(items), length=256, limits={"pixels": (40.0, pixels)})
    assert max(sum(pixels[d] for d in pack["documents"] if d >= 0) for pack in packs) <= 40
    plain = sw.pack(sw.wrap(items), length=256, limits={})
    assert len(plain) == len(sw.pack(sw.wrap(items), length=256))
    assert {"name", "pictures"} < set(plain.fields)
    cut = sw.pack(sw.wrap([{"tokens": range(9), "name": "a"}]), length=4, limits={})
    assert [pack["name"] for pack in cut] == [["a"]] * 3
    made = sw.wrap(items).map(lambda sample: {**sample, "made": len(sample["name"])})
    check_interleaved(sw.pack(made, length=256, limits={"images": 8})[3], items)
    assert "made" in sw.pack(made, length=256, limits={"images": 8}).fields
    with pytest.raises(ValueError, match="'documents' itself"):
        sw.pack(sw.wrap([{"tokens": [1], "documents": 2}]), length=3, limits={})


def test_fields_that_are_not_selected_are_not_read_from_documents_under_limits(shards):
    folder, _ = shards
    with sw.TarWriter(str(folder / "more" / "{shard}.tar"), max_samples=20) as writer:
        for i in range(60):
            some = {"txt": f"t{i}"} if i % 3 else {}
            writer.write({"__key__": f"{i}", "tokens": np.arange(9).astype(np.int32).tobytes(),
                          "n": i % 4, "jpg": b"no picture", **some})  # fmt: skip
    decoders = {"tokens": sw.array("int32"), "n": int, "jpg": sw.image(size=2)}
    packs = sw.pack(sw.tar(folder / "more").decode(**decoders), length=64, limits={"n": 9})
    for pack in packs.select("tokens", "n", "txt", "documents"):
        documents = [d for d in pack["documents"] if d >= 0]
        assert pack["txt"] == [f"t{d}".encode() if d % 3 else None for d in documents]
        assert sum(pack["n"]) <= 9
    with pytest.raises(sw.DataError, match="jpg"):
        packs[0]


def test_packs_under_limits_resume_on_other_ranks_under_other_executors():
    items = interleaved()
    packs = sw.pack(sw.wrap(items), length=256, limits={"images": 8})
    seen, state = [], None

    def read(rank, world_size, num_steps, **options):
        loader = sw.DataLoader(
            packs, 3, shuffle=True, seed=4, remainder="uneven", rank=rank,
            world_size=world_size, output="numpy", **options,
        )  # fmt: skip
        with loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, num_steps):
                for row in range(len(batch["__key__"])):
                    pack = {name: column[row] for name, column in batch.items()}
                    check_interleaved(pack, items)
                    seen.extend(pack["name"])
            return loader.state_dict()

    _, state = (read(rank, 2, 3, num_threads=2) for rank in range(2))
    for rank, options in enumerate(({"num_workers": 1}, {"num_threads": 2}, {"num_threads": 0})):
        read(rank, 3, None, **options)
    assert sorted(seen) == sorted(item["name"] for item in items)


def test_costs_of_packs_under_limits_are_of_their_documents():
    items = interleaved()
    packs = sw.pack(sw.wrap(items), length=256, limits={"images": 8})
    expected = [
        6 * 64 * 256 + sum(len(items[d]["tokens"]) ** 2 for d in pack["documents"] if d >= 0)
        for pack in packs
    ]
    assert packs.costs(hidden=64).tolist() == expected


def test_documents_whose_tokens_have_another_name_are_answered_with_fields():
    texts = sw.wrap(["a b", "c"]).map(lambda sample: {"input_ids": np.arange(3)})
    with pytest.raises(sw.DataError, match=r"it has '__key__', 'input_ids'; .* fields=, such as"):
        sw.pack(texts, length=4)
