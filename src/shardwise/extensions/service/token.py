"""The token of a job: a secret in a file, by which a server and its clients know each other.

It proves itself by challenge and response (HMAC-SHA256 over both sides' random numbers), so it is
never sent, and never stands among arguments or in a log. Source: RFC 2104.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from shardwise.base.errors import ServiceError

_NUM_BYTES = 32
_MIN_BYTES, _MAX_BYTES = 16, 4_096


def read_token(path: str | os.PathLike[str]) -> bytes:
    """The token in a file."""
    file = Path(path)
    try:
        mode = file.stat().st_mode
        token = file.read_bytes().strip()
    except (OSError, ValueError) as error:
        raise ServiceError(f"token_file {str(file)!r} can't be read: {error}") from None
    if mode & stat.S_IROTH:
        raise ServiceError(
            f"token_file {str(file)!r} may be read by every user of this machine: chmod 600 it"
        )
    if not _MIN_BYTES <= len(token) <= _MAX_BYTES:
        raise ServiceError(
            f"token_file {str(file)!r} holds {len(token)} bytes: a token has {_MIN_BYTES} to "
            f"{_MAX_BYTES}"
        )
    return token


def make_token(path: str | os.PathLike[str]) -> None:
    """Make a file with a new token, which its owner alone may read; one that is there stays."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w") as file:
        file.write(secrets.token_hex(_NUM_BYTES) + "\n")


def new_nonce() -> str:
    """A random number that is used once."""
    return secrets.token_hex(_NUM_BYTES)


def proof(token: bytes, role: str, *facts: str) -> str:
    """Prove the token in 64 hex digits, for one `role`, over random numbers and facts."""
    message = "\n".join([f"shardwise service 1 {role}", *facts])
    return hmac.new(token, message.encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, token: bytes, role: str, *facts: str) -> bool:
    """Whether it is that proof; takes as long for a wrong one."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(errors="replace"), proof(token, role, *facts).encode()
    )
