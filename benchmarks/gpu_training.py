"""Training and loading alone, for `benchmarks.gpu`: images/s, and who waits for whom."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import torch

import shardwise as sw
from benchmarks.gpu_loaders import LOADERS, Batches, Row, Setting, shardwise_loader
from benchmarks.gpu_models import resnet

# Steps before the clock starts, and steps that are queued before the device is waited for.
_WARM_UP, _QUEUED = 5, 2
# Decoders differ by up to 2 levels of 255 in the mean; an image beside it by some 50.
_MOST_LEVELS = 8


def _layout(setting: Setting) -> torch.memory_format:
    # On a CPU, torch 2.13 writes beyond its memory for layers of few channels last.
    return torch.channels_last if setting.is_cuda else torch.contiguous_format


def training(setting: Setting, *, name: str) -> Iterator[Row]:
    """One model, by loader."""
    toy = {"width": 4} if setting.is_toy else {}
    model = resnet(name, **toy).to(setting.device).to(memory_format=_layout(setting))
    torch.backends.cudnn.benchmark = True
    ceiling = 0.0
    for what, make in LOADERS.items():
        row = setting.measure(what, partial(train, setting, model, make))
        ceiling = ceiling or row.get("images_s", 0.0) * (what == "synthetic")
        if ceiling and "images_s" in row:
            row["of_synthetic"] = round(row["images_s"] / ceiling, 3)
        yield row


def train(setting: Setting, model: Any, make: Callable[[Setting], Batches]) -> Row:
    """Train for some seconds: images/s, the share that the GPU waits, and that next() takes."""
    with closing(make(setting)) as batches:  # type: ignore[type-var]
        return _train(setting, model, batches)


def _train(setting: Setting, model: Any, batches: Batches) -> Row:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    marks: list[tuple[Any, Any]] = []
    num_images, in_next_s, began, step = 0, 0.0, 0.0, 0
    while True:
        asked = time.perf_counter()
        images, labels = next(batches)
        got = time.perf_counter()
        if setting.is_cuda:
            marks.append(tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)))
            marks[-1][0].record()
        images = images.to(setting.device, non_blocking=True)
        if images.shape[-1] == 3:
            images = images.permute(0, 3, 1, 2)
        images = images.to(memory_format=_layout(setting)).float().div_(127.5).sub_(1)
        labels = labels.to(setting.device, non_blocking=True).long()
        with torch.autocast(setting.device, torch.bfloat16, enabled=setting.is_cuda):
            loss = loss_of(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if setting.is_cuda:
            marks[-1][1].record()
            if len(marks) > _QUEUED:
                marks[-1 - _QUEUED][1].synchronize()
        step += 1
        if step == _WARM_UP:
            setting.synchronize()
            marks.clear()
            num_images, in_next_s, began = 0, 0.0, time.perf_counter()
        elif step > _WARM_UP:
            num_images += len(labels)
            in_next_s += got - asked
            if time.perf_counter() - began > setting.seconds:
                break
    setting.synchronize()
    wall_s = time.perf_counter() - began
    row: Row = {"images_s": round(num_images / wall_s), "in_next": round(in_next_s / wall_s, 4)}
    if setting.is_cuda:
        busy_s = sum(start.elapsed_time(end) for start, end in marks) / 1e3
        row["gpu_waits"] = round(max(0.0, 1 - busy_s / wall_s), 4)
    return row


def rate(setting: Setting, loader: Any, key: str = "cls") -> int:
    """Images a second of a loader alone, after its first batch."""
    count, began = 0, 0.0
    while True:
        for batch in loader:
            if not began:
                began = time.perf_counter()
                continue
            count += len(batch[key])
            if time.perf_counter() - began > setting.seconds / 2:
                setting.synchronize()
                return round(count / (time.perf_counter() - began))


def floor(paths: list[str], size: int, seconds: float, first: int = 0, step: int = 1) -> float:
    """Images a second that this thread decodes and resizes by simplejpeg and OpenCV, no more."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)
    files = []
    for path in paths[first::step]:
        with open(path, "rb") as file:
            files.append(file.read())
    row, count, end = np.empty((size, size, 3), np.uint8), 0, time.perf_counter() + seconds
    how: Any = {"dst": row, "interpolation": cv2.INTER_LINEAR}
    while time.perf_counter() < end:
        pixels = simplejpeg.decode_jpeg(
            files[count % len(files)], "RGB", min_height=size, min_width=size
        )
        side, (height, width) = min(pixels.shape[:2]), pixels.shape[:2]
        top, left = (height - side) // 2, (width - side) // 2
        cv2.resize(pixels[top : top + side, left : left + side], (size, size), **how)
        count += 1
    return count / seconds


def scaling(setting: Setting) -> Iterator[Row]:
    counts = sorted({n for n in (1, 2, 4, 8) if n < setting.workers} | {setting.workers})
    for count in counts:
        yield setting.measure(f"{count} at a time", partial(_scale, setting, count))
        yield setting.measure(f"{count} without a loader", partial(_scale_floor, setting, count))
    yield setting.measure("shardwise, as it chooses", partial(_rate_of, setting))


def _scale(setting: Setting, count: int) -> Row:
    """Images a second of the loader by so many threads, and by so many processes."""
    row: Row = {}
    for name, options in (
        ("threads", {"num_threads": count, "num_workers": 0}),
        ("processes", {"num_workers": count}),
    ):
        with shardwise_loader(setting, **options) as loader:
            row[name] = rate(setting, loader)
    return row


def _scale_floor(setting: Setting, count: int) -> Row:
    """Images a second that so many threads and processes decode."""
    paths = sorted(map(str, (setting.directory / "files").glob("*.jpg")))[:600]
    spawning = partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("spawn"))
    row: Row = {}
    for name, make in (("threads", ThreadPoolExecutor), ("processes", spawning)):
        with make(count) as pool:
            found = [
                pool.submit(floor, paths, setting.size, setting.seconds / 2, first, count)
                for first in range(count)
            ]
            row[name] = round(sum(each.result() for each in found))
    return row


def _rate_of(setting: Setting, **options: Any) -> Row:
    """Images a second of the loader alone, and where they were decoded."""
    with shardwise_loader(setting, **options) as loader:
        images_s = rate(setting, loader)
        counts = {k: v for k, v in loader.stats().items() if k.startswith("decoded_on")}
    return {"images_s": images_s, **counts}


def _rate_of_bytes(setting: Setting) -> Row:
    data = sw.tar(str(setting.directory / "tar")).select("jpg", "cls").decode(cls=int)
    given = {"shuffle": True, "seed": 1, "rank": 0, "world_size": 1}
    with sw.DataLoader(data, setting.batch_size, **given) as loader:
        return {"images_s": rate(setting, loader)}


def nvjpeg(setting: Setting) -> Iterator[Row]:
    device = setting.device if setting.is_cuda else None
    for decode_on in ("device", "auto"):
        compared = partial(_compare, setting, decode_on, device)
        yield setting.measure(f"decode_on={decode_on!r} against the CPU", compared)
    for decode_on in ("cpu", "device", "auto"):
        measured = partial(_rate_of, setting, decode_on=decode_on, device=device)
        yield setting.measure(f"decode_on={decode_on!r}", measured)
    yield setting.measure("bytes, not decoded", partial(_rate_of_bytes, setting))


def _compare(setting: Setting, decode_on: str, device: str | None) -> Row:
    """Images that differ from the CPU's by more than decoders do, beside kernels."""
    busy = torch.randn(*2 * [8 if setting.is_toy else 2048], device=setting.device)
    differences: list[torch.Tensor] = []
    given = {"crop": True, "device": device}
    with (
        shardwise_loader(setting, decode_on=decode_on, **given) as there,
        shardwise_loader(setting, **given) as here,
    ):
        for one, other in zip(there, here, strict=True):
            # The device is behind: the batch must live until it is read.
            busy = torch.nn.functional.normalize(busy @ busy)
            off = (one["jpg"].float() - other["jpg"].float()).abs()
            differences.append(off.flatten(1).mean(1))
            del one, other, off
        counts = {k: v for k, v in there.stats().items() if k.startswith("decoded_on")}
    every = torch.cat(differences)
    facts = {"compared": len(every), "wrong": int((every > _MOST_LEVELS).sum())}
    mean, most = round(every.mean().item(), 2), round(every.max().item(), 2)
    return {**facts, "mean_levels": mean, "most_levels": most, **counts}
