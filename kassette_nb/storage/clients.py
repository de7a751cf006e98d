"""The client of an object store: made from a URL and the environment, and what its errors mean.

A client's own messages carry request headers' fragments, signed URLs and the server's answer, which
names the access key. So none of them leaves this module: what is told is the kind of refusal, the
server's error code and what to check.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..errors import StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az")
#: Seconds to reach the server, for one read from the socket, and for one whole request.
CONNECT, READ, REQUEST = "3s", "10s", "120s"

#: What went wrong, as far as it decides what happens next.
Kind = Literal["missing", "unchanged", "changed", "refused", "weather"]

_CODE = re.compile(r"<Code>\s*([A-Za-z0-9._-]{1,80})\s*</Code>|\"(?:error|code)\":\s*\"([A-Za-z]+)")
_STATUS = re.compile(r"status code: (\d{3})")
_ELSEWHERE = "Received redirect without LOCATION"
_CHECKS = {
    "NoSuchBucket": "there is no such bucket: check its name, the region and the endpoint",
    "ContainerNotFound": "there is no such container: check its name and the account",
    "InvalidAccessKeyId": "the access key is not known there: check the credentials and the "
    "endpoint",
    "SignatureDoesNotMatch": "the secret key is wrong: check the credentials and the region",
    "ExpiredToken": "the credentials have expired: renew them",
    "InvalidToken": "the session token is not valid: renew the credentials",
    "RequestTimeTooSkewed": "this machine's clock is wrong by more than the server accepts: set it",
    "AccessDenied": "access is denied: the credentials need GetObject, PutObject and ListBucket "
    "on it (without ListBucket a missing object looks like a forbidden one)",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_REGION",
    "NotImplemented": "the server knows no conditional writes (If-Match), without which two "
    "sessions could overwrite each other: use one that does",
}


def connect(url: str, config: Mapping[str, str]) -> ObjectStore:
    """Return a client for ``s3://bucket``, ``gs://bucket`` or ``az://container``.

    Endpoint, region and credentials come from the environment (``AWS_*``, ``GOOGLE_*``,
    ``AZURE_*``), for S3 also from the shared files of the AWS tools; ``config`` wins over both.

    Raises:
        StorageError: It cannot be made; says what is missing, never a secret.
    """
    try:
        from obstore.store import from_url
    except ImportError:
        raise StorageError(
            f"{url} needs the package obstore: pip install 'kassette-nb[s3]'",
            place=url,
            reason="obstore is not installed",
        ) from None
    global _used
    _used = True
    given: dict[str, Any] = {**(_shared(url) if url.startswith("s3:") else {}), **config}
    endpoint = given.get("endpoint") or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    try:
        # Its own retries are switched off: repeated inside, an applied write comes back as a
        # conflict, and whose conflict it was could not be told any more.
        options: Any = {
            "config": given or None,
            "client_options": {
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": CONNECT,
                "read_timeout": READ,
                "timeout": REQUEST,
            },
            "retry_config": {"max_retries": 0},
        }
        client: ObjectStore = from_url(url, **options)
        return client
    except Exception as problem:
        first = str(problem).partition("\n")[0]
        reason = (
            "its account is not named" if "Account must be" in first else type(problem).__name__
        )
    raise StorageError(
        f"{url} cannot be opened: {reason}. Check the URL and the variables that configure it "
        "(AWS_…, GOOGLE_…, AZURE_STORAGE_ACCOUNT_NAME …).",
        place=url,
        reason=reason,
    )


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def kind_of(problem: Exception) -> Kind:
    """Tell a missing object, an unmet condition and a refusal from what may pass by itself."""
    from obstore import exceptions as known

    text = str(problem)
    if isinstance(problem, known.NotModifiedError):
        return "unchanged"
    if isinstance(problem, known.PreconditionError | known.AlreadyExistsError):
        return "changed"
    if isinstance(problem, known.PermissionDeniedError | known.UnauthenticatedError):
        return "refused"
    code = _code(text)
    if code in _CHECKS or _ELSEWHERE in text or "169.254.169.254" in text:
        return "refused"
    if isinstance(problem, FileNotFoundError):
        return "missing"
    if isinstance(problem, known.NotSupportedError | known.UnknownConfigurationKeyError):
        return "refused"
    status = _STATUS.search(text)
    # 4xx is our fault and comes back the same; 408, 409, 412, 425 and 429 are the server's moods.
    final = status is not None and status[1][0] == "4" and status[1] not in _MOODS
    return "refused" if final else "weather"


_MOODS = ("408", "409", "412", "425", "429")


def explain(problem: Exception) -> str:
    """Return what happened and what to check, in words that carry nothing secret."""
    text = str(problem)
    code, status = _code(text), _STATUS.search(text)
    if "169.254.169.254" in text:
        return (
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE for a profile of ~/.aws"
        )
    if code in _CHECKS or _ELSEWHERE in text:
        return _CHECKS.get(code) or _CHECKS["PermanentRedirect"]
    if kind_of(problem) == "refused":
        told = " ".join(filter(None, (status[1] if status else "", code)))
        return f"the server refuses ({told or type(problem).__name__}): check the credentials"
    if status is not None:
        return f"the server answers {' '.join(filter(None, (status[1], code)))}"
    if "timed out" in text or "TimedOut" in text:
        return "the server does not answer in time: check the network and the endpoint"
    if "kind: Connect" in text:
        return "the server cannot be reached: check the network and the endpoint"
    return "the connection broke"


def _code(text: str) -> str:
    found = _CODE.search(text)
    return (found[1] or found[2]) if found else ""


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
    if not any(environ.get(name) for name in _ENDPOINTS):
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


# A client's threads do not live on in a forked child, and every call there would wait for them for
# ever: refused by name instead.
_used = False
_forked = False


def _in_child() -> None:
    global _forked
    _forked = _used


def refuse_forked(url: str) -> None:
    """Raise in a process forked from one that has used an object store already."""
    if _forked:
        raise StorageError(
            f"{url} cannot be used in process {os.getpid()}: it was forked from one that has used "
            "an object store, and the client's threads did not come along. Start workers with "
            "multiprocessing's 'spawn' or 'forkserver', or open the storage after the fork only.",
            place=url,
            reason="a forked process",
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
