"""A web server that sends no parts of files: the error says why, by either client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shardwise as sw
from shardwise.storage import StorageOptions, open_file
from tests.support.servers import HttpServer, nginx

_DIRECTIVES = """
    location = /whole.tar { max_ranges 0; }
    location = /packed.tar { gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any; }
    location = /login.tar { default_type text/html; return 200 "<html>log in</html>"; }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("web")
    for name in ("whole", "packed"):
        (folder / f"{name}.tar").write_bytes(b"x" * 5000)
    with nginx(folder, directives=f"root {folder};{_DIRECTIVES}") as running:
        yield running


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("whole.tar", "ignores the Range header"),
        ("login.tar", "an HTML page, such as a login or an error page"),
    ],
)
def test_a_whole_reply_in_place_of_a_part_says_why(server: HttpServer, path: str, why: str) -> None:
    options = StorageOptions(redirects="none")  # has the client that sees the headers
    with pytest.raises(sw.StorageError, match=why):
        open_file(f"{server.url}/{path}", options=options).read(10, 5)


def test_a_file_that_the_server_compresses_is_told_with_what_to_switch_off(
    server: HttpServer,
) -> None:
    options = StorageOptions(redirects="none", config={"headers": {"Accept-Encoding": "gzip"}})
    with pytest.raises(sw.StorageError, match=r"Content-Encoding: 'gzip'\): switch it off"):
        open_file(f"{server.url}/packed.tar", options=options).read(10, 5)


@pytest.mark.parametrize("path", ["whole.tar", "login.tar"])
def test_the_client_without_the_headers_names_all_causes(server: HttpServer, path: str) -> None:
    with pytest.raises(sw.StorageError, match=r"ignores the Range header.*such as a login page"):
        open_file(f"{server.url}/{path}").read(10, 5)
