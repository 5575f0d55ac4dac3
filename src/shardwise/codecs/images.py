"""`image`: make an image decoder of the user's arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from shardwise.base.arguments import suggest_names
from shardwise.codecs.image_backends import CHANNELS
from shardwise.codecs.image_crop import RandomCrop
from shardwise.codecs.image_decoder import DEFAULT_MAX_PIXELS, Image, RandomCropImage


@suggest_names
def image(
    mode: Literal["rgb", "gray", "rgba"] = "rgb",
    *,
    size: int | tuple[int, int] | None = None,
    fit: Literal["stretch", "crop"] = "stretch",
    layout: Literal["CHW", "HWC", "channels_last"] = "CHW",
    dtype: Literal["uint8", "uint16", "float32"] | None = None,
    orient: bool = False,
    antialias: bool = True,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    interpolation: Literal["bilinear", "bicubic", "area", "nearest", "linear"] = "bilinear",
    decode_on: Literal["cpu", "device", "auto"] = "cpu",
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    crop: Literal["random"] | None = None,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    flip: float | None = None,
    stream: int | None = None,
) -> Image:
    """Decode JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF and HEIC files.

    Args:
        mode: "rgb" (3 channels), "gray" (1) or "rgba" (4). Alpha is dropped for "rgb" and "gray";
            images without alpha are opaque in "rgba".
        size: the exact size of the output, one number or (height, width); None keeps the image's.
        fit: "stretch" the whole image to the size, or "crop" its centre and keep the aspect (the
            shorter side fits).
        layout: "CHW" gives `[channels, height, width]`, "HWC" `[height, width, channels]`;
            "channels_last" the shape and values of "CHW", which lie in memory as those of "HWC" do:
            batches are what torch calls channels_last, and are decoded in place.
        dtype: "uint8", in which 16-bit samples give their high byte; "uint16", which keeps 16 bits
            of PNG and TIFF, and has white at 65535 for all files; "float32" from 0 to 1, in which
            TIFF files of floats and of signed or 32-bit integers stay as stored. None is "float32"
            with `mean=`, else "uint8".
        orient: turn the image by its EXIF orientation; else it stays as stored.
        antialias: False is `interpolation="linear"` in place of "bilinear".
        max_pixels: the largest image to decode, in height x width; a larger one is an error.
        interpolation: how to resize: "bilinear" and "bicubic" as torchvision and Pillow do with
            antialiasing; "area" averages the whole area under each new pixel when shrinking;
            "nearest" is for masks of labels, whose values are not mixed; "linear" is the fast way:
            pixels are averaged two by two while that leaves enough, and the rest is linear, which
            aliases a little. For "linear" and "area", a JPEG at least twice too large is decoded
            at a half, a quarter or an eighth, never below the size.
        decode_on: "device" has a loader decode JPEG files on the GPU that is its `device=`, "auto"
            those for which its cores have no time. Pixels then differ a little; experimental. A
            dataset itself (`ds[i]`) always decodes on the CPU. See docs/decoding.md.
        mean: subtracted from float32 values, one number or one per channel.
        std: what they are then divided by. `[B, C, H, W]` of uint8 is a quarter of the bytes to
            copy: on a GPU, normalise there.
        crop: "random" cuts a part out before resizing it to the size, as torchvision's
            RandomResizedCrop does: another one for each (seed, epoch, sample), the same one in
            every run. A JPEG is decoded at its full size, down to the last row of the part: damage
            that shows only below it is not seen.
        scale: the least and the largest share of the area, of a random crop; None for (0.08, 1).
        ratio: the least and the largest width / height before resizing; None for (3/4, 4/3).
        flip: the probability that a random crop is mirrored left to right; None for 0.5.
        stream: fields of one sample with the same stream, by default 0, have the same random crop
            where their images have the same size, such as an image and its mask.

    Raises:
        ValueError: an argument is out of its bounds, or two of them do not go together.
        ValueError: (when called) the file is damaged, cut, too large or of another format.
        MissingExtraError: (when called) no package that reads the format is installed.

    Examples:
        >>> image("rgb", size=224, fit="crop")
        image('rgb', size=(224, 224), fit='crop')
        >>> image(size=(240, 320)).row
        ((3, 240, 320), dtype('uint8'))
    """
    if size is not None:
        both = (size, size) if isinstance(size, int | np.integer) else tuple(size)
        if len(both) != 2:
            raise ValueError(f"image(size={size!r}): give one number or (height, width)")
        size = (int(both[0]), int(both[1]))
    if not antialias and interpolation == "bicubic":
        raise ValueError(f"image(antialias=False, {interpolation=}): bicubic is always antialiased")
    if not antialias and interpolation == "bilinear":
        interpolation = "linear"
    arguments: dict[str, Any] = {
        "mode": mode,
        "size": size,
        "layout": layout,
        "dtype": dtype or ("uint8" if mean is None else "float32"),
        "orient": orient,
        "max_pixels": max_pixels,
        "interpolation": interpolation,
        "decode_on": decode_on,
    }
    channels = CHANNELS.get(mode, 1)
    for name, value in {"mean": mean, "std": std}.items():
        if value is not None:
            each = [value] * channels if isinstance(value, int | float) else value
            arguments[name] = _numbers(name, each, channels)
    decoder = Image(fit=fit, **arguments)
    options = {"scale": scale, "ratio": ratio, "flip": flip, "stream": stream}
    crop_options = {name: value for name, value in options.items() if value is not None}
    if crop is None:
        if crop_options:
            shown = ", ".join(f"{name}={value!r}" for name, value in crop_options.items())
            raise ValueError(f"image({shown}) is about random crops: add crop='random'")
        return decoder
    if crop != "random":
        raise ValueError(
            f"image(crop={crop!r}): must be 'random' or None; the centre is fit='crop'"
        )
    if size is None or fit != "stretch":
        raise ValueError(
            f"image(crop='random', size={size}, fit={fit!r}): a random crop is stretched to a "
            "size, so give a size, and leave fit= out"
        )
    part = RandomCrop(
        scale=_numbers("scale", (0.08, 1.0) if scale is None else scale, 2),
        ratio=_numbers("ratio", (3 / 4, 4 / 3) if ratio is None else ratio, 2),
        flip=0.5 if flip is None else flip,
    )
    return RandomCropImage(
        **arguments, crop=part, stream=0 if stream is None else operator.index(stream)
    )


def _numbers(name: str, value: Any, count: int) -> Any:
    """`count` numbers, of whatever sequence they come in."""
    try:
        numbers = tuple(map(float, value))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) != count:
        raise ValueError(f"image({name}={value!r}): give {count} numbers")
    return numbers
