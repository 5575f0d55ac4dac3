"""`sw.show`: pictures, strips of clips, waveforms and texts of samples and batches."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import shardwise as sw
from shardwise.extensions.show.show import tile_of
from tests.support.tars import make_shards

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (3, 40, 60), np.uint8)
CLIP = RNG.integers(0, 256, (20, 3, 40, 60), np.uint8)


def encode(form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS.transpose(1, 2, 0)).save(file, format=form)
    return file.getvalue()


def images_in(html: str) -> list[np.ndarray]:
    found = re.findall(r"src='data:image/png;base64,([^']+)'", html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def loader(**options: Any) -> sw.DataLoader:
    samples = [
        {"__key__": f"k{n}", "jpg": PIXELS, "mp4": CLIP, "txt": f"text {n}", "cls": n}
        for n in range(5)
    ]
    chosen = {"batch_size": 4, "num_workers": 0, "num_threads": 0, "rank": 0, "world_size": 1}
    return sw.DataLoader(sw.wrap(samples), **(chosen | options))


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_a_batch_is_shown_sample_by_sample(output: str) -> None:
    shown = sw.show(next(iter(loader(output=output))))
    html = shown._repr_html_()
    assert len(images_in(html)) == 8
    assert [cell.key for cell in shown.cells] == ["k0", "k1", "k2", "k3"]
    assert shown.cells[3].captions == {"txt": "text 3", "cls": "3"}
    assert repr(shown).startswith("<4 samples of jpg, mp4, txt, cls")


def test_rows_that_only_fill_the_batch_are_marked() -> None:
    *_, last = loader(remainder="pad")
    assert sw.show(last).cells[0].key == "k4"
    assert all(cell.key.endswith(" (padding)") for cell in sw.show(last).cells[1:])


def test_a_tuple_a_sample_samples_and_a_dataset_are_shown() -> None:
    made = loader(as_tuple=("jpg", "cls"))
    (cell, *others) = sw.show(next(iter(made))).cells
    assert [*cell.tiles] == ["0"]
    assert cell.captions == {"1": "0"}
    assert len(others) == 3
    data = made.dataset
    assert len(sw.show(data[0]).cells) == 1
    assert len(sw.show([data[0], data[1]]).cells) == 2
    assert len(sw.show(data, num_samples=3).cells) == 3
    assert len(sw.show(data).cells) == 5


@pytest.mark.parametrize(
    "value",
    [
        PIXELS,
        PIXELS.transpose(1, 2, 0),
        torch.tensor(PIXELS),
        torch.tensor(PIXELS / 255.0).bfloat16().requires_grad_(),
        (PIXELS / 255.0 - 0.45) / 0.22,
        Image.fromarray(PIXELS.transpose(1, 2, 0)),
    ],
    ids=["CHW", "HWC", "tensor", "bfloat16", "normalised", "Pillow"],
)
def test_a_picture_of_any_form_is_enlarged_by_whole_pixels(value: Any) -> None:
    tile = tile_of(value, 130)
    assert tile is not None
    assert tile.shape == (80, 120, 3)
    small = tile[::2, ::2].astype(int)
    assert np.abs(small - PIXELS.transpose(1, 2, 0)).max() <= 2
    assert (tile == tile[::2, ::2].repeat(2, axis=0).repeat(2, axis=1)).all()


def test_encoded_pictures_and_grey_ones_are_shown_in_colours() -> None:
    encoded = [encode(form) for form in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "AVIF")]
    for value in (*encoded, PIXELS[0], PIXELS[:1], PIXELS[0] > 127, PIXELS[0].astype(np.int64)):
        tile = tile_of(value, 60)
        assert tile is not None
        assert tile.shape == (40, 60, 3)


def test_a_clip_is_a_strip_of_its_first_its_last_and_six_frames_between() -> None:
    for clip in (CLIP, torch.tensor(CLIP), CLIP.transpose(0, 2, 3, 1), CLIP[:5]):
        tile = tile_of(clip, 120)
        count = min(8, len(clip))
        assert tile is not None
        assert tile.shape == (40, count * 60, 3)
        first, last = CLIP[0], CLIP[len(clip) - 1]
        assert (tile[:, :60] == first.transpose(1, 2, 0)).all()
        assert (tile[:, -60:] == last.transpose(1, 2, 0)).all()


def test_a_waveform_has_ink_where_the_sound_is() -> None:
    sound = np.zeros((2, 1600), np.float32)
    sound[:, 800:] = np.sin(np.arange(800) / 10)
    tile = tile_of(sound, 160)
    assert tile is not None
    assert tile.shape == (80, 320, 3)
    heights = (tile[..., 0] == 0).sum(axis=0)
    assert (heights[:150] <= 2).all()
    assert (tile[0, 160:, 0] == 0).any()
    assert (tile[-1, 160:, 0] == 0).any()
    assert tile_of(np.zeros(1000, np.float32), 160) is not None


@pytest.mark.parametrize(
    "value",
    [
        "text", 3, None, b"no picture", b"\xff\xd8\xff cut", [1, 2], {"a": 1}, np.arange(1000),
        np.zeros((3, 0, 4), np.uint8), np.zeros(8), np.array(["a"]), np.zeros((2, 2, 2, 2, 2)),
        torch.tensor(1), np.zeros((4, 9, 7, 5), np.uint8), torch.eye(30).to_sparse(),
        torch.empty(3, 9, 9, device="meta"), np.zeros((9, 9), complex), np.datetime64("2020"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_a_text(value: Any) -> None:
    assert tile_of(value, 160) is None
    (cell,) = sw.show({"__key__": "a", "x": value}).cells
    assert "x" in cell.captions


def test_numbers_that_are_not_finite_are_drawn_as_zeros() -> None:
    for shape in ((40, 60), (1000,)):
        value = np.full(shape, np.nan)
        value[0] = np.inf
        assert tile_of(value, 60) is not None


@given(st.integers(2, 40), st.integers(2, 90), st.sampled_from([8, 9, 16, 31]))
def test_a_picture_fits_its_side_and_keeps_its_mean(height: int, width: int, side: int) -> None:
    value = np.full((height, width, 3), 77, np.uint8)
    tile = tile_of(value, side)
    assert tile is not None
    assert max(tile.shape) <= side
    assert max(tile.shape) > side // 2
    assert (tile == 77).all()


def test_a_sound_file_is_drawn_and_a_damaged_one_says_what_it_has() -> None:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(8000) / 5), 8000, format="WAV")
    whole, cut = file.getvalue(), file.getvalue()[:60]
    (good,) = sw.show({"wav": whole}).cells
    assert good.tiles["wav"].shape == (80, 320, 3)
    damaged = sw.show({"flac": b"fLaC" + b"\0" * 50, "wav": cut}).cells[0]
    assert "flac" in damaged.captions
    assert damaged.texts["flac"].count(":") >= 1


def test_a_video_file_is_a_strip(media_files: Any) -> None:
    (cell,) = sw.show({"mp4": media_files.read("b_frames")}, side=160).cells
    assert cell.tiles["mp4"].shape == (60, 8 * 80, 3)
    decoded = sw.show({"mp4": sw.media()(media_files.read("b_frames"))}, side=160).cells[0]
    assert (decoded.tiles["mp4"] == cell.tiles["mp4"]).all()


def test_the_picture_holds_every_tile(tmp_path: Path) -> None:
    shown = sw.show(next(iter(loader())), side=60)
    for name in ("a.png", "b.jpg", "c.PNG"):
        shown.save(tmp_path / name)
    drawn = np.asarray(Image.open(tmp_path / "a.png"))
    flat = PIXELS.transpose(1, 2, 0)
    places = [
        (y, x)
        for y in range(drawn.shape[0] - 40)
        for x in range(drawn.shape[1] - 60)
        if (drawn[y, x] == flat[0, 0]).all() and (drawn[y : y + 40, x : x + 60] == flat).all()
    ]
    assert len(places) == 4
    has_ink = (drawn < 255).any(axis=2)
    area = sum(tile[..., 0].size for cell in shown.cells for tile in cell.tiles.values())
    assert has_ink.sum() > area + 200  # the rest are texts


def test_texts_of_the_data_are_escaped(tmp_path: Path) -> None:
    sample = {"__key__": "<em>", "<i>": "<script>", "jpg": PIXELS}
    shown = sw.show(sample)
    shown.save(tmp_path / "a.html", title="<u>", text="<s>")
    page = (tmp_path / "a.html").read_text()
    for mark in ("<em>", "<i>", "<script>", "<u>", "<s>"):
        assert mark not in page
    assert shown._repr_html_() in page
    shown.save(tmp_path / "a.png")


def test_texts_of_any_characters_are_written(tmp_path: Path) -> None:
    texts = "half a pair \udc80", "\0", "\x1b[2J", "写真", "", "a\nb", "x" * 10_000
    shown = sw.show([{"__key__": text, "txt": text} for text in texts])
    for name in ("a.png", "a.html"):
        shown.save(tmp_path / name)
    assert "写真" in (tmp_path / "a.html").read_text(encoding="utf-8")
    sw.show({}).save(tmp_path / "b.png")


def test_wrong_arguments_are_answered(tmp_path: Path) -> None:
    made = loader()
    for value in (made, 3, "a.tar", [1], None, np.zeros((3, 4, 4)), ()):
        with pytest.raises(TypeError, match=r"show\(\) takes a batch, a sample"):
            sw.show(value)
    with pytest.raises(ValueError, match="num_samples=0"):
        sw.show(made.dataset, num_samples=0)
    with pytest.raises(ValueError, match="side=1"):
        sw.show(made.dataset, side=1)
    with pytest.raises(TypeError, match="did you mean num_samples="):
        sw.show(made.dataset, num_sample=3)  # type: ignore[call-arg]
    shown = sw.show(made.dataset)
    for name in ("a", "a.mp4", "a.tar"):
        with pytest.raises(ValueError, match="must end in"):
            shown.save(tmp_path / name)
    with pytest.raises(ValueError, match="no sample"):
        sw.show([]).save(tmp_path / "a.png")
    assert [*tmp_path.iterdir()] == []


def test_fields_that_a_batch_has_as_lists_are_shown(tmp_path: Path) -> None:
    data = sw.tar(make_shards(tmp_path, [3]))
    batch = next(iter(sw.DataLoader(data, 3, num_workers=0, rank=0, world_size=1)))
    assert [cell.key for cell in sw.show(batch).cells] == [data[n]["__key__"] for n in range(3)]
