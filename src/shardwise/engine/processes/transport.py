"""Messages between processes of one machine: sent whole, large ones in memory that is reused.

A large message lies in a slot of its sender's, an anonymous file whose descriptor goes along. Its
arrays and tensors are views of that file, and the sender fills the slot again once the last of them
is gone in the receiver. The engine's workers use a socket that keeps message borders, so that any
worker may take the next task, and one that is killed can't leave half an answer; torch's workers
use torch's queues.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import StorageError
from shardwise.engine.processes.pickling import put_together, take_apart
from shardwise.engine.processes.shared_memory import above_stdio, aligned, map_without_file
from shardwise.engine.processes.slots import MAX_HOLDERS, Slot, SlotPool, lend

# Well below the system's limit for one message (208 KiB), and cheaper to copy than to map.
_MAX_INLINE_BYTES = 48 << 10
# Above this number of mapped messages, the next one is copied: a process has 65,530 maps at most.
_MAX_MAPS = 4096
_MAX_MESSAGE_BYTES = 64 << 10
_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_INT = struct.Struct("@i")


def message_slots(*, max_idle: int = 1) -> SlotPool:
    """Memory for messages of similar sizes; `max_idle` free slots are kept."""
    return SlotPool(max_idle=max_idle, headroom=0.125)


class Packed(NamedTuple):
    """A message: its bytes or the slot that has it, and the file that goes along."""

    body: bytes
    descriptor: int | None = None
    slot: Slot | None = None

    def drop(self) -> None:
        """Free the slot of a message that will not be sent."""
        if self.slot is not None:
            self.slot.free()


def pack(
    value: Any,
    slots: SlotPool,
    *,
    descriptor: int | None = None,
    max_inline: int = _MAX_INLINE_BYTES,
    kind: Callable[..., pickle.Pickler] | None = pickle.Pickler,
) -> Packed:
    """Make a message of a value, pickled by `kind`, see `take_apart`; whole with None.

    Above `max_inline` bytes it lies in one of `slots`; below that, `descriptor` may go with it.
    """
    parts = take_apart(value, kind) if kind else [pickle.dumps(value, 5)]
    sizes = [memoryview(part).nbytes for part in parts]
    head = _COUNT.pack(len(parts)) + b"".join(map(_SIZE.pack, sizes))
    num_bytes = sum(map(aligned, (len(head), *sizes)))
    if num_bytes <= max_inline:
        pieces: list[Any] = []
        for part, size in zip((head, *parts), (len(head), *sizes), strict=True):
            pieces += (part, bytes(aligned(size) - size))
        return Packed(b"".join(pieces), descriptor)
    if descriptor is not None:
        raise ValueError(f"a message of {num_bytes} bytes can't carry a descriptor of its own")
    slot = slots.take(num_bytes)
    start = 0
    for part in (head, *parts):
        # numpy's copy does not hold the GIL.
        data = np.frombuffer(part, dtype=np.uint8)
        np.copyto(slot.memory[start : start + data.nbytes], data)
        start += aligned(data.nbytes)
    return Packed(b"", slot.descriptor, slot)


def unpack(memory: Any) -> Any:
    """The value of a message; its arrays and tensors are views of the memory."""
    memory = memoryview(memory)
    (count,) = _COUNT.unpack_from(memory)
    sizes = [_SIZE.unpack_from(memory, _COUNT.size + i * _SIZE.size)[0] for i in range(count)]
    start = aligned(_COUNT.size + count * _SIZE.size)
    parts = []
    for size in sizes:
        parts.append(memory[start : start + size])
        start += aligned(size)
    return put_together(parts)


def unpack_file(descriptor: int, maps: list[None] | None = None, holder: int | None = None) -> Any:
    """The value of a message in a slot; closes the descriptor, of the slot's file.

    `maps` has an entry for each message that is mapped, and above 4,096 this one is copied.
    `holder` is the number of this process where several get the message, see `Slot.hold`.
    """
    try:
        counted = []
        is_copied = maps is not None and len(maps) >= _MAX_MAPS
        if maps is not None and not is_copied:
            maps.append(None)
            counted.append(maps.pop)
        shared = None if holder is None else map_without_file(descriptor)[holder - MAX_HOLDERS :]
        private = map_without_file(descriptor, before_unmap=counted, is_private=holder is not None)
        memory: NDArray[np.uint8] = lend(private, state=shared)
    finally:
        os.close(descriptor)
    return unpack(memory.copy() if is_copied else memory)


def send(sock: socket.socket, packed: Packed) -> None:
    """Send one message; the descriptor stays the sender's.

    Raises:
        BlockingIOError: no room in a socket that does not block; with the number ETOOMANYREFS,
            too many descriptors of this user are in messages not yet received.
    """
    body = b"f" if packed.slot is not None else b"i" + packed.body
    fd = None if packed.descriptor is None else _INT.pack(packed.descriptor)
    try:
        # In two thirds of the time of `send_fds`.
        sock.sendmsg([body], [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd)])
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        raise BlockingIOError(error.errno, error.strerror) from None


def receive(
    sock: socket.socket,
    maps: list[None] | None = None,
    *,
    flags: int = 0,
    holder: int | None = None,
) -> tuple[Any, int | None] | None:
    """Receive one message: the value and the descriptor that went with it, which is the caller's.

    None when the other end is gone. `flags` are those of the system's call; the others are
    `unpack_file`'s.

    Raises:
        BlockingIOError: no message has arrived, and it must not wait for one.
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
        return unpack(memoryview(bytearray(body))[1:]), descriptor
    assert descriptor is not None, "a message in a slot came without its file"
    return unpack_file(descriptor, maps, holder), None
