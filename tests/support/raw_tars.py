"""Tar members byte by byte, for what no library writes: odd notations, damage, holes."""

from __future__ import annotations

END = bytes(1024)


def header(
    name: bytes,
    size: int | bytes,
    *,
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    """One 512-byte header with a sound checksum; `size` as bytes is the size field as it is."""
    size_field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(512)
    block[: len(name)] = name
    block[100:124] = b"0000644\0" * 3
    block[124:136] = size_field.ljust(12, b"\0")
    block[136:148] = b"%011o\0" % 0
    block[156:157] = kind
    block[257:265] = magic.ljust(8, b"\0")
    block[345 : 345 + len(prefix)] = prefix
    return sign(bytes(block))


def sign(block: bytes) -> bytes:
    """A header with its checksum put right."""
    covered = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(covered) + block[156:]


def member(name: bytes, data: bytes, **options: bytes) -> bytes:
    return header(name, len(data), **options) + data + bytes(-len(data) % 512)


def pax_records(**records: str | int) -> bytes:
    found = b""
    for key, value in records.items():
        body = f" {key}={value}\n".encode()
        length = len(body)
        while len(str(length)) + len(body) != length:
            length = len(str(length)) + len(body)
        found += str(length).encode() + body
    return found
