"""Resolve a URL to its store: the client, the settings and the key."""

from __future__ import annotations

import importlib.util
import json
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from shardwise.base.errors import MissingExtraError, StorageError
from shardwise.base.shown import shown
from shardwise.extensions.remote.stores import credential_discovery
from shardwise.extensions.remote.stores.aistore import AisClient
from shardwise.extensions.remote.stores.fsspec_client import FsspecClient, require_scheme
from shardwise.extensions.remote.stores.hub import HubClient, HubWebClient, hub_key, hub_url
from shardwise.extensions.remote.stores.obstore_client import ObstoreClient, client_options
from shardwise.extensions.remote.stores.setting_checks import check_settings
from shardwise.extensions.remote.stores.web import Web, WebClient
from shardwise.storage.client import Client, registered
from shardwise.storage.options import StorageOptions
from shardwise.storage.urls import FAMILIES, scheme_of

_PREFIXES = ("aws_", "azure_", "google_", "gcs_")
# Settings of obstore's HTTP client.
_CLIENT_SETTINGS = frozenset(
    (
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
        "default_headers", "http1_only", "http2_only", "pool_idle_timeout",
        "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
        "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
    )
)  # fmt: skip
# With others a signed URL may not be enough for a GET: encryption keys, who pays, no signature.
_SIGNED_SETTINGS = frozenset(
    (
        "access_key_id", "default_region", "endpoint", "endpoint_url", "region",
        "secret_access_key", "session_token", "virtual_hosted_style_request",
    )
)  # fmt: skip
_NO_RETRIES = {"max_retries": 0}
# Headers that obstore sends to no other host, or that hold no secret.
_SAFE_HEADERS = frozenset(
    ("accept", "authorization", "cookie", "proxy-authorization", "user-agent")
)
_WEB_SETTINGS = frozenset(
    ("allow_http", "allow_invalid_certificates", "proxy_url", "root_certificate", "user_agent")
)


class StoreLocation(NamedTuple):
    """The store of a URL, and the key in it.

    Attributes:
        family: "s3", "gs", "az", "http", "hf", "ais", "" for fsspec, or a registered scheme.
        root: common to the files of one store; each root and options have a client.
        key: the file's name in the store.
        base: a URL of the store without the key.
    """

    family: str
    root: str
    key: str
    base: str


def location_of(url: str) -> StoreLocation:
    """The location of a URL.

    Raises:
        StorageError: the scheme is not supported, or the URL holds credentials.
        MissingExtraError: the package for it is not installed.
    """
    scheme = scheme_of(url)
    family = FAMILIES.get(scheme, "")
    if scheme in registered():
        root, _, key = url.partition("://")[2].partition("/")
        root = f"{scheme}://{root}"
        return StoreLocation(scheme, root, key, f"{root}/")
    if not family:
        require_scheme(scheme, url)
        netloc = url.partition("://")[2].partition("/")[0]
        if ":" in netloc.rpartition("@")[0]:
            raise StorageError(
                f"{scheme}://...@{netloc.rpartition('@')[2]}/... holds a password, which would be "
                "written into states and messages: give it as storage={'password': ...}"
            )
        return StoreLocation("", f"{scheme}://{netloc}", url, "")
    if importlib.util.find_spec("obstore") is None:
        raise MissingExtraError(f"{scheme}:// URLs need obstore", extra="remote")
    rest = url.partition("://")[2]
    if family == "hf":
        return StoreLocation(family, "hf://", hub_key(url), "hf://")
    host, _, key = rest.partition("/")
    if not host:
        raise StorageError(f"{url!r} names no host or bucket")
    root = f"{scheme}://{host}"
    if shown(root).startswith(f"{scheme}://...@"):
        raise StorageError(
            f"{shown(root)}/... holds credentials, which would be written into states and "
            "messages: give them as storage={'headers': {'Authorization': ...}}, or as the "
            "store's own settings"
        )
    if family != "http":
        return StoreLocation(family, f"gs://{host}" if family == "gs" else root, key, f"{root}/")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StorageError(f"{shown(url)!r} is no URL: {error}") from None
    if parts.query:
        # obstore's keys are paths: the whole URL is a store of one file.
        return StoreLocation(family, url.partition("#")[0], "", url)
    return StoreLocation(family, root, unquote(parts.path.lstrip("/")), f"{root}/")


def url_of(location: StoreLocation, key: str) -> str:
    """The URL of another key of the same store."""
    if location.family == "hf":
        return hub_url(key)
    return location.base + key


def open_client(location: StoreLocation, options: StorageOptions) -> Client:
    """A client of the store; sends no request yet.

    Raises:
        StorageError: a setting is not known or missing.
    """
    if options.redirects != "any" and location.family not in ("http", "hf", "ais"):
        raise StorageError(
            f"redirects={options.redirects!r} can't be kept for {location.root!r}: it is for "
            "http(s), hf and ais URLs"
        )
    if not location.family:
        return FsspecClient(location.root, options)
    if location.family in registered():
        own = registered()[location.family](location.root, options)
        if not isinstance(own, Client):
            raise TypeError(
                f"the store of {location.root!r} is a {type(own).__name__}: the factory must "
                "return a shardwise.stores.Client"
            )
        return own
    settings = options.settings()
    check_settings(settings)
    credential_discovery.check_environment(location.family)
    if location.family in ("http", "hf", "ais"):
        return _open_web(location, options, settings)
    provider = None
    if location.family == "s3" and not any("access_key_id" in name for name in settings):
        profile = settings.pop("aws_profile", settings.pop("profile", None))
        if not _is_true(settings.get("aws_skip_signature", settings.get("skip_signature"))):
            known = {name.removeprefix("aws_") for name in settings}
            profile_settings = credential_discovery.aws_profile(profile)
            provider = credential_discovery.aws_provider(profile)
            settings |= {
                name: value
                for name, value in profile_settings.items()
                if name.removeprefix("aws_") not in known
            }
    client, config = _split(settings, location.family)
    names = ("endpoint", "endpoint_url", "base_url")
    endpoint = next((str(v) for k, v in config.items() if k.endswith(names)), "")
    if not endpoint:
        endpoint = credential_discovery.named_endpoint(location.family)
        if endpoint and location.family == "gs":
            # obstore does not read the variable; an emulator accepts any request.
            emulator = {"gcs_base_url": endpoint, "disable_oauth": True}
            account = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            config["google_service_account_key"] = json.dumps({**emulator, **account})
    # An http endpoint that the user names is meant.
    allowed = {"allow_http": True} if endpoint.startswith("http://") else {}
    import obstore.store

    try:
        store: Any = obstore.store.from_url(
            location.root,
            config=config,  # type: ignore[call-overload]
            client_options=client_options(options, allowed | client),
            retry_config=_NO_RETRIES,
            **({} if provider is None else {"credential_provider": provider}),
        )
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        raise StorageError(_setting_error(location.root, config | client, error)) from None
    can_sign = (
        location.family == "s3"
        and sys.platform == "linux"
        and endpoint.startswith("http://")
        and client.keys() <= {"allow_http", "root_certificate"}
        and {name.removeprefix("aws_") for name in config} <= _SIGNED_SETTINGS
        and not credential_discovery.names_more_than_keys()
    )
    return ObstoreClient(store, options, signed_at=shown(endpoint) if can_sign else "")


def _open_web(location: StoreLocation, options: StorageOptions, settings: dict[str, Any]) -> Client:
    """A web server, or what is reached like one."""
    endpoint, find_token = _server(location, settings)
    headers = dict(settings.pop("headers", None) or {})
    client, rest = _split(settings, location.family)
    if rest:
        raise StorageError(
            f"{', '.join(rest)} are no settings of {location.family} URLs: there are headers, "
            f"token, {'' if location.family == 'http' else 'endpoint, '}"
            f"{', '.join(sorted(_CLIENT_SETTINGS))}"
        )
    headers = {**(client.pop("default_headers", None) or {}), **headers}
    by_hand = options.redirects != "any" or not _SAFE_HEADERS.issuperset(map(str.lower, headers))
    unknown = sorted(set(client) - _WEB_SETTINGS)
    if by_hand and unknown:
        raise StorageError(
            f"{', '.join(unknown)}: not available where redirects= is set or headers other than "
            f"Authorization and Cookie are given; there are {', '.join(sorted(_WEB_SETTINGS))}"
        )
    allowed = {"allow_http": True} if endpoint.startswith("http://") else {}
    if location.family == "ais":
        return AisClient(
            location.root.removeprefix("ais://"),
            options,
            endpoint=endpoint,
            client=allowed | client,
            web=_web(options, headers, client),
            find_token=find_token,
            by_hand=by_hand,
        )
    if token := find_token():
        headers["Authorization"] = f"Bearer {token}"
    if by_hand:
        web = _web(options, headers, client)
        return HubWebClient(endpoint, web) if location.family == "hf" else WebClient(endpoint, web)
    import obstore.store

    http_settings = allowed | client | ({"default_headers": headers} if headers else {})
    try:
        store = obstore.store.HTTPStore(
            endpoint,
            client_options=client_options(options, http_settings),  # type: ignore[arg-type]
            retry_config=_NO_RETRIES,  # type: ignore[arg-type]
        )
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        raise StorageError(_setting_error(endpoint, client, error)) from None
    if location.family == "hf":
        return HubClient(store, options, HubWebClient(endpoint, _web(options, headers, client)))
    return ObstoreClient(store, options, head_by_get=True)


def _server(location: StoreLocation, settings: dict[str, Any]) -> tuple[str, Callable[[], str]]:
    """The URL of the server, and a function that gives its token; removes both settings."""
    token = settings.pop("token", None)
    if location.family == "http":
        return location.root, lambda: token or ""
    is_hub = location.family == "hf"
    discover = (
        credential_discovery.hub_endpoint_and_token
        if is_hub
        else credential_discovery.ais_endpoint_and_token
    )
    default = discover()[0]
    endpoint = str(settings.pop("endpoint", None) or default).rstrip("/")
    if not endpoint:
        raise StorageError(
            "ais:// URLs need the gateway's URL: set AIS_ENDPOINT, or give "
            "storage={'endpoint': 'http://HOST:PORT'}"
        )
    if not urlsplit(endpoint).hostname:
        raise StorageError(f"the endpoint {endpoint!r} names no host: give http://HOST:PORT")
    # The environment's token is for the environment's server only.
    is_default = endpoint == default or not default
    return endpoint, lambda: token or (discover()[1] if is_default else "")


def _web(options: StorageOptions, headers: dict[str, str], client: dict[str, Any]) -> Web:
    """The settings of obstore's client that `WebClient` supports."""
    context = ssl.create_default_context()
    if _is_true(client.get("allow_invalid_certificates")):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        if client.get("root_certificate"):
            context.load_verify_locations(cadata=client["root_certificate"])
    except (ssl.SSLError, ValueError, TypeError):
        raise StorageError("the setting 'root_certificate' in storage= is no certificate") from None
    headers = {"User-Agent": str(client.get("user_agent") or "shardwise"), **headers}
    return Web(
        headers, options.attempt_timeout_s, options.redirects, context, client.get("proxy_url")
    )


def _split(settings: Mapping[str, Any], family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the HTTP client, and those of the store."""
    client: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for name, value in settings.items():
        lower = name.lower()
        bare = next((lower.removeprefix(p) for p in _PREFIXES if lower.startswith(p)), lower)
        if bare in _CLIENT_SETTINGS:
            client[bare] = value
        else:
            config[lower] = value
    if trusted := credential_discovery.certificates(client, family):
        client["root_certificate"] = trusted
    return client, config


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on")


# Keys are parts of obstore's text, which may repeat values and is not shown.
_SETTING_SIGNS = {
    "Account must be specified": "no account: set AZURE_STORAGE_ACCOUNT_NAME, or "
    "azure_storage_account_name in storage=",
    "Invalid Access Key": "the key is no base64",
    "Unable to open service account file": "the file of the service account can't be opened",
}


def _setting_error(root: str, config: dict[str, Any], error: Exception) -> str:
    """The error for wrong settings, by their names only."""
    names = ", ".join(config) or "none"
    wrong = next((name for name in config if f"'{name}'" in str(error)), None)
    known = (cause for sign, cause in _SETTING_SIGNS.items() if sign in str(error))
    reason = f"{wrong!r} is no setting that it knows" if wrong else type(error).__name__
    reason = next(known, reason)
    return f"can't reach {root!r}: {reason} (settings given: {names})"
