"""`sw.show`: the samples of a batch, or of a dataset, to look at."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import path_text, suggest_names
from shardwise.base.errors import ShardwiseError
from shardwise.base.markup import png, short
from shardwise.base.pillow_import import import_pillow
from shardwise.base.plugins import find
from shardwise.base.shown import escaped
from shardwise.dataset import Dataset
from shardwise.dataset.display import PICTURE_BRANDS, pixels_of
from shardwise.plan.arguments import whole
from shardwise.storage.write import atomic_write

_FRAMES = 8  # of a clip, evenly spaced
_SOUND_S = 60.0  # of an encoded sound
_MIN_SOUND, _MAX_CHANNELS = 256, 8  # fewer samples are a vector, more channels a matrix
_INK = (0, 121, 107)
_MAGIC = (b"\x1aE\xdf\xa3", b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3")


def tile_of(value: Any, side: int) -> NDArray[np.uint8] | None:
    """A value as pixels, uint8 `[H, W, 3]`, about `side` of them; None of other values.

    Raises:
        DataError: encoded media are damaged.
        MissingExtraError: the decoder of encoded media is not installed.
    """
    if isinstance(value, bytes) and _is_media(value):
        value = find("decoders", "media")()(value)
    info: Any = getattr(value, "info", None)
    if hasattr(info, "num_frames"):
        seconds = min(info.seconds, _SOUND_S)
        value = (
            value.frames(_spread(info.num_frames)) if info.num_frames else value.audio(0, seconds)
        )
    if not isinstance(value, bytes):
        value = _numbers(value)
        if value is None or value.size == 0:
            return None
        is_row = value.ndim == 1 or (value.ndim == 2 and len(value) <= _MAX_CHANNELS)
        if is_row and value.dtype.kind == "f" and value.shape[-1] >= _MIN_SOUND:
            return _wave(np.atleast_2d(value).mean(axis=0), side)
        value = _in_range(value)
        if value.ndim == 4:
            tiles = [tile_of(frame, side // 2) for frame in value[_spread(len(value))]]
            frames = [tile for tile in tiles if tile is not None]
            return np.hstack(frames) if frames else None
        if value.ndim not in (2, 3) or sorted(value.shape)[-2] < 2:
            return None
    pixels = pixels_of(value)
    return None if pixels is None else _fit_picture(pixels, side)


def _is_media(data: bytes) -> bool:
    is_riff = data[:4] == b"RIFF" and data[8:12] in (b"WAVE", b"AVI ")
    is_mp4 = data[4:8] == b"ftyp" and data[8:12] not in PICTURE_BRANDS
    return is_riff or is_mp4 or data.startswith(_MAGIC)


def _spread(count: int) -> NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, _FRAMES)).round().astype(np.int64)


def _numbers(value: Any) -> NDArray[Any] | None:
    """A tensor, an array or a Pillow image as an array of numbers; None of anything else."""
    if hasattr(value, "detach"):
        if value.is_meta or value.is_quantized or str(value.layout) != "torch.strided":
            return None
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    if not hasattr(value, "__array__") and not hasattr(value, "__array_interface__"):
        return None
    array = np.asarray(value)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = np.nan_to_num(array.astype(np.float32), posinf=0.0, neginf=0.0)
    return array if array.dtype.kind in "buif" else None


def _in_range(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 to 1, or uint8: others are stretched from the least to the greatest."""
    low, high = float(array.min()), float(array.max())
    if array.dtype == np.uint8 or (array.dtype.kind == "f" and low >= 0 and high <= 1):
        return array
    return (array.astype(np.float32) - low) / ((high - low) or 1.0)


def _wave(samples: NDArray[np.float32], side: int) -> NDArray[np.uint8]:
    """Draw each column from its least to its greatest sample, scaled to the largest amplitude."""
    middle = (side // 2 - 1) / 2
    starts = np.linspace(0, len(samples), min(2 * side, len(samples)), endpoint=False)
    heights = samples * (middle / (float(np.abs(samples).max()) or 1.0))
    top, bottom = (
        middle - edge.reduceat(heights, starts.astype(np.int64))
        for edge in (np.maximum, np.minimum)
    )
    rows = np.arange(side // 2)[:, None]
    has_ink = (rows >= np.floor(top)) & (rows <= np.ceil(bottom))
    return np.where(has_ink[..., None], _INK, 255).astype(np.uint8)


def _fit_picture(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """A picture in colours; its longer side is `side` at most, by means of blocks or repeats."""
    height, width = pixels.shape[:2]
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3]
    step = -(-max(height, width) // side)
    if step == 1:
        times = side // max(height, width)
        return pixels.repeat(times, axis=0).repeat(times, axis=1)
    # Blocks at the edges are smaller.
    rows, columns = np.arange(0, height, step), np.arange(0, width, step)
    sums = np.add.reduceat(pixels, rows, axis=0, dtype=np.uint32)
    counts = (
        np.minimum(step, height - rows)[:, None, None] * np.minimum(step, width - columns)[:, None]
    )
    means: NDArray[np.uint8] = (np.add.reduceat(sums, columns, axis=1) // counts).astype(np.uint8)
    return means


_WIDTH, _LEAST_WIDTH = 1600, 160  # pixels of a picture, unless one sample is wider, and of a sample
_LINE, _LETTER, _GAP, _MAX_LINES = 13, 6, 6, 4  # pixels, and lines of one value
_CELL = "display:inline-block;vertical-align:top;margin:4px;max-width:100%;overflow:hidden"


@suggest_names
def show(value: Any, *, num_samples: int = 16, side: int = 160) -> Shown:
    """Show a batch, as a dict or a tuple, a sample, a list of samples, or a dataset's first ones.

    A notebook draws the result: pictures of `side` pixels, eight frames of each clip, waveforms
    (of encoded sound the first minute) and texts. Normalised pictures are stretched to what shows.

    Examples:
        >>> import numpy as np
        >>> import shardwise as sw
        >>> sw.show({"__key__": "a", "jpg": np.zeros((3, 8, 8), np.uint8), "cls": 3})
        <1 sample of jpg, cls: a notebook draws it, save("samples.png") writes it>
    """
    whole("side", side, least=8, most=4096)
    samples = islice(_samples_of(value), whole("num_samples", num_samples, least=1))
    return Shown([_cell(sample, side) for sample in samples])


class Cell(NamedTuple):
    """One sample: its key, the pictures of fields that have one, and every field as a text."""

    key: str
    tiles: Mapping[str, NDArray[np.uint8]]
    texts: Mapping[str, str]

    @property
    def captions(self) -> dict[str, str]:
        """The texts of the fields without a picture."""
        return {name: text for name, text in self.texts.items() if name not in self.tiles}


class Shown:
    """Samples as `show` gives them: a notebook draws them, `save` writes them."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(name for cell in self.cells for name in cell.texts))
        count = f"{len(self.cells)} sample" + "s" * (len(self.cells) != 1)
        return f'<{count} of {names}: a notebook draws it, save("samples.png") writes it>'

    def _repr_html_(self) -> str:
        return "".join(f"<figure style='{_CELL}'>{_html(cell)}</figure>" for cell in self.cells)

    def save(self, path: str | Path, *, title: str = "Samples", text: str = "") -> None:
        """Write a picture (.png, .jpg, by Pillow), or a page (.html) with a title and a text."""
        name, heading = path_text("path", path), escape(title)
        if name.lower().endswith((".html", ".htm")):
            page = f"<!doctype html><meta charset=utf-8><title>{heading}</title><h1>{heading}</h1>"
            with atomic_write(name, "w") as page_file:
                page_file.write(f"{page}{self._repr_html_()}<pre>{escape(text)}</pre>")
            return
        pillow = import_pillow()
        form = pillow.registered_extensions().get(Path(name).suffix.lower())
        if form not in pillow.SAVE or not self.cells:
            wrong = f"save({name!r}): the name must end in .png, .jpg or .html"
            raise ValueError(wrong if self.cells else "save(): there is no sample to draw")
        with atomic_write(name) as file:
            self._picture(pillow).save(file, format=form)

    def _picture(self, pillow: Any) -> Any:
        tiles = [tile for cell in self.cells for tile in cell.tiles.values()]
        width = max([_LEAST_WIDTH, *(tile.shape[1] for tile in tiles)])
        lines = [_lines(cell, width // _LETTER) for cell in self.cells]
        heights = [
            sum(len(tile) + _GAP for tile in cell.tiles.values()) + _LINE * len(texts)
            for cell, texts in zip(self.cells, lines, strict=True)
        ]
        across, down = width + _GAP, max(heights) + 2 * _GAP
        columns = min(max(1, _WIDTH // across), -int(-(len(lines) ** 0.5) // 1))
        image = pillow.new("RGB", (columns * across, -(-len(lines) // columns) * down), "white")
        draw = import_module("PIL.ImageDraw").Draw(image)
        for number, (cell, texts) in enumerate(zip(self.cells, lines, strict=True)):
            x, y = number % columns * across + _GAP // 2, number // columns * down + _GAP
            for tile in cell.tiles.values():
                image.paste(pillow.fromarray(tile), (x, y))
                y += len(tile) + _GAP
            for line in texts:
                draw.text((x, y), line, fill="black")
                y += _LINE
        return image


def _html(cell: Cell) -> str:
    tiles = "".join(
        f"<img title='{escape(name)}' style='display:block;margin-bottom:2px;max-width:100%' "
        f"src='data:image/png;base64,{base64.b64encode(png(tile)).decode()}'>"
        for name, tile in cell.tiles.items()
    )
    texts = "".join(f"<div><b>{escape(n)}</b> {escape(t)}</div>" for n, t in cell.captions.items())
    return f"{tiles}<figcaption style='max-width:40em'>{escape(cell.key)}{texts}</figcaption>"


def _lines(cell: Cell, width: int) -> list[str]:
    texts = [cell.key, *(f"{name}: {text}" for name, text in cell.captions.items())]
    wrapper = textwrap.TextWrapper(width, max_lines=_MAX_LINES, placeholder=" ...")
    return [line for text in texts for line in wrapper.wrap(text)]


def _cell(sample: Mapping[str, Any], side: int) -> Cell:
    tiles, texts = dict[str, NDArray[np.uint8]](), dict[str, str]()
    for name, value in sample.items():
        if str(name).startswith("__"):
            continue
        value = value.item() if getattr(value, "shape", None) == () else value
        texts[str(name)] = escaped(value if isinstance(value, str) else short(value), keep="\n\t")
        try:
            tile = tile_of(value, side)
        except ShardwiseError as error:
            texts[str(name)] += f": {error}"
        else:
            tiles |= {} if tile is None else {str(name): tile}
    is_padding = not sample.get("__valid__", True)
    return Cell(escaped(str(sample.get("__key__", ""))) + " (padding)" * is_padding, tiles, texts)


def _samples_of(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Dataset):
        gone = {*value.removed.tolist()}
        return (value[row] for row in range(len(value)) if row not in gone)
    if isinstance(value, tuple) and value and all(hasattr(column, "__len__") for column in value):
        value = {"__index__": value[0], **{str(n): column for n, column in enumerate(value)}}
    if isinstance(value, Mapping):
        if "__index__" not in value:
            return iter([value])
        num_rows = len(value["__index__"])
        return (_row(value, row, num_rows) for row in range(num_rows))
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return iter(value)
    raise TypeError(
        "show() takes a batch, a sample, a list of samples or a Dataset, not a "
        f"{type(value).__name__}; of a loader, show next(iter(loader))"
    )


def _row(column: Any, row: int, num_rows: int) -> Any:
    """A row of a column, of nested ones too; a value that is not a column belongs to every row."""
    if isinstance(column, Mapping):
        return {name: _row(each, row, num_rows) for name, each in column.items()}
    is_column = hasattr(column, "__len__") and not isinstance(column, str | bytes)
    return column[row] if is_column and len(column) == num_rows else column
