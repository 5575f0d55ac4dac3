"""A stand-in for Google Cloud Storage's XML interface, on the loopback; no real one is packaged.

It answers what obstore's client asks of an emulator: objects, ranges, listings, single writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.ais_cluster import AisCluster, Node, StoreHandler


class _Handler(StoreHandler):
    is_s3 = True

    def _serve(self) -> None:
        path = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(path.query).items()}
        self.sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        bucket, _, key = path.path.lstrip("/").partition("/")
        self.bucket, self.key = unquote(bucket), unquote(key)
        self.cluster.asked.append((1, self.command, self.path, {}))
        if self.bucket not in self.cluster.objects:
            self._refuse(404, "NoSuchBucket", "The specified bucket does not exist.")
        elif self.key:
            self._object()
        else:
            self._list_xml()

    do_GET = do_HEAD = do_PUT = _serve


@contextmanager
def google_server() -> Iterator[tuple[str, AisCluster]]:
    """Run it with an empty bucket `bucket`; yields its URL and its state."""
    state = AisCluster()
    state.objects["bucket"] = {}
    node = Node(state, 1, _Handler)
    try:
        yield node.url, state
    finally:
        node.leave()
