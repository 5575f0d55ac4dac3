"""Servers whose certificate is signed by an authority of one's own."""

from __future__ import annotations

import ssl

import pytest

from shardwise.base.errors import MissingShardError, StorageError
from shardwise.storage import StorageOptions, expand, open_file
from shardwise.storage.write import upload
from tests.support.certificates import Authority
from tests.support.web import reply, send_range, serving

CONTENT = bytes(range(256))


def answer(handler):
    if handler.path == "/file.bin":
        send_range(handler, CONTENT)
    elif handler.path.startswith("/api/datasets/"):
        reply(handler, 200, b"[]")
    elif handler.path.startswith("/to/"):
        reply(handler, 302, Location=handler.path.removeprefix("/to/"))
    else:
        reply(handler, 404)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An HTTPS server on the loopback: its URL, and the path of its authority's certificate."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate("server"))
    with serving(answer, tls=context) as (url, _):
        yield url, authority.ca


@pytest.mark.parametrize("form", ["path", "text"])
def test_an_authority_is_given_by_a_path_or_by_its_text(server, form):
    url, certificate = server
    given = str(certificate) if form == "path" else certificate.read_text()
    options = StorageOptions.of({"root_certificate": given})
    assert open_file(f"{url}/file.bin", options=options).read(3, 5) == CONTENT[3:8]


def test_what_obstore_has_no_call_for_trusts_it_too(server):
    url, certificate = server
    options = StorageOptions.of({"endpoint": url, "root_certificate": str(certificate)})
    with pytest.raises(MissingShardError, match="it is empty"):
        expand("hf://datasets/org/name/", options=options)
    with pytest.raises(StorageError, match="can't write 'ais://bucket/x': HTTP 404"):
        upload("ais://bucket/x", b"x", options=options)


def test_without_it_the_cause_is_told_at_once(server):
    url, _ = server
    with pytest.raises(StorageError, match=r"certificate is not trusted.*root_certificate"):
        open_file(f"{url}/file.bin").read(3, 5)
    # Python's own client says why: 3.13 refuses certificates that 3.11 takes.
    options = StorageOptions.of({"redirects": "same-host"})
    with pytest.raises(StorageError, match=r"root_certificate.*unable to get local issuer"):
        open_file(f"{url}/file.bin", options=options).read(3, 5)
    with pytest.raises(StorageError, match="can't read the certificates in"):
        options = StorageOptions.of({"root_certificate": "/nowhere/ca.pem"})
        open_file(f"{url}/file.bin", options=options).read(3, 5)


@pytest.mark.parametrize("way", ["variable", "profile"])
def test_s3_takes_what_awss_tools_take(server, way, tmp_path, monkeypatch):
    url, certificate = server
    keys = {"aws_access_key_id": "AKID", "aws_secret_access_key": "SECRET"}
    config = {"aws_endpoint": url, "aws_region": "us-east-1"}
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    if way == "variable":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        config |= keys
    else:
        (tmp_path / ".aws").mkdir()
        lines = "".join(f"{name} = {value}\n" for name, value in keys.items())
        (tmp_path / ".aws/credentials").write_text(f"[mine]\n{lines}")
        (tmp_path / ".aws/config").write_text(f"[profile mine]\nca_bundle = {certificate}\n")
        config["profile"] = "mine"
    # It is asked, and says no: the certificate was taken.
    with pytest.raises(MissingShardError):
        open_file("s3://bucket/file.bin", options=StorageOptions(config=config)).read(3, 5)
