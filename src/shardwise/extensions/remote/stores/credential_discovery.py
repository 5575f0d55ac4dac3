"""Discovery of credentials in the environment and in the files that it names.

obstore finds most by itself: variables of AWS, Azure and Google, web identities, instance metadata,
Google's default credentials. This module finds the rest: profiles of AWS, tokens of Hugging Face
and of AIStore. It alone reads the environment for stores.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from shardwise.base.errors import MissingExtraError, StorageError
from shardwise.extensions.remote.stores.setting_checks import fault_of

# If any of them is set, obstore finds the rest by itself.
_AWS_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_OF_STORES = re.compile(
    r"(AWS|AZURE|GOOGLE|GCS|HF|HUGGING_FACE|AIS|STORAGE_EMULATOR|SSL_CERT)_|.*_proxy$", re.I
)
_MORE_THAN_KEYS = re.compile(
    r"AWS_.*(SKIP_SIGNATURE|REQUEST_PAYER|EXPRESS|SSE|SERVER_SIDE|PROXY|TIMEOUT|HTTP1|HTTP2|HEADERS)"
    r"|(http|all)_proxy$",
    re.I,
)
_OF_PROFILE = {
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "region": "aws_region",
    "endpoint_url": "aws_endpoint",
    "ca_bundle": "aws_root_certificate",
}


def environment_digest() -> int:
    """A digest of the variables that matter to stores."""
    return hash(tuple(sorted(each for each in os.environ.items() if _OF_STORES.match(each[0]))))


def names_more_than_keys() -> bool:
    """Whether the environment changes requests to S3 by more than keys: a proxy, who pays."""
    return any(value and _MORE_THAN_KEYS.match(name) for name, value in os.environ.items())


def aws_profile(name: str | None = None) -> dict[str, str]:
    """The settings of an AWS profile, with obstore's names; None for AWS_PROFILE, else "default".

    Nothing if the environment has keys and no profile was named; StorageError for a profile that
    does not exist. Source: the AWS SDKs' shared `config` and `credentials` files.
    """
    settings = _profile_settings(name)
    return {ours: settings[theirs] for theirs, ours in _OF_PROFILE.items() if theirs in settings}


def aws_provider(name: str | None = None) -> Any:
    """Return what obstore asks for the keys of a profile that holds none; None where it has keys.

    botocore gets them: by single sign-on, by assuming a role, or by the profile's own command.

    Raises:
        StorageError: the profile's source gives no keys.
        MissingExtraError: boto3 is not installed.
    """
    settings = _profile_settings(name)
    sources = [each for each in settings if each in _SOURCES]
    if not sources or "aws_access_key_id" in settings:
        return None
    profile = name or os.environ.get("AWS_PROFILE") or "default"
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingExtraError(
            f"the AWS profile {profile!r} gets its keys by {', '.join(sources)}, which needs boto3",
            extra="aws",
        ) from error
    try:
        provider = Boto3CredentialProvider(boto3.Session(profile_name=profile), ttl=_KEYS_LAST)
        provider()
    except (BotoCoreError, ClientError, ValueError) as error:
        # Its text may hold what a command printed.
        raise StorageError(
            f"the AWS profile {profile!r} gets its keys by {', '.join(sources)}, and that failed "
            f"({type(error).__name__}): try `aws sts get-caller-identity --profile {profile}`"
        ) from None
    return provider


# Settings from which a profile without keys gets its keys.
_SOURCES = ("sso_session", "sso_start_url", "credential_process", "role_arn")
# botocore renews its keys 10 to 15 minutes before they end.
_KEYS_LAST = timedelta(minutes=5)


def _profile_settings(name: str | None) -> dict[str, str]:
    """The settings of a profile in the two files, by their names there."""
    named = name or os.environ.get("AWS_PROFILE")
    if not named and any(key in os.environ for key in _AWS_KEYS):
        return {}
    profile = named or "default"
    folder = Path.home() / ".aws"
    keys = _ini(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials")
    config = _ini(os.environ.get("AWS_CONFIG_FILE") or folder / "config")
    section = "default" if profile == "default" else f"profile {profile}"
    settings = {**config.get(section, {}), **keys.get(profile, {})}
    if named and not settings:
        raise StorageError(
            f"there is no AWS profile {profile!r} in the shared config and credentials files"
        )
    return settings


def named_endpoint(scheme: str) -> str:
    """The endpoint that the environment names for a family of stores ("s3", "az", "gs"), or ""."""
    names = {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "gs": ("STORAGE_EMULATOR_HOST",),
    }.get(scheme, ())
    endpoint = next((os.environ[name] for name in names if os.environ.get(name)), "")
    # Google's variable may have host and port only.
    return (
        f"http://{endpoint}" if scheme == "gs" and endpoint and "://" not in endpoint else endpoint
    )


def certificates(settings: Mapping[str, Any], family: str) -> str:
    """The PEM text of the trusted authorities, or "" for the system's own.

    It is the setting `root_certificate`, PEM text or a path, else for S3 the file that
    AWS_CA_BUNDLE names. SSL_CERT_FILE is honoured by the clients themselves.

    Raises:
        StorageError: the file can't be read.
    """
    text = settings.get("root_certificate") or ""
    if not text and family == "s3":
        text = os.environ.get("AWS_CA_BUNDLE", "")
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else os.fspath(text)
    if not text or "-----BEGIN" in text:
        return text
    try:
        return Path(text).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"can't read the certificates in {text!r}: {error}") from None


def check_environment(family: str) -> None:
    """Check that HTTP requests can carry the credentials in the environment.

    Raises:
        StorageError: they can't carry a variable, which the message names.
    """
    prefix = {"s3": "AWS_", "az": "AZURE_", "gs": "GOOGLE_"}.get(family)
    for name, value in os.environ.items() if prefix else ():
        fault = fault_of(name, value) if name.startswith(str(prefix)) else ""
        if fault:
            raise StorageError(f"the environment variable {name} {fault}")


def hub_endpoint_and_token() -> tuple[str, str]:
    """The Hugging Face hub's URL, and the user's token or "".

    Source: the environment variables of huggingface_hub: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH,
    HF_HOME, and the file that `hf auth login` writes.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not token:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        home = Path(os.environ.get("HF_HOME") or Path(cache) / "huggingface").expanduser()
        token = _text(os.environ.get("HF_TOKEN_PATH") or home / "token")
    return endpoint.rstrip("/"), token.strip()


def ais_endpoint_and_token() -> tuple[str, str]:
    """The URL of an AIStore gateway or "", and the user's token or "".

    Source: the environment variables of AIStore's clients, AIS_ENDPOINT, AIS_AUTHN_TOKEN and
    AIS_AUTHN_TOKEN_FILE, and the file that `ais auth login` writes.
    """
    token = os.environ.get("AIS_AUTHN_TOKEN", "").strip()
    if not token:
        default = Path.home() / ".config/ais/cli/auth.token"
        token = _text(os.environ.get("AIS_AUTHN_TOKEN_FILE") or default).strip()
        with contextlib.suppress(ValueError):
            document = json.loads(token)
            token = str(document.get("token", "")) if isinstance(document, dict) else token
    return os.environ.get("AIS_ENDPOINT", "").rstrip("/"), token


def _text(path: str | Path | None) -> str:
    if not path:
        return ""
    try:
        return Path(path).expanduser().read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"can't read the token file {os.fspath(path)!r}") from error


def _ini(path: str | Path) -> dict[str, dict[str, str]]:
    # No interpolation: keys may hold %.
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_text(path))
    except configparser.Error:
        # The parser's text may quote a line with a key.
        raise StorageError(f"the file {os.fspath(path)!r} is malformed") from None
    return {name: dict(parser[name]) for name in parser.sections()}
