"""The image fields of a loader that a device decodes, and the making of their batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, cast

from shardwise.codecs.image_decoder import Image
from shardwise.engine.request import Batch, BatchRequest
from shardwise.extensions.device_images.packing import PackingImage
from shardwise.loader.arguments import list_decoders
from shardwise.sources.samples import Samples

_Make = Callable[[Iterator[BatchRequest]], Generator[Batch, None, None]]


def decode_on_device(dataset: Samples, *, device: Any, obstacle: str) -> ImagesOnDevice | None:
    """Let a device decode the fields with `decode_on`: all of them, or none if it can't.

    Args:
        dataset: the user's.
        device: the loader's, or None.
        obstacle: the loader's option that needs pixels on the CPU; "" if none does.

    Raises:
        ValueError: a field has `decode_on="device"`, and can't; the message has the reason.
    """
    every = list(list_decoders(dataset))
    names = [name for name, each in every if isinstance(each, Image) and each.decode_on != "cpu"]
    images = {
        name: [each for other, each in every if other == name and isinstance(each, Image)]
        for name in names
    }
    obstacle = obstacle or _obstacle(dataset, device, images)
    if not obstacle:
        return ImagesOnDevice(dataset, device, {name: own[0] for name, own in images.items()})
    for name, own in images.items():
        for decoder in own:
            if decoder.decode_on == "device":
                raise ValueError(
                    f"{name}={decoder!r}: {obstacle}; leave decode_on= out, or use "
                    "decode_on='auto', which means the CPU then"
                )
    return None


class ImagesOnDevice:
    """The making of batches whose image fields, with these decoders, a device decodes.

    Attributes:
        dataset: the samples to load: fields for the device are packed files.
    """

    def __init__(self, dataset: Samples, device: Any, images: dict[str, Image]) -> None:
        self._device, self._images = device, images
        packing = {name: PackingImage(image) for name, image in images.items()}
        self.dataset: Samples = cast("Any", dataset).decode(**packing)
        self._stage: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Its streams are this process's."""
        return {**self.__dict__, "_stage": None}

    def run(
        self, requests: Iterator[BatchRequest], make: _Make, rebuild: Callable[..., Batch]
    ) -> Generator[Batch, None, None]:
        """Yield what `make` makes of the requests, decoded.

        `rebuild` builds the batch of a request on the CPU: that of a damaged file, which is then
        raised, skipped or replaced according to `on_error`.
        """
        from shardwise.extensions.device_images.decoding import DeviceImages

        self._stage = self._stage or DeviceImages(self._device, self._images, rebuild)
        decoded: Generator[Batch, None, None] = self._stage.run(_pair_batches(requests, make))
        return decoded

    def keep(self, batch: Batch) -> None:
        """Keep the images of a batch for the caller's CUDA stream."""
        self._stage.keep(batch.data)


def _obstacle(dataset: Samples, device: Any, images: dict[str, list[Image]]) -> str:
    """The reason why the device can't decode these fields; "" if it can."""
    if device is None:
        return "it needs sw.DataLoader(device='cuda')"
    if dataset.is_mapped:
        return "functions of a map() get pixels, which only the CPU can give them"
    if any(len(set(every)) > 1 for every in images.values()):
        return "other datasets of the mixture have another decoder for this field"
    from shardwise.extensions.device_images.decoding import find_decoder

    if find_decoder(device) is None:
        return (
            f"nothing here decodes JPEG on {str(device)!r}: install torchcodec 0.16 or "
            "torchvision 0.20, or newer, built for CUDA"
        )
    return ""


def _pair_batches(
    requests: Iterator[BatchRequest], make: _Make
) -> Generator[tuple[Batch, BatchRequest], None, None]:
    """Yield each batch with its request; requests in progress are kept."""
    asked: deque[BatchRequest] = deque()

    def noted() -> Iterator[BatchRequest]:
        for request in requests:
            asked.append(request)
            yield request

    with closing(make(noted())) as batches:
        for batch in batches:
            yield batch, asked.popleft()
