"""Image files made here, so that what should come out of them is known."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def picture(height=61, width=83):
    """A smooth colour picture with an edge in it: uint8 [height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 255 * x / max(width - 1, 1)
    green = 255 * y / max(height - 1, 1)
    blue = 128 + 100 * np.sin(x / 9) * np.cos(y / 7)
    pixels = np.stack([red, green, blue], axis=-1)
    pixels[: height // 3, : width // 4] = (250, 20, 30)
    return pixels.astype(np.uint8)


def encode(image, file_format, **options):
    """Encode a Pillow image or an array to the bytes of a file."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def oriented(file_format, orientation, pixels):
    """A file that says it is to be turned before it is shown."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "subsampling": 0} if file_format == "JPEG" else {}
    if file_format == "WEBP":
        options = {"lossless": True}
    return encode(pixels, file_format, exif=exif, **options)


def files():
    """One file of every kind that is read: name -> (bytes, the RGB pixels in it, tolerance)."""
    pixels = picture()
    colour = Image.fromarray(pixels)
    gray = colour.convert("L")
    gray_pixels = np.asarray(gray.convert("RGB"))
    palette = colour.quantize(64)
    palette_pixels = np.asarray(palette.convert("RGB"))
    bits = colour.convert("1")
    bits_pixels = np.asarray(bits.convert("RGB"))
    alpha = Image.fromarray(np.dstack([pixels, pixels[..., 0]]), "RGBA")
    deep = np.asarray(gray).astype(np.uint16) * 256 + 77  # the low byte is to be dropped
    exact = {
        "png": (encode(colour, "PNG"), pixels),
        "png_gray": (encode(gray, "PNG"), gray_pixels),
        "png_gray_alpha": (
            encode(Image.merge("LA", (gray, colour.getchannel(0))), "PNG"),
            gray_pixels,
        ),
        "png_alpha": (encode(alpha, "PNG"), pixels),
        "png_palette": (encode(palette, "PNG"), palette_pixels),
        "png_palette_transparent": (encode(palette, "PNG", transparency=3), palette_pixels),
        "png_1bit": (encode(bits, "PNG"), bits_pixels),
        "png_16bit": (encode(Image.fromarray(deep), "PNG"), gray_pixels),
        "webp_lossless": (encode(colour, "WEBP", lossless=True), pixels),
        "webp_alpha": (encode(alpha, "WEBP", lossless=True, exact=True), pixels),
        "gif": (encode(palette, "GIF"), palette_pixels),
        "bmp": (encode(colour, "BMP"), pixels),
        "bmp_gray": (encode(gray, "BMP"), gray_pixels),
        "tiff": (encode(colour, "TIFF"), pixels),
        "tiff_lzw": (encode(colour, "TIFF", compression="tiff_lzw"), pixels),
        "tiff_alpha": (encode(alpha, "TIFF"), pixels),
        "tiff_16bit": (encode(Image.fromarray(deep), "TIFF"), gray_pixels),
        "tiff_1bit": (encode(bits, "TIFF"), bits_pixels),
    }
    webp = encode(colour, "WEBP", quality=100)
    lossy = {
        "jpeg": (encode(colour, "JPEG", quality=95, subsampling=0), pixels),
        "jpeg_progressive": (
            encode(colour, "JPEG", quality=95, subsampling=0, progressive=True),
            pixels,
        ),
        "jpeg_gray": (encode(gray, "JPEG", quality=95), gray_pixels),
        "jpeg_cmyk": (encode(colour.convert("CMYK"), "JPEG", quality=98), pixels),
        # WebP halves the colours' resolution: what its own library makes is the measure.
        "webp": (webp, np.asarray(Image.open(io.BytesIO(webp)).convert("RGB"))),
    }
    return {name: (data, expected, 0) for name, (data, expected) in exact.items()} | {
        name: (data, expected, 40) for name, (data, expected) in lossy.items()
    }
