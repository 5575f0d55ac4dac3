"""A stand-in for an AIStore cluster: a gateway and targets on the loopback, as a recording says.

data/aistore_exchanges.json beside the tests of stores holds requests to a real cluster and its
answers; test_ais_cluster.py there sends the same requests here and compares. Objects lie in memory,
once for all targets, so that any target can be taken away.
"""

from __future__ import annotations

import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import xxhash

from tests.support.web import WebServer

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


@dataclass
class _Object:
    data: bytes
    version: int
    made_ns: int

    @property
    def checksum(self) -> str:
        return xxhash.xxh64_hexdigest(self.data)


@dataclass
class AisCluster:
    """The cluster's state; tests change it while it serves.

    Attributes:
        token: what the gateway asks for; "" for nothing. Targets ask for none.
        asked: (node, method, path, headers) of every request, node 0 being the gateway.
        refusal: what the gateway answers instead of everything: (status, tcode, message).
        absent: names that targets answer 404 for, though they are listed.
        has_get_batch: False for an older cluster.
        break_batch: None, "cut" (the archive ends in the middle), "missing" (an entry is not there,
            and what follows it) or "hang".
        chosen: the target that gets all reads, or None for one by the object's name.
    """

    token: str = ""
    num_targets: int = 2
    objects: dict[str, dict[str, _Object]] = field(default_factory=dict)
    asked: list[tuple[int, str, str, dict[str, str]]] = field(default_factory=list)
    refusal: tuple[int, str, str] | None = None
    absent: set[str] = field(default_factory=set)
    has_get_batch: bool = True
    break_batch: str | None = None
    chosen: int | None = None
    nodes: list[Node] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    clock_ns: int = 1_795_345_198_000_000_000

    @property
    def endpoint(self) -> str:
        return self.nodes[0].url

    def put(self, key: str, data: bytes, bucket: str = "bucket") -> str:
        held = self.objects.setdefault(bucket, {})
        self.clock_ns += 10**9
        version = held[key].version + 1 if key in held else 1
        held[key] = _Object(data, version, self.clock_ns)
        return f"ais://{bucket}/{key}"

    def count(self, *, node: int | None = None) -> int:
        """Requests to one node, or to all targets."""
        return sum(at > 0 if node is None else at == node for at, *_ in list(self.asked))

    def target_of(self, bucket: str, key: str) -> Node:
        """Where a request for an object is sent."""
        number = xxhash.xxh32_intdigest(f"{bucket}/{key}".encode()) % self.num_targets
        return self.nodes[1 + (number if self.chosen is None else self.chosen)]


class Node:
    """A gateway (number 0) or a target, which can leave its port and come back to it."""

    def __init__(
        self, cluster: AisCluster, number: int, handler: type[StoreHandler] | None = None
    ) -> None:
        self.cluster, self.number, self.port = cluster, number, 0
        self.handler = handler or StoreHandler
        self.come()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def come(self) -> None:
        """Listen, on the port of before."""
        kind = type("Handler", (self.handler,), {"cluster": self.cluster, "node": self})
        self.server = WebServer(("127.0.0.1", self.port), kind)
        self.open: set[Any] = set()
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def leave(self) -> None:
        """As when the process is killed: connections break, new ones are refused."""
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.open):
            _hang_up(connection)


def _hang_up(connection: socket.socket) -> None:
    """End a connection that a thread may be reading: `close` would wait for its files."""
    with suppress(OSError):  # the other end was faster
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def ais_cluster(*, num_targets: int = 2, token: str = "") -> Iterator[AisCluster]:
    """Run a cluster with an empty bucket `bucket`."""
    cluster = AisCluster(token=token, num_targets=num_targets)
    cluster.objects["bucket"] = {}
    cluster.nodes = [Node(cluster, number) for number in range(num_targets + 1)]
    try:
        yield cluster
    finally:
        cluster.released.set()
        for node in cluster.nodes:
            node.leave()


class StoreHandler(BaseHTTPRequestHandler):
    """Answers as a node; what a subclass for another store needs is `_object` and `_list_xml`."""

    protocol_version = "HTTP/1.1"
    # A body waits 40 ms for the acknowledgement of its headers otherwise.
    disable_nagle_algorithm = True
    cluster: AisCluster
    node: Node

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def setup(self) -> None:
        super().setup()
        self.node.open.add(self.connection)
        if self.server.socket.fileno() < 0:  # accepted just before the node left
            _hang_up(self.connection)

    def finish(self) -> None:
        self.node.open.discard(self.connection)
        super().finish()

    def _serve(self) -> None:
        cluster = self.cluster
        headers = {name.lower(): value for name, value in self.headers.items()}
        cluster.asked.append((self.node.number, self.command, self.path, headers))
        self.sent = self.rfile.read(int(headers.get("content-length", 0)))
        path = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(path.query).items()}
        parts = [unquote(part) for part in path.path.lstrip("/").split("/")]
        is_s3 = parts[0] == "s3"
        bucket, key = (parts[1], "/".join(parts[2:])) if is_s3 else (parts[2], "/".join(parts[3:]))
        kind = "s3" if is_s3 else parts[1]
        if kind == "ml":
            bucket, key = parts[3], ""
        self.is_s3, self.bucket, self.key, self.kind = is_s3, bucket, key, kind
        if self.node.number == 0:
            self._gateway()
        elif kind == "ml":
            self._batch()
        else:
            self._object()

    do_GET = do_HEAD = do_PUT = do_POST = _serve

    def _gateway(self) -> None:
        cluster = self.cluster
        if cluster.refusal is not None:
            return self._refuse(*cluster.refusal)
        if cluster.token and self.headers.get("Authorization") != f"Bearer {cluster.token}":
            return self._refuse(401, "ErrUnauthorized", "token required")
        if self.command == "POST":
            cluster.objects.setdefault(self.bucket, {})
            return self._reply(200)
        if self.bucket not in cluster.objects:
            if self.is_s3:
                said = f'bucket "{self.bucket}" does not exist'
                return self._refuse(404, "NoSuchBucket", escape(said, {'"': "&#34;"}))
            said = f'bucket "ais://{self.bucket}" does not exist'
            return self._refuse(404, "ErrBckNotFound", said)
        if self.kind == "ml" and not cluster.has_get_batch:
            return self._refuse(404, "ErrNotFound", "no such path")
        if self.kind == "buckets":
            return self._list()
        if self.is_s3 and not self.key:
            return self._list_xml()
        return self._redirect()

    def _redirect(self) -> None:
        place = self.cluster.target_of(self.bucket, self.key).url
        path = urlsplit(self.path).path
        more = f"{urlsplit(self.path).query}&" if self.kind == "ml" else ""
        # The cluster writes some names as they are.
        path = path if not set("[]{}") & set(unquote(path)) else unquote(path)
        if self.kind == "ml":
            path += "/gbt-0/0/3"
        location = f"{place}{path}?{more}pid=p0&utm=u0"
        if self.is_s3:
            body = (
                f"{_XML.rstrip()}<Error><Code>TemporaryRedirect</Code><Message>Redirect</Message>"
                f"<Endpoint>{escape(location)}</Endpoint><Bucket>{self.bucket}</Bucket></Error>"
            )
            kind = {"Content-Type": "text/xml; charset=utf-8", "Server": "AIStore"}
            return self._reply(307, body.encode(), {**kind, "Location": location})
        kind = {"Content-Type": "text/html; charset=utf-8"} if self.command != "PUT" else {}
        is_read = self.command == "GET" and self.kind == "objects"
        body = b"" if self.command == "PUT" else f'<a href="{escape(location)}">Moved</a>.'.encode()
        return self._reply(301 if is_read else 307, body, {**kind, "Location": location})

    def _object(self) -> None:
        cluster = self.cluster
        if self.command == "PUT":
            cluster.put(self.key, self.sent, self.bucket)
            return self._reply(200, headers=self._version(cluster.objects[self.bucket][self.key]))
        found = cluster.objects[self.bucket].get(self.key)
        if found is None or self.key in cluster.absent:
            code = "NoSuchKey" if self.is_s3 else "ErrNotFound"
            name = f"ais://{self.bucket}/{self.key}"
            return self._refuse(404, code, f"t[target]: {name} does not exist")
        headers = self._version(found)
        if self.command == "HEAD":
            return self._reply(200, found.data, headers)
        headers["Content-Type"] = "application/octet-stream"
        if "Range" not in self.headers:
            return self._reply(200, found.data, headers)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        start, size = int(first), len(found.data)
        if start >= size:
            return self._refuse(
                416, "ErrRangeNotSatisfiable",
                f"size={size}: not satisfiable range [{first}-{last}]",
                {"Content-Range": f"bytes */{size}"},
            )  # fmt: skip
        data = found.data[start : int(last or size - 1) + 1]
        headers["Accept-Ranges"] = "bytes"
        headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{size}"
        return self._reply(206, data, headers)

    def _version(self, found: _Object) -> dict[str, str]:
        if self.is_s3:
            named = {
                "Etag": f'"v1-{found.checksum}-{found.made_ns:x}"',
                "Last-Modified": formatdate(found.made_ns / 1e9, usegmt=True),
            }
            if self.command == "HEAD":
                named["X-Amz-Meta-Ais-Cksum-Type"] = "xxhash2"
                named["X-Amz-Meta-Ais-Cksum-Val"] = found.checksum
            return named
        named = {
            "Ais-Atime": str(found.made_ns), "Ais-Checksum-Type": "xxhash2",
            "Ais-Checksum-Value": found.checksum, "Ais-Version": str(found.version),
        }  # fmt: skip
        if self.command == "HEAD":
            named |= {
                "Ais-Bucket-Name": self.bucket, "Ais-Bucket-Provider": "ais",
                "Ais-Location": "(left out)", "Ais-Mirror-Copies": "1",
                "Ais-Mirror-Paths": "(left out)", "Ais-Name": self.key, "Ais-Present": "true",
            }  # fmt: skip
        return named

    def _list(self) -> None:
        """A page by the native interface; names come whole, pages in the order of names."""
        value = json.loads(self.sent)["value"]
        names = self._names(value.get("prefix", ""), value.get("continuation_token", ""))
        most = int(value.get("pagesize") or 1000)
        page, token = names[:most], names[most - 1] if len(names) > most else ""
        entries = []
        for name in page:
            if int(value.get("flags", 0)) & 2048 and "/" in name[len(value["prefix"]) :]:
                name = value["prefix"] + name[len(value["prefix"]) :].partition("/")[0] + "/"
                if not entries or entries[-1]["name"] != name:
                    entries.append({"name": name, "flags": 256})
                continue
            entry: dict[str, Any] = {"name": name}
            found = self.cluster.objects[self.bucket][name]
            if "checksum" in value.get("props", ""):
                entry |= {"checksum": found.checksum, "version": str(found.version)}
                entry["size"] = str(len(found.data))
            entries.append({**entry, "flags": 64})
        found = {"uuid": "u0", "continuation_token": token, "entries": entries or None, "flags": 0}
        self._reply(
            200, json.dumps(found).encode(), {"Content-Type": "application/json; charset=utf-8"}
        )

    def _list_xml(self) -> None:
        prefix = self.query.get("prefix", "")
        token = self.query.get("continuation-token", "")
        names = self._names(prefix, token)
        # As recorded, max-keys shortens no page, but names where one of that length would end. How
        # more than a thousand names are cut was not recorded: here as S3 does it.
        page, is_cut = names[:1000], len(names) > 1000
        most = int(self.query.get("max-keys", 1000))
        end = names[most - 1] if len(names) > most else ""
        contents, folders = "", dict[str, None]()
        for name in page:
            if self.query.get("delimiter") and "/" in name[len(prefix) :]:
                folders[prefix + name[len(prefix) :].partition("/")[0] + "/"] = None
                continue
            found = self.cluster.objects[self.bucket][name]
            contents += (
                f"<Contents><Key>{escape(name)}</Key>"
                "<LastModified>2026-11-22T10:59:58Z</LastModified><ETag></ETag>"
                f"<StorageClass></StorageClass><Size>{len(found.data)}</Size></Contents>"
            )
        contents += "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        following = ""
        if is_cut:
            following = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        body = (
            f'{_XML}<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01">'
            f"<Name>{self.bucket}</Name><Prefix></Prefix>"
            f"<ContinuationToken>{escape(end)}</ContinuationToken>{contents}"
            f"<KeyCount>{len(page)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>{'true' if is_cut else 'false'}</IsTruncated>"
            f"{following}</ListBucketResult>"
        )
        self._reply(200, body.encode(), {"Content-Type": "application/xml"})

    def _names(self, prefix: str, after: str) -> list[str]:
        names = sorted(self.cluster.objects[self.bucket])
        return [name for name in names if name.startswith(prefix) and name > after]

    def _batch(self) -> None:
        """Ranges of objects as one archive, in the order asked; chunked."""
        asked, held = json.loads(self.sent), self.cluster.objects[self.bucket]
        file = io.BytesIO()
        archive = tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        for each in asked["in"]:
            found, name = held.get(each["objname"]), each["objname"]
            if found is not None and each["start"] + each["length"] > len(found.data):
                # The real one does not answer either.
                self.cluster.released.wait()
                return
            is_lost = self.cluster.break_batch == "missing" and each is asked["in"][-3]
            if is_lost or (found is None and not asked.get("coer")):
                break
            if found is None:
                name, data = f"__404__/{self.bucket}/{name}", b""
            else:
                data = found.data[each["start"] : each["start"] + each["length"]]
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        # Two empty blocks end it, without tarfile's filling.
        body = file.getvalue()[: archive.offset] + bytes(1024)
        if self.cluster.break_batch == "hang":
            self.cluster.released.wait()
            return
        self.send_response_only(200)
        self.send_header("Content-Type", "application/x-tar")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.cluster.break_batch == "cut":
            body = body[: len(body) // 2]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body))
            self.close_connection = True
            return
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    def _refuse(
        self, status: int, code: str, said: str, headers: dict[str, str] | None = None
    ) -> None:
        if self.is_s3 and status != 400:
            body = (
                f"{_XML}<Error><Code>{code}</Code><Message>{said}</Message>"
                "<Resource></Resource><RequestId></RequestId></Error>"
            )
            return self._reply(
                status, body.encode(), {"Content-Type": "application/xml", **(headers or {})}
            )
        found = {
            "tcode": code, "message": said, "method": self.command,
            "url_path": urlsplit(self.path).path, "remote_addr": "127.0.0.1:1", "caller": "",
            "node": "t[target]" if self.node.number else "p[gateway]", "status": status,
        }  # fmt: skip
        text = json.dumps(found).encode()
        given = {"Content-Type": "application/json", **(headers or {})}
        if self.command == "HEAD":
            return self._reply(status, b"", {**given, "Hdr-Error": text.decode()})
        return self._reply(status, text + b"\n", given)

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Hdr-Error" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
