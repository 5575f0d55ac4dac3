"""Tar shards with links: members whose bytes lie elsewhere."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

from tests.support.raw_tars import header, member, sign

NUM_SAMPLES = 60


def link(name: bytes, target: bytes, kind: bytes = b"1") -> bytes:
    block = bytearray(header(name, 4000, kind=kind))
    block[157 : 157 + len(target)] = target
    return sign(bytes(block))


# Members that a shard can't have after "0.txt", and why, of key "b/1" and field "txt".
REFUSED = [
    (link(b"b/1.txt", b"nowhere.txt"), r"a hard link to 'nowhere.txt', which .*hard-deref"),
    (link(b"b/1.txt", b"b/2.txt") + member(b"b/2.txt", b"x"), "no regular file before it"),
    (link(b"b/1.txt", b"0.txt", b"2"), r"a symbolic link to '0.txt', .* `tar --dereference`"),
    (member(b"b/1.txt", b"rest", kind=b"M"), "another volume's member: .*--multi-volume"),
]
# Links that are no field: two symbolic ones and a hard one.
FOREIGN = link(b"latest", b"v2", b"2") + link(b"README", b"nowhere") + link(b"._a.txt", b"b", b"2")


def make_linked(directory: Path, form: str) -> Path:
    """Pack equal files as hard links, by GNU tar; names are long in most formats."""
    prefix = "" if form == "ustar" else "d" * 120 + "/"
    files = directory / "files"
    (files / prefix).mkdir(parents=True)
    for i in range(NUM_SAMPLES):
        for field, data in (("bin", bytes([i % 7]) * (i % 7 * 300)), ("cls", b"%d" % (i % 2))):
            path, first = files / f"{prefix}{i:03d}.{field}", i % (7 if field == "bin" else 2)
            if i == first:
                path.write_bytes(data)
            else:
                # Each links to the name before it: chains, to GNU tar one file.
                os.link(files / f"{prefix}{first:03d}.{field}", path)
    options = ["--sort=name", f"--format={form}"]
    shard = directory / "shard.tar"
    subprocess.run(["tar", *options, "-cf", shard, "-C", files, "."], check=True)
    return shard


def wanted(shard: Path) -> list[dict[str, bytes]]:
    """The fields of the samples, as the standard library reads them."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(shard) as tar:
        for info in tar:
            found = None if info.isdir() else tar.extractfile(info)
            if found is not None:
                key, _, field = Path(info.name).name.partition(".")
                samples.setdefault(key, {})[field] = found.read()
    return list(samples.values())


def fields_of(samples) -> list[dict[str, bytes]]:
    return [{k: v for k, v in each.items() if not k.startswith("__")} for each in samples]
