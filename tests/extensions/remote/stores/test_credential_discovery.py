"""Credentials are found where their ecosystems keep them."""

from __future__ import annotations

import json
import sys

import pytest

from shardwise.base.errors import MissingExtraError, StorageError
from shardwise.extensions.remote.stores.credential_discovery import (
    ais_endpoint_and_token,
    aws_profile,
    aws_provider,
    hub_endpoint_and_token,
)
from shardwise.storage import StorageOptions, open_file

VARIABLES = [
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_REGION",
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT",
    "XDG_CACHE_HOME", "AIS_ENDPOINT", "AIS_AUTHN_TOKEN", "AIS_AUTHN_TOKEN_FILE",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def write(tmp_path, credentials="", config=""):
    (tmp_path / "credentials").write_text(credentials)
    (tmp_path / "config").write_text(config)


def test_a_profile_is_read_from_both_files(monkeypatch, tmp_path):
    write(
        tmp_path,
        "[default]\naws_access_key_id=D\n[train]\naws_access_key_id=A\n"
        "aws_secret_access_key=S%x\naws_session_token=T\n",
        "[profile train]\nregion=eu-1\nendpoint_url=http://h\n",
    )
    wanted = {
        "aws_access_key_id": "A",
        "aws_secret_access_key": "S%x",
        "aws_session_token": "T",
        "aws_region": "eu-1",
        "aws_endpoint": "http://h",
    }
    assert aws_profile("train") == wanted
    assert aws_profile() == {"aws_access_key_id": "D"}
    monkeypatch.setenv("AWS_PROFILE", "train")
    assert aws_profile() == wanted


def test_keys_in_the_environment_come_before_the_default_profile(monkeypatch, tmp_path):
    write(tmp_path, "[default]\naws_access_key_id=D\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "E")
    assert aws_profile() == {}


def test_without_files_there_is_nothing():
    assert aws_profile() == {}


def test_a_named_profile_that_does_not_exist_is_an_error():
    with pytest.raises(StorageError, match="no AWS profile 'none'"):
        aws_profile("none")


def test_a_profile_reads_with_the_keys_that_its_command_prints(tmp_path, s3):
    url = s3.put("c.tar", b"content")
    keys = {
        "Version": 1, "AccessKeyId": s3.access_key, "SecretAccessKey": s3.secret_key,
    }  # fmt: skip
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    source = f"credential_process = cat {tmp_path}/keys.json"
    place = f"region={s3.region}\nendpoint_url={s3.endpoint}\n"
    write(tmp_path, config=f"[profile me]\n{source}\n{place}")
    assert open_file(url, options=StorageOptions.of({"profile": "me"})).read(0, 7) == b"content"


def test_a_source_that_gives_no_keys_is_an_error_without_what_it_printed(tmp_path):
    (tmp_path / "keys.json").write_text('{"Version": 1, "SecretAccessKey": "S3CRET"}')
    write(tmp_path, config=f"[profile me]\ncredential_process = cat {tmp_path}/keys.json\n")
    with pytest.raises(StorageError, match="by credential_process, and that failed") as caught:
        aws_provider("me")
    assert "S3CRET" not in str(caught.value)


def test_without_boto3_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path, config="[profile sso]\nsso_session=x\n")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"shardwise\[aws\]"):
        aws_provider("sso")


def test_a_malformed_file_is_named_and_not_quoted(tmp_path):
    write(tmp_path, "aws_secret_access_key=S3CRET\n")
    with pytest.raises(StorageError, match="malformed") as caught:
        aws_profile()
    assert "S3CRET" not in str(caught.value)


def test_a_profile_reads_from_a_real_server(monkeypatch, tmp_path, s3):
    url = s3.put("p.tar", b"content")
    write(
        tmp_path,
        f"[me]\naws_access_key_id={s3.access_key}\naws_secret_access_key={s3.secret_key}\n",
        f"[profile me]\nregion={s3.region}\nendpoint_url={s3.endpoint}\n",
    )
    assert open_file(url, options=StorageOptions.of({"profile": "me"})).read(0, 7) == b"content"


def test_the_hub_is_found_in_the_environment_and_in_its_token_file(monkeypatch, tmp_path):
    assert hub_endpoint_and_token() == ("https://huggingface.co", "")
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("t1\n")
    assert hub_endpoint_and_token()[1] == "t1"
    (tmp_path / "other").write_text("t2")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "other"))
    assert hub_endpoint_and_token()[1] == "t2"
    monkeypatch.delenv("HF_TOKEN_PATH")
    (tmp_path / "token").write_text("t4\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert hub_endpoint_and_token()[1] == "t4"
    monkeypatch.setenv("HF_TOKEN", "t3")
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror/")
    assert hub_endpoint_and_token() == ("http://mirror", "t3")


def test_aistore_is_found_in_the_environment(monkeypatch, tmp_path):
    assert ais_endpoint_and_token() == ("", "")
    monkeypatch.setenv("AIS_ENDPOINT", "http://gateway:51080/")
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "t")
    assert ais_endpoint_and_token() == ("http://gateway:51080", "t")
