"""What the environment and the AWS tools' shared files say of an object store, checked by name.

The client takes what it is given, and breaks off where it cannot use it; so what a person may have
mistyped is looked at before.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import StorageError

#: Variables that name an endpoint, the first one set counts.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KEY, _SECRET = "access_key_id", "secret_access_key"
_REGION = re.compile(r"[A-Za-z0-9-]+\Z")
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|[0-9A-Fa-f:.]+\Z")


def settings(url: str, config: Mapping[str, str]) -> tuple[dict[str, Any], bool]:
    """Return the settings of a client beside those that it takes from the environment itself.

    Args:
        url: ``s3://bucket``, ``gs://bucket`` or ``az://container``.
        config: Settings that win over all others.

    Returns:
        The settings, and whether the server is spoken to without encryption.

    Raises:
        StorageError: One cannot be used; names it, and never a secret.
    """
    for name, value in config.items():
        if not isinstance(value, str | bool):
            raise _refused(url, f"config={{{name!r}: …}} is {type(value).__name__}, not a text")
    if not url.startswith("s3:"):
        insecure = any(
            "endpoint" in name.lower() and str(value).startswith("http:")
            for name, value in config.items()
        )
        return dict(config), insecure
    given = {**_shared(url), **config}
    endpoint = _check_endpoint(url, given)
    _check_region(url, given)
    _check_keys(url, given)
    return given, endpoint.startswith("http://")


def _given(given: Mapping[str, str], word: str, variables: tuple[str, ...]) -> tuple[str, str]:
    """Return where a setting comes from and what it is; both empty where it is not set."""
    for name, value in given.items():
        if name.lower().removeprefix("aws_").removesuffix("_url") == word:
            return f"config={{{name!r}: …}}", value
    for name in variables:
        value = os.environ.get(name) or ""
        if value:
            return name, value
    return "", ""


def _check_endpoint(url: str, given: Mapping[str, str]) -> str:
    source, endpoint = _given(given, "endpoint", ENDPOINTS)
    if not source:
        return ""
    try:
        parts = urlsplit(endpoint)
        known = parts.scheme in ("http", "https") and _HOST.match(parts.hostname or "")
        _ = parts.port  # raises where it is none
    except ValueError:
        known = None
    if known and "@" not in parts.netloc and not re.search(r"\s", endpoint):
        return endpoint
    shown = "" if "@" in endpoint else f" ({endpoint!r})"  # what stands before an @ is a secret
    raise _refused(
        url,
        f"the endpoint in {source}{shown} is not of the form http://host:port or https://host. "
        "Set it with its scheme, as in http://localhost:9000",
        "not an endpoint",
    )


def _check_region(url: str, given: Mapping[str, str]) -> None:
    source, region = _given(given, "region", _REGIONS)
    if source and not _REGION.match(region):
        raise _refused(
            url, f"the region in {source} ({region!r}) is none, such as us-east-1", "not a region"
        )


def _check_keys(url: str, given: Mapping[str, str]) -> None:
    key, _ = _given(given, _KEY, ("AWS_ACCESS_KEY_ID",))
    secret, _ = _given(given, _SECRET, ("AWS_SECRET_ACCESS_KEY",))
    if bool(key) == bool(secret):
        return
    missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
    where = "config=" if (key or secret).startswith("config=") else "the environment"
    raise _refused(
        url,
        f"{where} has one half of the credentials: {key or secret} is set, {missing} is not. Set "
        "both, or neither where a profile or the machine's role is to be used",
        f"{missing} is not set",
    )


def _refused(url: str, why: str, reason: str = "a setting that cannot be used") -> StorageError:
    return StorageError(f"{url} cannot be opened: {why}.", place=url, reason=reason)


def _shared(url: str) -> dict[str, Any]:
    """Return what the AWS tools' shared files say where the environment says nothing.

    Source: AWS SDKs and Tools Reference Guide, shared config and credentials files.
    """
    environ = os.environ
    profile = environ.get("AWS_PROFILE")
    fixed = any(
        environ.get(name)
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        )
    )
    home = os.path.expanduser("~/.aws")
    keys = _section(environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/credentials", profile)
    settings = _section(
        environ.get("AWS_CONFIG_FILE") or f"{home}/config",
        f"profile {profile}" if profile and profile != "default" else None,
    )
    both = {**settings, **keys}
    found: dict[str, Any] = {}
    if not any(environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
        found["region"] = both.get("region")
    if not any(environ.get(name) for name in ENDPOINTS):
        found["endpoint"] = both.get("endpoint_url")
    if not fixed and "aws_access_key_id" in both:
        found["access_key_id"] = both["aws_access_key_id"]
        found["secret_access_key"] = both.get("aws_secret_access_key")
        found["session_token"] = both.get("aws_session_token")
    elif not fixed and profile and not both:
        raise StorageError(
            f"{url} cannot be opened: AWS_PROFILE names {profile!r}, which is in neither "
            "~/.aws/credentials nor ~/.aws/config.",
            place=url,
            reason="unknown profile",
        )
    elif not fixed and any(key.startswith(("sso_", "role_", "credential_p")) for key in both):
        raise StorageError(
            f"{url} cannot be opened: the profile {profile or 'default'!r} signs in by SSO, a role "
            'or a program. Put its keys into the environment first: eval "$(aws configure '
            'export-credentials --format env)".',
            place=url,
            reason="a profile without keys",
        )
    return {key: value for key, value in found.items() if value}


def _section(path: str, name: str | None) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
        return dict(parser[name or "default"])
    except (configparser.Error, UnicodeError, KeyError, OSError):
        return {}
