"""Batches on their way to a GPU, for `benchmarks.gpu`: right, under kernels, and at what cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import shardwise as sw
from benchmarks.gpu_loaders import Row, Setting, shardwise_loader


def races(setting: Setting) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    count, side = (64, 8) if setting.is_toy else (3000, 64)
    rows = [rng.integers(0, 255, (side, side, 3), dtype=np.uint8) for _ in range(count)]
    want = [int(row.sum(dtype=np.int64)) for row in rows]
    data = sw.wrap([{"x": row, "i": i} for i, row in enumerate(rows)])
    busy = torch.randn(*2 * [8 if setting.is_toy else 2048], device=setting.device)
    modes: dict[str, dict[str, Any]] = {
        "default": {},
        "the user's stream": {},
        "next() in the user's stream": {},
        "dropped at once": {},
        "allocator pressure": {},
        "batches kept": {},
        "8 threads": {"num_threads": 8},
        "2 processes": {"num_workers": 2},
    }
    for mode, options in modes.items():
        yield setting.measure(mode, partial(_race, setting, data, want, busy, mode, options))


def _race(
    setting: Setting,
    data: Any,
    want: list[int],
    busy: torch.Tensor,
    mode: str,
    options: dict[str, Any],
) -> Row:
    """Compare all samples of an epoch, read in one way, beside kernels."""
    side_stream = torch.cuda.Stream() if "stream" in mode and setting.is_cuda else None  # type: ignore[no-untyped-call]
    inside = side_stream if mode.startswith("next") else None
    sums, kept = [], []
    given = {"rank": 0, "world_size": 1, "device": setting.device, "timeout": 60, **options}
    with (
        torch.cuda.stream(inside),
        sw.DataLoader(data, 64, shuffle=True, seed=3, **given) as loader,
    ):
        for batch in loader:
            with torch.cuda.stream(side_stream):
                if side_stream is not None and inside is None:
                    side_stream.wait_stream(torch.cuda.default_stream())
                    for name in ("x", "i"):
                        batch[name].record_stream(side_stream)
                # The device is behind: the batch must live until it is read.
                busy = torch.nn.functional.normalize(busy @ busy)
                sums.append((batch["i"].clone(), batch["x"].flatten(1).long().sum(1)))
            if mode == "batches kept" and len(kept) < 20:
                kept.append((batch["i"], batch["x"]))
            if mode == "allocator pressure":
                [torch.full_like(batch["x"], 7) for _ in range(6)]
            del batch
    setting.synchronize()
    sums += [(ids, x.flatten(1).long().sum(1)) for ids, x in kept]
    pairs = [pair for i, s in sums for pair in zip(i.tolist(), s.tolist(), strict=True)]
    wrong = sum(want[i] != found for i, found in pairs)
    return {"compared": len(pairs), "wrong": wrong}


def overlap(setting: Setting) -> Iterator[Row]:
    if not setting.is_cuda:
        yield {"what": "skipped: it needs a GPU"}
        return
    from torch.profiler import ProfilerActivity, profile

    row = np.zeros((3, setting.size, setting.size), np.uint8)
    data = sw.wrap([{"x": row}] * (setting.batch_size * 40))
    weight = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    with sw.DataLoader(data, setting.batch_size, device="cuda", rank=0, world_size=1) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
            for _ in range(15):
                next(batches)
                for _ in range(12):
                    weight @ weight
            torch.cuda.synchronize()
    on_device = [
        (event.name.lower(), event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    copies = [event for event in on_device if "memcpy htod" in event[0]]
    kernels = [event for event in on_device if not event[0].startswith(("memcpy", "memset"))]
    total = sum(end - start for _, start, end in copies)
    under = sum(
        max(0.0, min(end, until) - max(start, since))
        for _, start, end in copies
        for _, since, until in kernels
    )
    yield {
        "what": "copies to the device",
        "copies": len(copies),
        "page_locked": sum("pinned" in name for name, _, _ in copies),
        "under_kernels": round(under / total, 3) if total else None,
    }


class Rows(torch.utils.data.Dataset[Any]):
    """Decoded images in memory."""

    def __init__(self, setting: Setting) -> None:
        shape = (setting.batch_size, 3, setting.size, setting.size)
        self.rows = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.rows) * 60

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % len(self.rows)]


def handover(setting: Setting) -> Iterator[Row]:
    num_steps, pause_s = (6, 0.005) if setting.is_toy else (30, 0.05)

    def main_thread_ms(batches: Iterator[Any]) -> float:
        seconds = []
        for _ in range(num_steps):
            time.sleep(pause_s)  # batches are ready: what is left is the hand-over
            began = time.perf_counter()
            batch = next(batches)
            seconds.append(time.perf_counter() - began)
            del batch
            setting.synchronize()
        return round(statistics.median(seconds[num_steps // 3 :]) * 1e3, 3)

    def wrapped(options: dict[str, Any]) -> Row:
        given = {"rank": 0, "world_size": 1, "timeout": 60, **options}
        with sw.DataLoader(sw.wrap(rows), setting.batch_size, **given) as loader:
            return {**images, "main_thread_ms": main_thread_ms(iter(loader))}

    def from_tar() -> Row:
        with shardwise_loader(setting, num_workers=2, device=setting.device) as loader:
            batches = (batch for _ in range(1000) for batch in loader)
            return {"main_thread_ms": main_thread_ms(batches)}

    def from_torch() -> Row:
        theirs = torch.utils.data.DataLoader(
            rows, setting.batch_size, num_workers=2, pin_memory=setting.is_cuda
        )
        moved = (batch.to(setting.device, non_blocking=True) for batch in theirs)
        return {"main_thread_ms": main_thread_ms(moved)}

    rows = Rows(setting)
    host = torch.from_numpy(rows.rows)
    megabytes = round(host.nbytes / 1e6, 1)
    images = {"size": setting.size, "batch_mb": megabytes}
    for what, options in (
        ("sw.wrap", {}),
        ("sw.wrap, pin_memory", {"pin_memory": True}),
        ("sw.wrap, device", {"device": setting.device}),
    ):
        yield setting.measure(what, partial(wrapped, options))
    yield setting.measure("tar, 2 processes, device", from_tar)
    yield setting.measure("torch, pin thread and .to", from_torch)
    if not setting.is_cuda:
        return

    def copy_ms(copy: Callable[[], Any]) -> Row:
        seconds = []
        for _ in range(20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            copied = copy()
            seconds.append(time.perf_counter() - began)
            torch.cuda.synchronize()
            del copied
        return {"main_thread_ms": round(statistics.median(seconds) * 1e3, 3)}

    def registered_copy_ms() -> Row:
        runtime: Any = torch.cuda.cudart()
        began = time.perf_counter()
        code = runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 0)
        once_ms = round((time.perf_counter() - began) * 1e3, 2)
        if int(code):
            raise RuntimeError(f"cudaHostRegister: {runtime.cudaGetErrorString(code)}")
        try:
            return {"once_ms": once_ms, **copy_ms(lambda: host.to("cuda", non_blocking=True))}
        finally:
            runtime.cudaHostUnregister(host.data_ptr())

    def from_pageable() -> Row:
        return copy_ms(lambda: host.to("cuda", non_blocking=True))

    def from_pinned() -> Row:
        return copy_ms(lambda: host.pin_memory().to("cuda", non_blocking=True))

    yield setting.measure("one copy, pageable", from_pageable)
    yield setting.measure("one copy, pin_memory().to", from_pinned)
    yield setting.measure("one copy, memory registered once", registered_copy_ms)


class Late:
    """One sample comes a second late, of as many as fill 60 batches."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.late_s if sample["i"] == 32 * 30 else self.late_s / 250)
        return sample


def bubble(setting: Setting) -> Iterator[Row]:
    for device in (None, "cuda" if setting.is_cuda else "meta"):
        yield setting.measure(f"device={device}", partial(_wait_beside_late, setting, device))


def _wait_beside_late(setting: Setting, device: str | None) -> Row:
    late_s, num_steps = (0.02, 5) if setting.is_toy else (1.0, 50)
    data = sw.wrap([{"x": np.zeros((3, 64, 64), np.uint8), "i": i} for i in range(32 * 60)])
    with sw.DataLoader(
        data.map(Late(late_s)),
        32,
        rank=0,
        world_size=1,
        num_threads=2,
        num_workers=0,
        device=device,
        prefetch_factor=1,
        timeout=60,
    ) as loader:
        began = time.perf_counter()
        batches = iter(loader)
        next(batches)
        first, waited = time.perf_counter() - began, 0.0
        for _ in range(num_steps):
            asked = time.perf_counter()
            next(batches)
            waited += time.perf_counter() - asked
            time.sleep(late_s * 0.08)
    return {"first_s": round(first, 3), "wait_s": round(waited, 3)}
