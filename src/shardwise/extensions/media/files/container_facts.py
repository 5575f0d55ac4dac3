"""Facts that decoders need from a demuxer, as options of FFmpeg's decoders."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from shardwise.extensions.media.files.pyav_import import import_av

# For each option of FFmpeg: the attribute of PyAV's context, and its values for unknown.
_OPTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "b": ("bit_rate", (None, 0)),
    "bits_per_coded_sample": ("bits_per_coded_sample", (None, 0)),
    "field_order": ("field_order", (None, 0)),
    "color_range": ("color_range", (None, 0)),
    "colorspace": ("colorspace", (None, 2)),
    "color_primaries": ("color_primaries", (None, 2)),
    "color_trc": ("color_trc", (None, 2)),
    "pixel_format": ("pix_fmt", (None,)),
}

# All options that an index may name: it comes from a file, and other options could do anything.
PARAMETERS = frozenset(_OPTIONS).union(["codec_tag", "block_align"])

# Codecs whose packets may hold several blocks; PyAV does not expose their size and bits.
_IN_BLOCKS = ("adpcm_ms", "adpcm_ima_wav", "adpcm_g726", "adpcm_g726le", "gsm_ms")


def parameters_of(context: Any, packets: list[Any]) -> dict[str, str]:
    """The options of a stream's context, which FFmpeg's demuxer has filled in."""
    found: dict[str, str] = {}
    for option, (attribute, unknown) in _OPTIONS.items():
        value: Any = getattr(context, attribute, None)
        if value not in unknown:
            found[option] = str(value if isinstance(value, str) else int(value))
    try:
        tag = int.from_bytes(context.codec_tag.encode("latin-1"), "little")
    except UnicodeError:  # PyAV gives tags of ASCII alone
        tag = 0
    if tag:
        found["codec_tag"] = str(tag)
    if context.codec.canonical_name.startswith("wma"):
        # Each packet is a block; PyAV does not tell the header's number.
        found["block_align"] = str(max(packet.size for packet in packets))
    if context.codec.canonical_name in _IN_BLOCKS:
        # The demuxer's own decoder knows them: it gives one frame per block.
        with suppress(import_av("this sound").error.FFmpegError):
            if frames := packets[0].decode():
                block = packets[0].size // len(frames)
                found["block_align"] = str(block)
                # Rounded down: each block has a header.
                samples = frames[0].samples * frames[0].layout.nb_channels
                found["bits_per_coded_sample"] = str(block * 8 // samples)
    return found
