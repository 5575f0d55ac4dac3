"""From a URL to the store that has it: which client, which settings, which key.

Imports this package; obstore when a store is opened.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from shardwise.errors import MissingExtraError, StorageError
from shardwise.shown import shown
from shardwise.storage import ambient
from shardwise.storage.aistore import AisClient
from shardwise.storage.attempts import Client
from shardwise.storage.foreign import FsspecClient, require_scheme
from shardwise.storage.hub import HubClient, hub_key
from shardwise.storage.objects import ObstoreClient, client_options
from shardwise.storage.options import StorageOptions
from shardwise.storage.urls import scheme_of

__all__ = ["Place", "open_client", "place_of"]

# What users write, to obstore's family.
_FAMILIES = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs",
    "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az",
    "http": "http", "https": "http", "hf": "hf", "ais": "ais",
}  # fmt: skip
_PREFIXES = ("aws_", "azure_", "google_", "gcs_")
# Settings of obstore that are its HTTP client's.
_CLIENT_SETTINGS = frozenset(
    (
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
        "default_headers", "http1_only", "http2_only", "pool_idle_timeout",
        "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
        "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
    )
)  # fmt: skip
_NO_RETRIES = {"max_retries": 0}


class Place(NamedTuple):
    """Where a URL leads.

    Attributes:
        family: "s3", "gs", "az", "http", "hf", "ais", or "" for fsspec.
        root: what files of one store have in common; with the options it tells one client.
        key: the file's name in there.
        base: what stands before a key in a URL.
    """

    family: str
    root: str
    key: str
    base: str


def place_of(url: str) -> Place:
    """Where a URL leads.

    Raises:
        StorageError: the scheme is not supported, or the URL holds credentials.
        MissingExtraError: the package for it is not installed.
    """
    scheme = scheme_of(url)
    family = _FAMILIES.get(scheme, "")
    if not family:
        require_scheme(scheme, url)
        netloc = url.partition("://")[2].partition("/")[0]
        if ":" in netloc.rpartition("@")[0]:
            raise StorageError(
                f"{scheme}://...@{netloc.rpartition('@')[2]}/... holds a password, which would be "
                "written into states and messages: give it as storage={'password': ...}"
            )
        return Place("", f"{scheme}://{netloc}", url, "")
    if importlib.util.find_spec("obstore") is None:
        raise MissingExtraError(f"{scheme}:// URLs need obstore", extra="remote")
    rest = url.partition("://")[2]
    if family == "hf":
        return Place(family, "hf://", hub_key(url), "hf://")
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
        return Place(family, f"gs://{host}" if family == "gs" else root, key, f"{root}/")
    parts = urlsplit(url)
    if parts.query:
        # obstore's keys are paths: the whole URL is a store of one file.
        return Place(family, url.partition("#")[0], "", url)
    return Place(family, root, unquote(parts.path.lstrip("/")), f"{root}/")


def url_of(place: Place, key: str) -> str:
    """The URL of another key of the same store."""
    if place.family == "hf":
        datasets, org, name, _, revision, path = key.split("/", 5)
        at = "" if revision == "main" else f"@{revision}"
        return f"hf://{datasets}/{org}/{name}{at}/{path}"
    return place.base + key


def open_client(place: Place, options: StorageOptions) -> Client:
    """A client of the store; nothing is asked of it yet.

    Raises:
        StorageError: a setting is not known or missing.
    """
    if not place.family:
        return FsspecClient(place.root, options)
    settings = options.settings()
    if place.family in ("http", "hf", "ais"):
        return _open_web(place, options, settings)
    import obstore.store

    if place.family == "s3" and not any("access_key_id" in name for name in settings):
        profile = settings.pop("aws_profile", settings.pop("profile", None))
        if not _is_true(settings.get("aws_skip_signature", settings.get("skip_signature"))):
            known = {name.removeprefix("aws_") for name in settings}
            found = ambient.aws_profile(profile)
            settings |= {k: v for k, v in found.items() if k.removeprefix("aws_") not in known}
    client, config = _split(settings)
    given = (str(v) for k, v in config.items() if k.endswith(("endpoint", "endpoint_url")))
    endpoint = next(given, "") or ambient.named_endpoint(place.family)
    if endpoint.startswith("http://"):
        # Who names such an endpoint wants it.
        client.setdefault("allow_http", True)
    try:
        store: Any = obstore.store.from_url(
            place.root,
            config=config,  # type: ignore[call-overload]
            client_options=client_options(options, client),
            retry_config=_NO_RETRIES,
        )
    except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
        raise StorageError(_setting_error(place, config, error)) from None
    return ObstoreClient(store, options)


def _open_web(place: Place, options: StorageOptions, settings: dict[str, Any]) -> Client:
    """A web server, or what is reached like one."""
    import obstore.store

    headers = dict(settings.pop("headers", None) or {})
    given_token = settings.pop("token", None)
    endpoint, token = place.root, ""
    if place.family == "hf":
        endpoint, token = ambient.hub_place()
    elif place.family == "ais":
        endpoint, token = ambient.ais_place()
    if place.family != "http":
        endpoint = str(settings.pop("endpoint", None) or endpoint).rstrip("/")
        if not endpoint:
            raise StorageError(
                "ais:// URLs need the gateway's URL: set AIS_ENDPOINT, or give "
                "storage={'endpoint': 'http://HOST:PORT'}"
            )
        if not urlsplit(endpoint).hostname:
            raise StorageError(f"the endpoint {endpoint!r} names no host: give http://HOST:PORT")
    token = given_token or token
    if token and place.family != "ais":
        headers["Authorization"] = f"Bearer {token}"
    client, rest = _split(settings)
    if rest:
        raise StorageError(
            f"{', '.join(rest)} are no settings of {place.family} URLs: there are headers, token, "
            f"{'' if place.family == 'http' else 'endpoint, '}{', '.join(sorted(_CLIENT_SETTINGS))}"
        )
    if endpoint.startswith("http://"):
        client.setdefault("allow_http", True)
    if headers:
        client["default_headers"] = {**client.get("default_headers", {}), **headers}
    if place.family == "ais":
        bucket = place.root.removeprefix("ais://")
        return AisClient(bucket, options, endpoint=endpoint, client=client, token=given_token)
    store = obstore.store.HTTPStore(
        endpoint,
        client_options=client_options(options, client),  # type: ignore[arg-type]
        retry_config=_NO_RETRIES,  # type: ignore[arg-type]
    )
    if place.family == "hf":
        return HubClient(store, options, endpoint=endpoint, headers=headers)
    return ObstoreClient(store, options, asks_by_get=True)


def _split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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
    return client, config


def _is_true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "on")


def _setting_error(place: Place, config: dict[str, Any], error: Exception) -> str:
    """What is wrong with the settings, by their names only."""
    names = ", ".join(config) or "none"
    wrong = next((name for name in config if f"'{name}'" in str(error)), None)
    reason = f"{wrong!r} is no setting that it knows" if wrong else type(error).__name__
    return f"can't reach {place.root!r}: {reason} (settings given: {names})"
