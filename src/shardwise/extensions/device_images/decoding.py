"""Images that are decoded on a device: packed files in, rows of a batch out.

Two threads take the batches that are ready, and decode them, so that the program's thread only
receives them. Each has a CUDA stream, and its batch is done when the device is. Experimental:
docs/decoding.md has the measurements.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Queue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwise.base.errors import WorkerError
from shardwise.codecs.image_decoder import Image
from shardwise.engine.request import Batch, BatchRequest
from shardwise.extensions.device_images.packing import PackedImages, decode_packed_into, join_rows
from shardwise.tensors.device import PageLocks

_logger = logging.getLogger("shardwise")

# One decodes while the other resizes: 14,400 images/s in place of 8,000 with one (H100).
_NUM_THREADS = 2
# A thread that waits for a batch of the engine's may have to wait for a decoder that hangs.
_END_TIMEOUT_S = 5.0
# Stands for a batch that is not even started.
_NONE_YET: Future[Batch] = Future()

Requested = Generator[tuple[Batch, BatchRequest], None, None]


class NvJpegDecoder:
    """nvJPEG, as torchcodec or torchvision calls it: RuntimeError if it can't decode the files.

    Both raise that also where the device has no memory left, so the CPU decodes then, too. Several
    threads may call it.
    """

    def __init__(self, decode_jpeg: Callable[..., Any], modes: Any) -> None:
        self._decode_jpeg = decode_jpeg
        self._modes = modes
        self._has_warned = False

    def is_built(self) -> bool:
        """Whether the library was built with nvJPEG; uses no device.

        Both refuse an empty file before they touch the device, by another message without nvJPEG.
        """
        try:
            self._decode_jpeg([torch.from_numpy(np.empty(0, np.uint8))], mode=self._modes["RGB"])
        except RuntimeError as error:
            return "nvJPEG" not in str(error)
        return True

    def decode(self, files: Sequence[torch.Tensor], mode: str) -> list[torch.Tensor | None]:
        """Decode one or more files in the current stream: in one call, or one by one if that fails.

        Args:
            files: uint8 `[bytes]` in host memory.
            mode: "rgb" or "gray".

        Returns:
            uint8 `[channels, height, width]` on the device, one per file; None where it can't.
        """
        try:
            return list(self._decode_jpeg(list(files), mode=self._modes[mode.upper()]))
        except RuntimeError as error:
            if len(files) > 1:
                return [self.decode([file], mode)[0] for file in files]
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "nvJPEG could not decode an image, and the CPU decodes it: %s. This is said "
                    "once; stats()['decoded_on_cpu'] counts such images",
                    error,
                )
            return [None]


def find_decoder(device: torch.device) -> NvJpegDecoder | None:
    """The decoder for a device: torchcodec's, else torchvision's, which is deprecated; or None."""
    if device.type != "cuda":
        return None
    for name in ("torchcodec.decoders", "torchvision.io"):
        try:
            module = importlib.import_module(name)
            decode_jpeg = partial(module.decode_jpeg, device=device)
            decoder = NvJpegDecoder(decode_jpeg, module.ImageReadMode)
        except (ImportError, RuntimeError, OSError, AttributeError):
            continue  # not there, too old, or built for another torch
        if decoder.is_built():
            return decoder
    return None


class DeviceImages:
    """Decodes the packed fields of a loader's batches on a device.

    `rebuild` builds a batch on the CPU, where a file of it is damaged.
    """

    def __init__(
        self,
        device: torch.device,
        images: Mapping[str, Image],
        rebuild: Callable[[BatchRequest], Batch],
    ) -> None:
        is_cuda = device.type == "cuda"
        if is_cuda:
            index = torch.cuda.current_device() if device.index is None else device.index
            device = torch.device("cuda", index)
        decoder = find_decoder(device)
        assert decoder is not None
        self._device, self._decoder = device, decoder
        self._images, self._rebuild = images, rebuild
        self._locks = PageLocks(device) if is_cuda else None
        # For all epochs: torch keeps freed memory for the stream that it was taken on.
        self._streams: list[Any] = [
            torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
            for _ in range(_NUM_THREADS)
        ]

    def run(self, batches: Requested) -> Generator[Batch, None, None]:
        """Yield the batches in order, their images decoded; an error instead of its batch.

        A batch is yielded as soon as it is decoded, whether or not the next one is there; another
        for each thread is decoded ahead.
        """
        ready: Queue[Future[Batch] | None] = Queue()
        room = threading.Semaphore(_NUM_THREADS + 1)
        lock, is_over = threading.Lock(), threading.Event()
        working = [*self._streams]

        def is_next_ready() -> bool:
            following = next(iter(ready.queue), _NONE_YET)
            return following is None or following.done()

        def work(stream: Any) -> None:
            decode_ahead(stream)
            # Not the iterator, which may have ended while a thread waits for a batch.
            with lock:
                working.pop()
                if not working:
                    batches.close()

        def decode_ahead(stream: Any) -> None:
            while room.acquire() and not is_over.is_set():
                future: Future[Batch] = Future()
                with lock:
                    try:
                        pair = next(batches, None)
                        if self._locks is not None and pair and pair[0].memory is not None:
                            self._locks.lock(pair[0].memory)
                        ready.put(None if pair is None else future)
                    except BaseException as error:  # noqa: BLE001 - raised in its batch's place
                        future.set_exception(error)
                        ready.put(future)
                        return
                if pair is None:
                    return
                try:
                    future.set_result(self._decode(*pair, stream))
                except BaseException as error:  # noqa: BLE001 - the same
                    future.set_exception(error)
                del future, pair

        threads = [
            threading.Thread(target=work, args=(s,), daemon=True, name="shardwise-images")
            for s in self._streams
        ]
        pid = os.getpid()
        for thread in threads:
            thread.start()
        try:
            while True:
                _require_process(pid)
                if (future := ready.get()) is None:
                    return
                batch = future.result()
                batch.is_next_ready = is_next_ready
                room.release()
                del future
                yield batch
        finally:
            if pid == os.getpid():
                is_over.set()
                room.release(_NUM_THREADS)
                deadline = time.monotonic() + _END_TIMEOUT_S
                # Garbage that has this iterator may be collected in one of them.
                for thread in {*threads} - {threading.current_thread()}:
                    thread.join(max(0.0, deadline - time.monotonic()))

    def keep(self, data: Mapping[str, Any]) -> None:
        """Let memory of images, whoever decoded them, be used again after the caller's stream."""
        if self._device.type == "cuda":
            for name in self._images:
                data[name].record_stream(torch.cuda.current_stream(self._device))

    def _decode(self, batch: Batch, request: BatchRequest, stream: Any) -> Batch:
        """Decode the images of a batch; build it again on the CPU if a file is damaged."""
        began = time.perf_counter()
        if not all(self._decode_on(stream, batch, *each) for each in self._images.items()):
            batch = self._rebuild(request)
            batch.num_on_cpu = batch.num_rows * len(self._images)
        batch.stages.add("device decode", time.perf_counter() - began)
        return batch

    def _decode_on(self, stream: Any, batch: Batch, name: str, image: Image) -> bool:
        """Decode one field on a stream, and wait for it; False if a file is damaged."""
        packed = batch.data[name]
        try:
            with torch.cuda.stream(stream):
                return self._decode_field(batch, name, image)
        finally:
            if stream is not None:
                # nvJPEG writes to memory that this stream has freed, and waits for it neither on
                # torchvision's own stream nor in hardware; workers write the next files here.
                stream.synchronize()
            del packed

    def _decode_field(self, batch: Batch, name: str, image: Image) -> bool:
        """Decode one field of a batch; False if a file is damaged."""
        column: list[Any] = batch.data[name]
        odd = [each for each in column if not isinstance(each, PackedImages)]
        if odd:
            raise ValueError(
                f"a batch has a {type(odd[0]).__name__} in {name!r} beside images for a device: "
                "let all datasets of a mixture have this field, or leave decode_on= out"
            )
        assert image.row is not None
        shape, dtype = image.row
        rows = join_rows(column)
        sizes = list(zip(rows["height"].tolist(), rows["width"].tolist(), strict=True))
        there: dict[int, torch.Tensor] = {}
        here: dict[int, NDArray[Any]] = {
            row: column[row].payload().view(dtype).reshape(shape)
            for row in np.flatnonzero(rows["is_pixels"]).tolist()
        }
        files = [row for row in range(len(column)) if row not in here]
        sent = [torch.from_numpy(column[row].payload()) for row in files]
        decoded = self._decoder.decode(sent, image.mode) if sent else []
        for row, pixels in zip(files, decoded, strict=True):
            if pixels is not None and tuple(pixels.shape[1:]) == sizes[row]:
                there[row] = pixels
                continue
            here[row] = np.empty(shape, dtype)
            try:
                decode_packed_into(image, column[row], here[row])
            except ValueError:
                return False
        kind = getattr(torch, dtype.name)
        order = torch.channels_last if image.layout == "channels_last" else torch.contiguous_format
        out = torch.empty(
            (len(column), *shape), dtype=kind, device=self._device, memory_format=order
        )
        if there:
            whole = resized(image, rows[list(there)], list(there.values()))
            whole = whole if image.dtype == "uint8" else whole / 255
            if image.mean is not None:
                mean, std = torch.tensor([image.mean, image.std], device=whole.device)[
                    ..., None, None
                ]
                whole = (whole - mean) / std
            whole = whole.permute(0, 2, 3, 1) if image.layout == "HWC" else whole
            out[torch.tensor(list(there), device=self._device)] = whole
        if here:
            host = torch.from_numpy(np.stack(list(here.values())))
            out[torch.tensor(list(here), device=self._device)] = host.to(self._device)
        batch.data[name] = out
        batch.num_on_device += len(there)
        batch.num_on_cpu += len(here)
        return True


# Values of images that are resized together, padded to the largest: 256 MiB of float32.
_MAX_NUMBERS = 1 << 26

_Rows = NDArray[Any]


def _require_process(pid: int) -> None:
    """Raise in a forked child of the process that made an iterator."""
    if pid != os.getpid():
        raise WorkerError(
            f"process {os.getpid()} was forked from process {pid}, whose threads decode the images "
            "of this iterator: begin a new one here"
        )


def resized(image: Image, rows: _Rows, pixels: Sequence[torch.Tensor]) -> torch.Tensor:
    """Cut parts out of decoded images, and resize them.

    Args:
        image: the size to resize to, and the way.
        rows: `[images]`, the parts, as `PackedImages` has them.
        pixels: uint8 `[channels, height, width]` of each image, all on one device.

    Returns:
        uint8 `[images, channels, *image.size]` on that device.
    """
    assert image.size is not None
    height, width = image.size
    out = pixels[0].new_empty((len(rows), len(pixels[0]), height, width))
    for some in _groups(np.arange(len(rows)), rows):
        # The host waits for copies of its own: before the work that it queues.
        part = {
            name: torch.from_numpy(rows[name][some]).to(out.device)
            for name in ("top", "left", "box_height", "box_width", "is_mirrored")
        }
        index = torch.from_numpy(some).to(out.device)
        stack = _stack_images([pixels[row] for row in some.tolist()])
        sizes = (height, stack.shape[2]), (width, stack.shape[3])
        by_row = _weights(part["top"], part["box_height"], sizes[0], image.interpolation)
        by_column = _weights(part["left"], part["box_width"], sizes[1], image.interpolation)
        mirrored = part["is_mirrored"][:, None, None]
        by_column = torch.where(mirrored, by_column.flip(1), by_column)
        stack = by_row[:, None] @ (stack @ by_column.transpose(1, 2)[:, None])
        out[index] = stack.round_().clamp_(0, 255).to(torch.uint8)
    return out


def _groups(some: NDArray[np.intp], rows: _Rows) -> Iterator[NDArray[np.intp]]:
    """Cut images into groups that take little memory when padded to the largest of each."""
    some = some[np.argsort(-rows["height"][some].astype(np.int64) * rows["width"][some])]
    while len(some):
        high, wide = (np.maximum.accumulate(rows[side][some]) for side in ("height", "width"))
        numbers = 3 * high.astype(np.int64) * wide * np.arange(1, len(some) + 1)
        size = max(1, int(np.searchsorted(numbers, _MAX_NUMBERS, side="right")))
        yield some[:size]
        some = some[size:]


def _stack_images(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """Images as float32 in one tensor, padded by zeros, which no weight touches."""
    high, wide = max(i.shape[1] for i in images), max(i.shape[2] for i in images)
    stacked = images[0].new_zeros((len(images), len(images[0]), high, wide))
    for place, each in zip(stacked, images, strict=True):
        place[:, : each.shape[1], : each.shape[2]] = each
    return stacked.float()


def _weights(
    first: torch.Tensor, length: torch.Tensor, size: tuple[int, int], how: str
) -> torch.Tensor:
    """float32 `[images, *size]`: what each stored pixel of a side adds to each new one.

    Made where the images are: on a host, 64 images of 500 columns take half a second.
    """
    start, count = (each.double()[:, None, None] for each in (first, length))
    new, stored = (torch.arange(each, device=first.device) for each in size)
    new, pixel = new[:, None], stored - start
    scale = count / size[0]
    # The distance between the middles of two pixels, in new ones where the side shrinks.
    far = ((pixel - (new + 0.5) * scale + 0.5) / scale.clamp(min=1)).abs()
    weights = (1 - far).clamp(min=0)
    if how == "bicubic":  # Catmull and Rom's
        near = (1.5 * far - 2.5) * far**2 + 1
        weights = torch.where(far < 1, near, ((2.5 - 0.5 * far) * far - 4) * far + 2)
        weights *= far < 2
    weights *= (pixel >= 0) & (pixel < count)
    return (weights / weights.sum(2, keepdim=True)).float()
