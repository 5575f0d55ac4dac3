"""Settings that no request can carry are refused by name, and their values are not shown."""

from __future__ import annotations

import pytest

from shardwise.base.errors import StorageError
from shardwise.storage import StorageOptions, open_file

NOBODY = "http://127.0.0.1:9"
S3 = {
    "aws_endpoint": NOBODY,
    "aws_access_key_id": "A",
    "aws_secret_access_key": "S",
    "aws_region": "r",
    "max_attempts": 1,
}
# A line break, a NUL, another control character, half a character, and what is no text.
BAD_TEXTS = ["CANARY\n", "CAN\0ARYCANARY", "CANARY\x7f", "CANARY\ud800", 5, None, b"CANARY"]


@pytest.mark.parametrize("value", BAD_TEXTS)
@pytest.mark.parametrize(
    ("url", "settings", "name"),
    [
        ("s3://b/k", S3, "aws_session_token"),
        ("s3://b/k", S3, "aws_access_key_id"),
        ("s3://b/k", S3, "aws_secret_access_key"),
        ("s3://b/k", S3, "aws_region"),
        ("s3://b/k", S3, "aws_endpoint"),
        (f"{NOBODY}/k", {}, "X-Header"),
        (f"{NOBODY}/k", {}, "user_agent"),
        (f"{NOBODY}/k", {}, "timeout"),
        (f"{NOBODY}/k", {}, "proxy_url"),
    ],
)
def test_a_setting_that_no_request_can_carry_is_named(url, settings, name, value, capfd):
    given = {"headers": {name: value}} if name == "X-Header" else {name: value}
    options = StorageOptions.of({"max_attempts": 1, **settings, **given})
    with pytest.raises(StorageError, match=name) as caught:
        open_file(url, options=options).stat()
    assert "CANARY" not in f"{caught.value!r}{''.join(capfd.readouterr())}"


@pytest.mark.parametrize(
    "headers", ["CANARY", ["CANARY"], 5, {"CANARY b": "v"}, {"": "v"}, {5: "v"}, {"é": "v"}]
)
def test_headers_that_are_none_are_refused(headers):
    options = StorageOptions.of({"headers": headers})
    with pytest.raises(StorageError, match="'headers' in storage=") as caught:
        open_file(f"{NOBODY}/k", options=options).stat()
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_SESSION_TOKEN", "AWS_REGION"])
def test_a_line_break_in_a_variable_of_the_environment_is_named(name, monkeypatch, capfd):
    monkeypatch.setenv(name, "CANARY\n")
    with pytest.raises(StorageError, match=f"the environment variable {name} begins or ends"):
        open_file("s3://b/k", options=StorageOptions.of({**S3, "max_requests": 7})).stat()
    assert "CANARY" not in "".join(capfd.readouterr())


def test_texts_of_several_lines_are_let_through():
    pem = "-----BEGIN CERTIFICATE-----\nCANARY\n-----END CERTIFICATE-----\n"
    for redirects in ("any", "none"):
        options = StorageOptions.of({"root_certificate": pem, "redirects": redirects})
        with pytest.raises(StorageError, match="root_certificate") as caught:
            open_file(f"{NOBODY}/k", options=options).stat()
        assert "CANARY" not in str(caught.value)


def test_a_text_in_place_of_settings_is_not_repeated():
    with pytest.raises(TypeError, match="storage= is a str: give") as caught:
        StorageOptions.of("CANARY")
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({}, "no account: set AZURE_STORAGE_ACCOUNT_NAME"),
        ({"azure_storage_account_name": "a", "azure_storage_account_key": "***"}, "no base64"),
    ],
)
def test_what_azures_settings_lack_is_named(config, cause, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageError, match=cause):
        open_file("az://container/a.tar", options=StorageOptions.of(config)).stat()
