"""Settings of a store that no HTTP request can carry, refused by name before the first request.

A token that was read from a file may end in a line break: obstore panics over it, or fails without
naming the setting. Values are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwise.base.errors import StorageError

# Documents of several lines.
_TEXTS = ("certificate", "service_account", "private_key")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ENDPOINT = re.compile(r"https?://[^/\s]+[^\s]*", re.IGNORECASE)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that can't be part of a request.

    Raises:
        StorageError: one can't; the message names it.
    """
    for name, value in settings.items():
        if not isinstance(name, str):
            raise StorageError(f"storage= has a setting named by a {type(name).__name__}, not str")
        lower = name.lower()
        if lower in ("headers", "default_headers"):
            _check_headers(name, value)
        elif isinstance(value, str):
            fault = fault_of(lower, value)
            if not fault and lower.endswith(("endpoint", "endpoint_url", "proxy_url")):
                fault = "" if _ENDPOINT.fullmatch(value) else "is no http or https URL"
            if fault:
                raise StorageError(f"the setting {name!r} in storage= {fault}")


def fault_of(name: str, value: str) -> str:
    """Describe the fault of a setting's text; "" for a valid one."""
    if not any(text in name.lower() for text in _TEXTS):
        if value != value.strip():
            return "begins or ends with white space, such as the end of a line: strip it"
        if _CONTROL.search(value):
            return "holds a control character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds a character that no request can carry (a surrogate)"
    return ""


def _check_headers(name: str, headers: Any) -> None:
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise StorageError(
            f"the setting {name!r} in storage= is a {type(headers).__name__}: give a mapping of "
            "names to values"
        )
    for header, value in headers.items():
        if not isinstance(header, str) or not _HEADER_NAME.fullmatch(header):
            # Not its name: where name and value were mixed up, that would show the value.
            raise StorageError(f"{name!r} in storage= has a name that no header can have")
        if not isinstance(value, str):
            raise StorageError(
                f"the header {header!r} in storage= is a {type(value).__name__}, not str"
            )
        fault = fault_of(header, value)
        if fault:
            raise StorageError(f"the header {header!r} in storage= {fault}")
