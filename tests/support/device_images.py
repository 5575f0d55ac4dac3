"""A decoder that stands for a GPU's, on the CPU, and JPEG files for it."""

from __future__ import annotations

import simplejpeg
import torch

from shardwise.codecs.image_backends import turn_pixels
from shardwise.codecs.image_headers import find_orientation
from tests.codecs.samples import encode, picture


class StandIn:
    """Decodes at the full size, as nvJPEG does; leaves files of the lengths in `refused` out.

    Applies the EXIF orientation, and refuses to decode no file at all, as torchcodec does.
    """

    def __init__(self, refused=()):
        self.refused = set(refused)
        self.num_files = 0

    def decode(self, files, mode):
        assert files, "Expected at least one image to decode"
        self.num_files += len(files)
        return [self._decode(file, mode) for file in files]

    def _decode(self, file, mode):
        if len(file) in self.refused:
            return None
        try:
            pixels = simplejpeg.decode_jpeg(file.numpy(), mode.upper())
        except ValueError:
            return None
        pixels = turn_pixels(pixels, find_orientation(file.numpy().data, "jpeg")[0])
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def jpeg(number, **options):
    """A JPEG whose size depends on its number."""
    return encode(picture(60 + 3 * number, 90 - 2 * number), "JPEG", quality=92, **options)


def damaged(data):
    """The file with another code in the middle of its scan: header and end are whole."""
    middle = data.rindex(b"\xff\xda") + (len(data) - data.rindex(b"\xff\xda")) // 2
    return data[:middle] + b"\xff\xfe\x00\x10" * 8 + data[middle + 32 :]
