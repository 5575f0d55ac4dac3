"""A real SFTP server (OpenSSH) on the loopback, for one user with a key."""

from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.server_process import require_binary, run_server


@dataclass(frozen=True)
class SftpServer:
    """An SFTP server whose files lie in `folder`.

    Attributes:
        root: the URL of `folder`, without a slash at the end.
        config: the settings of a client.
    """

    root: str
    folder: Path
    config: dict[str, Any]

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, data: bytes) -> str:
        """Store a file, as a rename over what was there; returns its URL."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(data)
        part.rename(path)
        return self.url(name)


@contextmanager
def sftp_server(folder: Path) -> Iterator[SftpServer]:
    """Run OpenSSH's server; its keys and log lie beside `folder`."""
    sshd = require_binary("sshd", package="apt-get install openssh-server")
    keygen = require_binary("ssh-keygen", package="apt-get install openssh-client")
    own = folder.with_name(f"{folder.name}-sshd")
    own.mkdir()
    folder.mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", own / name], check=True)
    if os.geteuid() == 0:
        # Where its unprivileged part is locked in.
        Path("/run/sshd").mkdir(exist_ok=True)

    def command(port: int) -> list[str | Path]:
        settings = {
            "ListenAddress": "127.0.0.1", "Port": port, "HostKey": own / "host", "PidFile": "none",
            "AuthorizedKeysFile": own / "user.pub", "StrictModes": "no", "UsePAM": "no",
            "PasswordAuthentication": "no", "PermitRootLogin": "yes",
            "Subsystem": "sftp internal-sftp",
        }  # fmt: skip
        (own / "config").write_text(
            "".join(f"{name} {value}\n" for name, value in settings.items())
        )
        return [sshd, "-D", "-e", "-f", own / "config"]

    with run_server(command, log=own / "log") as port:
        config = {"key_filename": str(own / "user"), "allow_agent": False, "look_for_keys": False}
        yield SftpServer(
            f"sftp://{getpass.getuser()}@127.0.0.1:{port}{folder.resolve()}", folder, config
        )
