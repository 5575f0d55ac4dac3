"""How trainer and workers talk: whole messages over one socket, large ones in anonymous memory.

The socket keeps message borders, so that any worker may take the next task and a worker that is
killed can't leave half an answer. Objects travel pickled with their buffers apart (protocol 5); a
message that is too large for the socket lies in an anonymous file whose descriptor goes along,
and its arrays and tensors are views of that file. Both ends are this library's own, joined by a
socket without a name: nothing from outside is unpickled.
"""

from __future__ import annotations

import copyreg
import errno
import io
import os
import pickle
import socket
import struct
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import StorageError, WorkerError
from shardwise.engine.processes.shared_memory import (
    above_stdio,
    aligned,
    anonymous_file,
    map_without_file,
    mapped,
)

# Well below the system's limit for one message (208 KiB), and cheaper to copy than to map.
_MAX_INLINE_BYTES = 48 << 10
_MAX_MAPS = 4096
# Smaller arrays are part of the pickle.
_MIN_BUFFER_BYTES = 16 << 10
_MAX_MESSAGE_BYTES = 64 << 10
_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_INT = struct.Struct("@i")

Packed = tuple[bytes, int | None]


class _MainPickler(pickle.Pickler):
    """Pickles classes and functions of the program itself by name: a worker has copies of them.

    Pickle alone looks for them in the worker's own `__main__`. By value, the trainer would get
    objects of another class than its own.
    """

    def persistent_id(self, value: Any) -> str | None:
        """Its name; None for others, and for what is local to a function: those do not pickle."""
        is_main = isinstance(value, (type, FunctionType)) and value.__module__ == "__main__"
        return value.__qualname__ if is_main and value.__qualname__.isidentifier() else None


class _MainUnpickler(pickle.Unpickler):
    """Reads what `_MainPickler` wrote."""

    def persistent_load(self, name: str) -> Any:
        """The program's own class or function.

        Raises:
            WorkerError: it has none of this name: a function made the class before workers began.
        """
        try:
            return getattr(sys.modules["__main__"], name)
        except AttributeError:
            # Of which batch it is, is not known: this error ends the workers.
            raise WorkerError(
                f"a batch from a worker process holds an object of {name!r}: define that at the "
                "top of the program or in a module, or choose threads with num_workers=0"
            ) from None


def pack(value: Any, *, descriptor: int | None = None) -> Packed:
    """Make a message of a value: its bytes, and the descriptor that goes with it or None.

    `descriptor` goes with a small message as it is; a large message carries a file of its own,
    which the sender closes.
    """
    body, buffers = _dumps(value)
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    head = _COUNT.pack(len(parts)) + b"".join(_SIZE.pack(part.nbytes) for part in parts)
    num_bytes = len(head) + sum(part.nbytes for part in parts)
    if num_bytes <= _MAX_INLINE_BYTES:
        return b"i" + b"".join([head, *parts]), descriptor
    if descriptor is not None:
        raise ValueError(f"a message of {num_bytes} bytes can't carry a descriptor of its own")
    return _in_file(head, parts)


class Unread:
    """A value in a message, which is unpickled where it is read: in another thread."""

    def __init__(self, body: Any, buffers: Sequence[Any]) -> None:
        self._body, self._buffers = body, buffers

    def __reduce__(self) -> Any:
        """Its parts, apart where they are large."""
        return Unread, (pickle.PickleBuffer(self._body), self._buffers)

    @classmethod
    def of(cls, value: Any) -> Unread:
        """Pickle a value."""
        return cls(*_dumps(value))

    def read(self) -> Any:
        """The value; of a sender that is no stranger, see the module's docstring."""
        return _loads(self._body, self._buffers)


def _dumps(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    try:
        return _pickled(value, buffers, pickle.Pickler), buffers
    except (pickle.PicklingError, AttributeError):
        buffers.clear()
        return _pickled(value, buffers, _MainPickler), buffers


def _loads(body: Any, buffers: Sequence[Any]) -> Any:
    # See the module's docstring for S301.
    try:
        return pickle.loads(body, buffers=buffers)  # noqa: S301
    except pickle.UnpicklingError:
        return _MainUnpickler(io.BytesIO(body), buffers=buffers).load()


def _pickled(value: Any, buffers: list[pickle.PickleBuffer], kind: type[pickle.Pickler]) -> bytes:
    file = io.BytesIO()

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        # A few ids, which the trainer keeps, must not keep the message's file mapped.
        is_small = buffer.raw().nbytes < _MIN_BUFFER_BYTES
        if not is_small:
            buffers.append(buffer)
        return is_small

    pickler = kind(file, protocol=5, buffer_callback=is_in_band)
    pickler.dispatch_table = {**copyreg.dispatch_table, np.ndarray: _reduce_array}
    if "torch" in sys.modules:
        import torch

        # By itself, torch copies a tensor's storage into the pickle, and out of it again.
        pickler.dispatch_table[torch.Tensor] = _reduce_tensor
    pickler.dump(value)
    return file.getvalue()


def _reduce_array(array: NDArray[Any]) -> Any:
    """An array as a buffer apart, which numpy makes of contiguous ones only."""
    is_contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    return (array if is_contiguous else np.ascontiguousarray(array)).__reduce_ex__(5)


def _reduce_tensor(tensor: Any) -> Any:
    """A tensor as a buffer apart, where it is plain numbers in memory and nothing else."""
    import torch

    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    is_lazy = is_plain and (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    if not is_plain or is_lazy or tensor.requires_grad or vars(tensor):
        return tensor.__reduce_ex__(5)
    storage, offset = tensor.untyped_storage(), tensor.storage_offset()
    if storage.nbytes() == tensor.numel() * tensor.element_size():
        data = torch.empty(0, dtype=torch.uint8).set_(storage)
    elif tensor.is_contiguous():
        data, offset = tensor.reshape(-1).view(torch.uint8), 0
    else:
        return tensor.__reduce_ex__(5)
    return _tensor_over, (data.numpy(), tensor.dtype, tensor.shape, tensor.stride(), offset)


def _tensor_over(
    data: NDArray[np.uint8], dtype: Any, shape: Any, stride: tuple[int, ...], offset: int
) -> Any:
    import torch

    return torch.from_numpy(data).view(dtype).as_strided(shape, stride, offset)


def close_own_file(packed: Packed) -> None:
    """Close the file that a large message carries, when it was sent or never will be."""
    body, descriptor = packed
    if body[:1] == b"f" and descriptor is not None:
        os.close(descriptor)


def _in_file(head: bytes, parts: list[memoryview]) -> Packed:
    size = aligned(len(head)) + sum(aligned(part.nbytes) for part in parts)
    file = anonymous_file(size)
    try:
        with mapped(file, size) as memory_map:
            memory = np.frombuffer(memory_map, dtype=np.uint8)
            at = 0
            for part in [memoryview(head), *parts]:
                # numpy's copy does not hold the GIL.
                np.copyto(memory[at : at + part.nbytes], np.frombuffer(part, dtype=np.uint8))
                at += aligned(part.nbytes)
            del memory
    except BaseException:
        os.close(file)
        raise
    return b"f" + _SIZE.pack(size), file


def send(sock: socket.socket, packed: Packed) -> None:
    """Send one message; the descriptor stays the sender's.

    Raises:
        BlockingIOError: no room in a socket that does not block; with the number ETOOMANYREFS,
            too many descriptors of this user are in messages not yet received.
    """
    body, descriptor = packed
    try:
        socket.send_fds(sock, [body], [] if descriptor is None else [descriptor])
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        raise BlockingIOError(error.errno, error.strerror) from None


def receive(
    sock: socket.socket, maps: list[None] | None = None, *, flags: int = 0
) -> tuple[Any, int | None] | None:
    """Receive one message: the value and the descriptor that went with it, which is the caller's.

    None when the other end is gone.

    Args:
        sock: the caller's end.
        maps: an entry for each large message whose file is mapped: where there are 4,096, the next
            one is copied, since a process has 65,530 maps at most. None maps every file.
        flags: of the system's call: `socket.MSG_DONTWAIT` does not wait for a message.

    Raises:
        BlockingIOError: there is no message, and it must not wait for one.
        StorageError: the limit of open files left no room for the descriptor.
    """
    # Not `recv_fds`, which forgets the flags in Python 3.11.
    body, rights, flags, _ = sock.recvmsg(_MAX_MESSAGE_BYTES, socket.CMSG_LEN(_INT.size), flags)
    if not body:
        return None
    if flags & socket.MSG_CTRUNC:
        raise StorageError(
            "no room for a batch's memory among the open files: raise their limit (ulimit -n)"
        )
    descriptor = above_stdio(*_INT.unpack(rights[0][2])) if rights else None
    if body[:1] == b"i":
        return _unpacked(memoryview(bytearray(body))[1:], is_aligned=False), descriptor
    assert descriptor is not None, "a message in a file came without the file"
    try:
        memory = _contents(descriptor, _SIZE.unpack_from(body, 1)[0], maps)
    finally:
        os.close(descriptor)
    return _unpacked(memory, is_aligned=True), None


def _contents(descriptor: int, num_bytes: int, maps: list[None] | None) -> memoryview:
    if maps is not None and len(maps) >= _MAX_MAPS:
        copy = np.empty(num_bytes, dtype=np.uint8).data
        done = 0
        while done < num_bytes:
            done += os.preadv(descriptor, [copy[done:]], done)
        return copy
    if maps is None:
        return map_without_file(descriptor).data
    maps.append(None)
    return map_without_file(descriptor, before_unmap=[maps.pop]).data


def _unpacked(memory: memoryview, *, is_aligned: bool) -> Any:
    (count,) = _COUNT.unpack_from(memory)
    sizes = struct.unpack_from(f"<{count}Q", memory, _COUNT.size)
    at = 0
    parts = []
    for size in [_COUNT.size + count * _SIZE.size, *sizes]:
        parts.append(memory[at : at + size])
        at += aligned(size) if is_aligned else size
    return _loads(parts[1], parts[2:])
