"""Stands for CUDA on a machine without it: what is asked of it, in which order, and until when.

Copies are as late as CUDA may make them: the bytes are read when the event of a copy is found done,
some queries after it was recorded. So a source that is written again too early shows in the copy.
"""

from __future__ import annotations

import itertools
import random
import threading
from types import SimpleNamespace

import torch


class FakeCuda:
    """CUDA with one device; use it as a fixture by `install`.

    Attributes:
        notes: what happened, in order.
        registered: sizes of the registered ranges, by address.
        refuses: the code that registering returns, 0 to accept.
        pinned: how many tensors were copied into page-locked memory.
        threads: the threads that registered or pinned.
        pending: the threads whose next kernel raises the error of a call before it.
    """

    def __init__(self, seed=0):
        self.notes = []
        self.registered = {}
        self.refuses = 0
        self.pinned = 0
        self.threads = set()
        self.pending = set()
        self.late = random.Random(seed)
        self.lock = threading.Lock()
        self.waiting = []
        self._numbers = itertools.count()
        self._to = torch.Tensor.to
        self._pin = torch.Tensor.pin_memory

    def install(self, monkeypatch):
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "is_available", lambda: True)
        monkeypatch.setattr(cuda, "device_count", lambda: 1)
        monkeypatch.setattr(cuda, "current_device", lambda: 0)
        monkeypatch.setattr(cuda, "Stream", lambda device: FakeStream(self))
        monkeypatch.setattr(cuda, "current_stream", lambda device: FakeStream(self))
        monkeypatch.setattr(cuda, "stream", lambda stream: stream)
        monkeypatch.setattr(cuda, "device", lambda device: FakeStream(self))
        monkeypatch.setattr(cuda, "cudart", lambda: self)
        if hasattr(torch, "accelerator"):
            # A torch with CUDA would let its own loader pin memory, which asks the driver.
            monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)

        def method(function):
            def call(tensor, *args, **options):
                return function(tensor, *args, **options)

            return call

        monkeypatch.setattr(torch, "ones", self.ones)
        monkeypatch.setattr(torch.Tensor, "to", method(self.to))
        monkeypatch.setattr(torch.Tensor, "pin_memory", method(self.pin_memory))
        monkeypatch.setattr(torch.Tensor, "record_stream", method(self.record_stream))
        return self

    # Of the runtime.

    # Positions only, and codes that are no numbers, as of torch's module.

    def cudaHostRegister(self, address, size, flags, /):
        self.threads.add(threading.current_thread())
        if self.refuses:
            self.pending.add(threading.get_ident())
            return CudaError(self.refuses)
        for start, length in self.registered.items():
            if start < address + size and address < start + length:
                self.pending.add(threading.get_ident())
                return CudaError(712)  # cudaErrorHostMemoryAlreadyRegistered
        assert is_mapped(address)
        self.notes.append(f"register {size}")
        self.registered[address] = size
        return CudaError(0)

    def cudaGetErrorString(self, error, /):
        assert isinstance(error, CudaError)
        return "out of memory" if int(error) == 2 else f"error {int(error)}"

    def cudaHostUnregister(self, address, /):
        assert is_mapped(address), "unmapped before it was unregistered"
        self.notes.append("unregister")
        del self.registered[address]
        return CudaError(0)

    # Of tensors.

    def ones(self, size, *, device):
        if threading.get_ident() in self.pending:
            self.pending.discard(threading.get_ident())
            raise RuntimeError("CUDA error: out of memory")

    def is_registered(self, tensor):
        at = tensor.data_ptr()
        return any(start <= at < start + size for start, size in self.registered.items())

    def record_stream(self, tensor, stream):
        if is_several(tensor):
            raise NotImplementedError("aten::record_stream has no kernel for sparse tensors")

    def pin_memory(self, tensor):
        self.threads.add(threading.current_thread())
        if is_several(tensor):
            return tensor
        if self.is_registered(tensor) or getattr(tensor, "is_fake_pinned", False):
            return tensor
        self.pinned += 1
        copied = tensor.clone()
        copied.is_fake_pinned = True
        return copied

    def to(self, tensor, *args, **options):
        if is_several(tensor):
            self.notes.append("move a tensor of several")
            return tensor
        if not options.get("non_blocking"):
            return self._to(tensor, *args, **options)
        is_pinned = getattr(tensor, "is_fake_pinned", False)
        assert self.is_registered(tensor) or is_pinned, "a copy from pageable memory"
        copied = torch.empty_like(tensor)
        with self.lock:
            # The address only: CUDA keeps no reference.
            source = torch.from_numpy(_bytes_at(tensor))
            self.waiting.append((copied, source, is_pinned and tensor))
        return copied

    def record(self):
        with self.lock:
            copies, self.waiting = self.waiting, []
        return SimpleNamespace(
            query=lambda: self._query(copies), synchronize=lambda: self._finish(copies)
        )

    def _query(self, copies):
        if copies and self.late.random() < 0.4:
            return False
        self._finish(copies)
        return True

    def _finish(self, copies):
        with self.lock:
            while copies:
                copied, source, _ = copies.pop(0)
                copied.reshape(-1).view(torch.uint8).copy_(source)


class CudaError:
    """An enum of pybind11: it has a number, and is equal to none."""

    def __init__(self, code):
        self._code = code

    def __int__(self):
        return self._code


class FakeStream:
    """A stream, the `with` around its use, and that around a device."""

    def __init__(self, cuda):
        self.cuda = cuda

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def record_event(self):
        return self.cuda.record()

    def wait_event(self, event):
        pass


def is_several(tensor):
    return tensor.layout is not torch.strided or tensor.is_nested


def _bytes_at(tensor):
    """The memory of a tensor as an array that does not keep it alive."""
    import ctypes

    import numpy as np

    size = tensor.numel() * tensor.element_size()
    return np.frombuffer((ctypes.c_uint8 * size).from_address(tensor.data_ptr()), dtype=np.uint8)


def is_mapped(address):
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, stop = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < stop:
                return True
    return False
