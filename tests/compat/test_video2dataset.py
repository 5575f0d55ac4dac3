"""video2dataset's loader: frames with burnt-in numbers, its keys and options, bad input, ranks."""

from __future__ import annotations

import io
import json
import pickle
import sys
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import shardwise as sw
import shardwise.compat.webdataset as wds
from shardwise.compat import video2dataset
from shardwise.compat.video2dataset.clips import ClipDecoder, UnfitVideoError
from shardwise.compat.video2dataset.dataloader import get_video_dataset
from shardwise.compat.video2dataset.pictures import picture_size
from shardwise.compat.webdataset.autodecode import DecodingError
from tests.support.media import HEIGHT, NUM_FRAMES, WIDTH, numbers_in
from tests.support.ranks import run_ranks
from tests.support.tars import write_tar

PROGRAM = Path(__file__).parent / "programs" / "videos.py"


@pytest.fixture(scope="module")
def film(media_files):
    return media_files.read("b_frames")


@pytest.fixture(scope="module")
def short_film(media_files):
    return media_files.make("short.mp4", "-c:v mpeg4 -q:v 5", count=5).read_bytes()


def shards(folder, film, sizes=(3, 2), **fields):
    """Tars of samples whose video is `film`; a field may be a function of the sample's number."""
    folder.mkdir(parents=True, exist_ok=True)
    urls, number = [], 0
    for shard, size in enumerate(sizes):
        members = []
        for _ in range(size):
            values = {"mp4": film, "txt": f"text {number}".encode()} | fields
            for field, value in values.items():
                data = value(number) if callable(value) else value
                if data is not None:
                    members.append((f"{number:04}.{field}", data))
            number += 1
        urls.append(str(folder / f"{shard}.tar"))
        write_tar(urls[-1], members)
    return urls


def clips(dataset, key="mp4"):
    """Key, first frame and numbers of all clips."""
    return [
        (name, int(start), numbers_in(clip.float().numpy()))
        for batch in dataset
        for name, start, clip in zip(
            batch["__key__"], batch["start_frame"], batch[key], strict=True
        )
    ]


def test_a_batch_has_video2datasets_keys(tmp_path, film):
    urls = shards(tmp_path, film, json=b'{"a": 1}')
    arguments = {"n_frames": 4, "fps": 10, "num_threads": 12, "return_bytes": True}
    (batch,) = get_video_dataset(urls, 5, decoder_kwargs=arguments, resize_size=64, crop_size=48)
    assert tuple(batch["mp4"].shape) == (5, 4, 48, 48, 3)
    assert batch["mp4"].dtype == torch.float16
    assert batch["mp4"].max() > 150
    for key, value in (("original_height", HEIGHT), ("original_width", WIDTH), ("fps_id", 0)):
        assert batch[key].tolist() == [[value] * 4] * 5
        assert batch[key].dtype == torch.long
    assert batch["pad_masks"].tolist() == [[1.0] * 4] * 5
    assert batch["pad_start"].tolist() == [4] * 5
    assert batch["native_fps"].tolist() == [10] * 5
    assert batch["txt"] == [f"text {i}" for i in range(5)]
    assert batch["json"] == [{"a": 1}] * 5
    assert batch["video_bytes"] == [film] * 5
    assert batch["__key__"] == [f"{i:04}" for i in range(5)]
    assert batch["__url__"] == [urls[0]] * 3 + [urls[1]] * 2
    assert "__draw__" not in batch


def test_the_frames_are_those_that_start_and_rate_say(tmp_path, film):
    dataset = get_video_dataset(
        shards(tmp_path, film), 2, decoder_kwargs={"n_frames": 8, "fps": 5}, seed=3
    )
    found = clips(dataset)
    assert len(found) == 5
    for _, start, numbers in found:
        assert numbers == list(range(start, start + 40, 5))
    assert len({start for _, start, _ in found}) > 1


def test_the_last_possible_start_is_drawn_too(film):
    decode = ClipDecoder(n_frames=NUM_FRAMES - 1)
    size = picture_size(None, None, random_crop=False, dtype="uint8")
    starts = {decode(film, size, np.random.default_rng(seed))["start_frame"] for seed in range(12)}
    assert starts == {0, 1}


def test_draws_are_keyed_by_seed_epoch_and_sample(tmp_path, film):
    urls = shards(tmp_path, film, (2, 2, 2))

    def make(**more):
        arguments = {"n_frames": 2, "fps": [5, 25]}
        return get_video_dataset(urls, 2, decoder_kwargs=arguments, **{"seed": 1} | more)

    def starts(dataset):
        return {key: numbers for key, _, numbers in clips(dataset)}

    dataset = make()
    first, second = starts(dataset), starts(dataset)
    assert first != second
    assert starts(make()) == first
    assert starts(make(shuffle=10, sample_shuffle=3)) == first
    assert starts(wds.WebLoader(make(), batch_size=None, num_workers=2)) == first
    assert starts(make(seed=2)) != first
    moved = shards(tmp_path / "moved", film, (2, 2, 2))
    again = get_video_dataset(moved, 4, decoder_kwargs={"n_frames": 2, "fps": [5, 25]}, seed=1)
    assert starts(again) == first


def test_a_loader_goes_on_where_its_state_says(tmp_path, film):
    urls = shards(tmp_path, film, (3, 3))

    def loader():
        dataset = get_video_dataset(urls, 1, shuffle=9, decoder_kwargs={"n_frames": 1}, seed=5)
        return wds.WebLoader(dataset, batch_size=None, num_workers=2)

    whole = clips(loader())
    broken = loader()
    batches = iter(broken)
    taken = clips([next(batches), next(batches)])
    state = broken.state_dict()
    del batches
    fresh = loader()
    fresh.load_state_dict(state)
    assert taken + clips(fresh) == whole


def test_a_pickled_dataset_gives_the_same(tmp_path, film):
    dataset = get_video_dataset(shards(tmp_path, film), 2, decoder_kwargs={"n_frames": 2}, seed=9)
    again = pickle.loads(pickle.dumps(dataset))
    assert clips(again) == clips(dataset)


def test_frames_are_spread_over_the_whole_video(tmp_path, film):
    arguments = {"n_frames": 5, "uniformly_sample": True}
    (batch,) = get_video_dataset(shards(tmp_path, film, (1,)), 1, decoder_kwargs=arguments)
    assert numbers_in(batch["mp4"][0].numpy()) == [0, 18, 37, 55, 74]
    assert batch["mp4"].dtype == torch.float32
    assert batch["start_frame"].tolist() == [0]


def test_without_a_number_a_clip_is_the_whole_video(tmp_path, film):
    (batch,) = get_video_dataset(shards(tmp_path, film, (1,)), 1, decoder_kwargs={"fps": 5})
    assert numbers_in(batch["mp4"][0].numpy()) == list(range(0, 75, 5))


def test_rates_are_drawn_that_the_video_has(tmp_path, film):
    urls = shards(tmp_path, film, (12,))
    (batch,) = get_video_dataset(
        urls, 12, decoder_kwargs={"n_frames": 2, "fps": [30, 25, 5, 1]}, dtype="uint8"
    )
    rates = batch["native_fps"].tolist()
    assert set(rates) <= {25, 5, 1}
    assert len(set(rates)) > 1
    assert batch["fps_id"][:, 0].tolist() == [[30, 25, 5, 1].index(rate) for rate in rates]
    for rate, clip in zip(rates, batch["mp4"].numpy(), strict=True):
        first, second = numbers_in(clip)
        assert second - first == 25 // rate
    (batch,) = get_video_dataset(
        urls, 12, decoder_kwargs={"n_frames": 2, "fps": "sample", "min_fps": 3, "max_fps": 90}
    )
    rates = batch["native_fps"].tolist()
    assert 3 <= min(rates) < max(rates) <= 25
    assert batch["fps_id"][:, 0].tolist() == [rate - 3 for rate in rates]


def test_a_clip_lies_inside_one_scene(tmp_path, film):
    scenes = np.array([[0, 3], [10, 20], [40, 52]])
    file = io.BytesIO()
    np.save(file, scenes)
    for field, data in (("npy", file.getvalue()), ("json", json.dumps(scenes.tolist()).encode())):
        urls = shards(tmp_path / field, film, (12,), **{field: data})
        dataset = get_video_dataset(
            urls, 4, cuts_key=field, decoder_kwargs={"n_frames": 5, "fps": 12.5}
        )
        found = clips(dataset)
        assert len(found) == 12
        for _, start, numbers in found:
            assert numbers == list(range(start, start + 10, 2))
            assert 10 <= start <= 11 or 40 <= start <= 43
        assert {start >= 40 for _, start, _ in found} == {True, False}
        assert field not in next(iter(dataset))


@pytest.mark.parametrize("cuts", [[], [[0, 3]], [[0, 99]], [[5, 2]], [1, 2], {"a": 1}, [["x", 1]]])
def test_cuts_that_give_no_clip_are_an_error(tmp_path, film, cuts):
    urls = shards(tmp_path, film, (1,), json=json.dumps(cuts).encode())
    dataset = get_video_dataset(urls, 1, cuts_key="json", decoder_kwargs={"n_frames": 5})
    with pytest.raises(DecodingError, match=r"cuts|scenes"):
        list(dataset)


def test_a_video_that_is_too_short_is_padded_and_marked(tmp_path, short_film):
    arguments = {"n_frames": 4, "fps": 12.5, "pad_frames": True}
    (batch,) = get_video_dataset(shards(tmp_path, short_film, (1,)), 1, decoder_kwargs=arguments)
    clip = batch["mp4"][0].numpy()
    assert numbers_in(clip[:3]) == [0, 2, 4]
    assert (clip[3] == 0).all()
    assert batch["pad_masks"].tolist() == [[1, 1, 1, 0]]
    assert batch["pad_start"].tolist() == [3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_too_short_and_bad_videos_are_counted_and_said(
    tmp_path, film, short_film, num_workers, caplog
):
    videos = [film, short_film, film[: len(film) // 2], film, b"", film]
    urls = shards(tmp_path, None, (3, 3), mp4=videos.__getitem__)
    with pytest.raises(
        DecodingError, match=r"mp4.*0001.*0\.tar.*has 5 frames.*takes 9.*pad_frames"
    ):
        list(get_video_dataset(urls, 1, decoder_kwargs={"n_frames": 9}))
    seen = []
    dataset = get_video_dataset(
        urls,
        1,
        decoder_kwargs={"n_frames": 9},
        handler=lambda error: bool(seen.append(error)) or True,
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=num_workers)
    assert sorted(key for batch in loader for key in batch["__key__"]) == ["0000", "0003", "0005"]
    assert dataset.left_out == {"too short": 1, "bad": 2}
    if not num_workers:
        assert [type(error.__cause__) is UnfitVideoError for error in seen] == [True, False, False]
        assert "3 of the 6 samples" in caplog.text
        assert "2 bad, 1 too short" in caplog.text


def test_a_handler_that_stops_ends_the_pass(tmp_path, film, short_film):
    urls = shards(tmp_path, None, (3,), mp4=[film, short_film, film].__getitem__)
    dataset = get_video_dataset(
        urls, 1, decoder_kwargs={"n_frames": 9}, handler=wds.ignore_and_stop
    )
    assert [key for key, _, _ in clips(dataset)] == ["0000"]
    assert dataset.left_out == {"too short": 1}


def test_samples_that_fail_are_given_with_a_mark_where_all_are_asked_for(tmp_path, film):
    urls = shards(tmp_path, None, (4,), mp4=[film, b"x", film, b""].__getitem__)
    dataset = get_video_dataset(
        urls, 2, decoder_kwargs={"n_frames": 2}, return_always=True, handler=wds.ignore_and_continue
    )
    first, second = dataset
    for batch, keys in ((first, ["0000", "0001"]), (second, ["0002", "0003"])):
        assert batch["__key__"] == keys
        assert batch["__corrupted__"].tolist() == [False, True]
        assert (batch["mp4"][0] == batch["mp4"][1]).all()
    assert dataset.left_out == {"bad": 2}
    alone = get_video_dataset(
        urls, 1, decoder_kwargs={"n_frames": 2}, return_always=True, handler=wds.ignore_and_continue
    )
    assert [bool(batch["__corrupted__"][0]) for batch in alone] == [False, True, False, True]


def test_a_video_of_too_few_frames_a_second_is_no_clip(tmp_path, film):
    dataset = get_video_dataset(
        shards(tmp_path, film, (1,)),
        1,
        decoder_kwargs={"n_frames": 2, "fps": [30, 60]},
        handler=wds.ignore_and_continue,
    )
    assert list(dataset) == []
    assert dataset.left_out == {"too few fps": 1}


def test_crops_lie_in_the_centre_or_anywhere(tmp_path, film):
    urls = shards(tmp_path, film, (6,))
    arguments = {"n_frames": 1, "uniformly_sample": True}

    def pictures(**more):
        (batch,) = get_video_dataset(urls, 6, decoder_kwargs=arguments, dtype="uint8", **more)
        return batch["mp4"][:, 0].numpy()

    whole = pictures()
    assert whole.shape == (6, HEIGHT, WIDTH, 3)
    centre = pictures(crop_size=[40, 60])
    assert (centre == whole[:, 40:80, 50:110]).all()
    anywhere = pictures(crop_size=[40, 60], random_crop=True)
    places = set()
    for crop in anywhere:
        (place,) = [
            (y, x)
            for y in range(HEIGHT - 39)
            for x in range(WIDTH - 59)
            if (whole[0, y, x] == crop[0, 0]).all()
            and (whole[0, y : y + 40, x : x + 60] == crop).all()
        ]
        places.add(place)
    assert len(places) > 3
    assert (pictures(crop_size=[40, 60], random_crop=True) == anywhere).all()
    assert pictures(resize_size=60).shape == (6, 60, 80, 3)
    assert pictures(resize_size=[30, 90]).shape == (6, 30, 90, 3)
    # A crop as large as the picture is the picture.
    assert (pictures(crop_size=[HEIGHT, WIDTH], random_crop=True) == whole).all()


def test_a_crop_that_does_not_fit_is_an_error(tmp_path, film):
    dataset = get_video_dataset(
        shards(tmp_path, film, (1,)), 1, decoder_kwargs={"n_frames": 1}, crop_size=121
    )
    with pytest.raises(DecodingError, match=r"crop_size=\[121, 121\].*120 x 160"):
        list(dataset)


def test_sizes_before_resizing_get_the_names_asked_for(tmp_path, film):
    (batch,) = get_video_dataset(
        shards(tmp_path, film, (1,)), 1, decoder_kwargs={"n_frames": 1}, resize_size=30,
        original_height_key="h", original_width_key="w",
    )  # fmt: skip
    assert (batch["h"].tolist(), batch["w"].tolist()) == ([[HEIGHT]], [[WIDTH]])
    assert "original_height" not in batch


def test_keys_are_removed_enforced_and_transformed(tmp_path, film):
    urls = shards(tmp_path, film, (4,), cls=lambda n: b"7" if n != 2 else None, bad=b"x", npy=b"x")
    dataset = get_video_dataset(
        urls, 4, decoder_kwargs={"n_frames": 1}, keys_to_remove="npy",
        enforce_additional_keys=["txt", "cls"], custom_transforms={"txt": str.upper},
    )  # fmt: skip
    (batch,) = dataset
    assert batch["__key__"] == ["0000", "0001", "0003"]
    assert batch["txt"] == ["TEXT 0", "TEXT 1", "TEXT 3"]
    assert batch["cls"].tolist() == [7, 7, 7]
    assert "npy" not in batch
    assert dataset.left_out == {"missing keys": 1}


def test_no_sample_with_the_keys_asked_for_is_an_error(tmp_path, film):
    urls = shards(tmp_path, film, (2,), txt=None)
    with pytest.raises(
        ValueError, match=r"all 2 samples.*enforce_additional_keys.*lacks \['txt'\]"
    ):
        list(get_video_dataset(urls, 1, decoder_kwargs={"n_frames": 1}))
    assert len(list(get_video_dataset(urls, 1, enforce_additional_keys=[]))) == 2


def test_metadata_selects_samples(tmp_path, film, monkeypatch):
    scores = [{"AESTHETIC_SCORE": s, "punsafe": u} for s, u in ((4, 0), (6, 0.2), (7, 0.8), (9, 0))]
    urls = shards(tmp_path, film, (4,), json=lambda n: json.dumps(scores[n]).encode())

    def detect(text):
        return [types.SimpleNamespace(lang="de", prob=0.3 + 0.5 * text.endswith("3")),
                types.SimpleNamespace(lang="en", prob=0.5)]  # fmt: skip

    fake = types.ModuleType("langdetect")
    fake.detect_langs, fake.LangDetectException = detect, ValueError
    fake.DetectorFactory = types.SimpleNamespace(seed=None)
    fake.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "langdetect", fake)
    dataset = get_video_dataset(
        urls, 4, decoder_kwargs={"n_frames": 1}, aesthetics_threshold=5, p_unsafe_threshold=0.5,
        allowed_languages="en",
    )  # fmt: skip
    assert [key for key, _, _ in clips(dataset)] == ["0001"]
    assert dataset.left_out == {"aesthetics": 1, "unsafe": 1, "language": 1}
    nothing = shards(tmp_path / "other", film, (1,), json=b"{}")
    with pytest.raises(KeyError, match=r"0000.*AESTHETIC_SCORE"):
        list(get_video_dataset(nothing, 1, decoder_kwargs={"n_frames": 1}, aesthetics_threshold=5))


def test_without_a_decoder_samples_are_bytes_and_no_batches(tmp_path, film):
    first = next(iter(get_video_dataset(shards(tmp_path, film), 4)))
    assert first["mp4"] == film
    assert first["txt"] == b"text 0"


def test_the_last_batch_is_dropped_and_counted(tmp_path, film):
    urls = shards(tmp_path, film, (5,))
    dataset = get_video_dataset(urls, 2, decoder_kwargs={"n_frames": 1}, drop_last=True)
    assert [len(batch["__key__"]) for batch in dataset] == [2, 2]
    assert dataset.left_out == {"last batch": 1}
    whole = get_video_dataset(urls, 2, decoder_kwargs={"n_frames": 1}, repeat=2)
    assert sum(len(batch["__key__"]) for batch in whole) == 10


def test_sound_has_one_length_and_a_mask_of_what_is_heard(tmp_path, media_files):
    sound = media_files.sound("a.wav", rate=8000, seconds=1.5).read_bytes()
    urls = shards(tmp_path, None, (2,), mp4=None, wav=sound)
    (batch,) = get_video_dataset(
        urls, 2, video_key="wav", decoder_kwargs={"sample_rate": 8000, "max_length": 2}
    )
    assert tuple(batch["wav"].shape) == (2, 1, 16000)
    assert batch["audio_pad_masks"].sum(dim=1).tolist() == [12000, 12000]
    assert (batch["wav"][:, :, 12000:] == 0).all()
    assert batch["wav"][:, :, :12000].abs().max() > 0.1
    assert batch["original_sample_rate"].tolist() == [8000, 8000]
    assert batch["sample_rate"].tolist() == [8000, 8000]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"repeat": 0}, ValueError, "repeat=0"),
        ({"video_key": "jpg"}, ValueError, "video_key='jpg'"),
        ({"decoder_kwargs": {"frames": 3}}, TypeError, "frames.*n_frames"),
        ({"decoder_kwargs": {"n_frames": 0}}, ValueError, "n_frames=0"),
        ({"decoder_kwargs": {"n_frames": 2, "fps": "all"}}, ValueError, "fps='all'"),
        ({"decoder_kwargs": {"n_frames": 2, "fps": []}}, ValueError, "fps="),
        ({"decoder_kwargs": {"n_frames": 2, "fps": [5, 0]}}, ValueError, "fps="),
        ({"decoder_kwargs": {"n_frames": 2, "fps": "sample", "max_fps": 0}}, ValueError, "max_fps"),
        ({"decoder_kwargs": {"uniformly_sample": True}}, ValueError, "n_frames"),
        ({"resize_size": 0}, ValueError, "resize_size=0"),
        ({"resize_size": [1, 2, 3]}, ValueError, "resize_size"),
        ({"crop_size": "64"}, ValueError, "crop_size"),
        ({"resize_size": 32, "crop_size": 64}, ValueError, "crop_size"),
        ({"dtype": "int64"}, ValueError, "dtype"),
        ({"cuts_key": 7}, TypeError, "cuts_key=7"),
        ({"cuts_key": "xyz"}, ValueError, "cuts_key='xyz'"),
        ({"video_key": "wav", "decoder_kwargs": {"n_frames": 2}}, TypeError, "n_frames"),
        ({"decoder_kwargs": {}, "p_unsafe_threshold": 0.5}, ValueError, "decoder_kwargs"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        get_video_dataset(
            **{"urls": "a.tar", "batch_size": 2, "decoder_kwargs": {"n_frames": 2}} | arguments
        )


def test_two_ranks_with_two_workers_end_with_every_sample(tmp_path, film):
    # Five shards of four: video2dataset never ends here, and without workers it hands out 16.
    urls = shards(tmp_path / "shards", film, (4,) * 5)
    done = run_ranks(PROGRAM, tmp_path, *urls, nproc=2, timeout=240)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for shuffle in ("0", "100"):
        keys = Counter(key for rank in ranks for key in rank["once"][shuffle])
        assert keys == Counter(f"{i:04}" for i in range(20))
        for rank in ranks:
            assert rank["wrong"] == 0
    # Equal steps where they are asked for: 3 batches a rank, though one has three shards of five.
    assert [rank["steps"] for rank in ranks] == [[3, 3], [3, 3]]
    # Each rank says that without them it has another number of batches than the other.
    assert done.stdout.count("5 shards are divided among 2 ranks") >= 2


def test_fewer_shards_than_ranks_are_refused(tmp_path, film, as_reader):
    urls = shards(tmp_path, film, (2, 2))
    as_reader(1, 3)
    with pytest.raises(ValueError, match="2 shards for 3 ranks"):
        list(get_video_dataset(urls, 1, decoder_kwargs={"n_frames": 1}))


def test_the_downloader_is_not_there_and_that_is_told():
    with pytest.raises(AttributeError, match="downloader"):
        video2dataset.video2dataset


def test_its_loader_is_answered_with_a_dataset_of_clips(tmp_path, film):
    urls = shards(tmp_path, film, sizes=(2,))
    dataset = get_video_dataset(urls, batch_size=2, decoder_kwargs={"n_frames": 4})
    with pytest.raises(
        ValueError, match=r"video2dataset's loader; instead: sw\.tar\(urls\)\.decode"
    ):
        sw.from_webdataset(dataset)
