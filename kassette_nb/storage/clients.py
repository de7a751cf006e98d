"""The client of an object store: made from a URL and the environment, and what its errors mean.

A client's own messages carry request headers' fragments, signed URLs and the server's answer, which
names the access key. So none of them leaves this module: what is told is the kind of refusal, the
server's error code and what to check.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..errors import StorageError
from .settings import settings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
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
    require(url)
    from obstore.store import from_url

    global _used
    _used = True
    given, insecure = settings(url, config)
    try:
        # Its own retries are switched off: repeated inside, an applied write comes back as a
        # conflict, and whose conflict it was could not be told any more.
        options: Any = {
            "config": given or None,
            "client_options": {
                "allow_http": insecure,
                "connect_timeout": CONNECT,
                "read_timeout": READ,
                "timeout": REQUEST,
            },
            "retry_config": {"max_retries": 0},
        }
        client: ObjectStore = asked(from_url, url, **options)
        return client
    except Exception as problem:
        reason = _unopened(str(problem), type(problem).__name__, config)
    variables = {
        "s3": "AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID …",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS …",
        "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY …",
    }[url.partition(":")[0]]
    raise StorageError(
        f"{url} cannot be opened: {reason}. Check the URL and what configures it ({variables}).",
        place=url,
        reason=reason,
    )


def require(url: str) -> None:
    """Refuse to open an object store without the package that speaks to it.

    Raises:
        StorageError: It is not installed; says how to.
    """
    try:
        found = find_spec("obstore.store")
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise StorageError(
            f"{url} needs the package obstore: pip install 'kassette-nb[s3]' (in a checkout of "
            "kassette_nb: pip install '.[s3]')",
            place=url,
            reason="obstore is not installed",
        )


def asked(call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call the client; what its native code breaks off with is an Exception like any other.

    A panic there is a BaseException, which nothing that goes on after an error would catch.

    Raises:
        Panicked: It broke off. The text is dropped: nobody knows what it holds.
    """
    try:
        return call(*args, **options)
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
    raise Panicked


class Panicked(Exception):
    """The client's native code broke off."""


def _unopened(text: str, name: str, config: Mapping[str, str]) -> str:
    first = text.partition("\n")[0]
    if "Account must be" in first:
        return "its account is not named"
    unknown = re.search(r"Configuration key: '(\w+)'", first)
    if unknown:
        key = next((key for key in config if key.lower().endswith(unknown[1])), unknown[1])
        near = difflib.get_close_matches(key, _KEYS, 1)
        return f"config= has the unknown key {key!r}" + (f" ({near[0]!r}?)" if near else "")
    return first if first.isascii() and re.fullmatch(_MISSING, first) else name


_MISSING = r"Generic \w+ error: Missing \w+"
#: The settings that are mistyped most, by obstore's names.
_KEYS = (
    "access_key_id",
    "secret_access_key",
    "session_token",
    "endpoint",
    "region",
    "virtual_hosted_style_request",
    "service_account",
    "application_credentials",
    "account_name",
    "account_key",
    "sas_token",
    "client_id",
    "client_secret",
    "tenant_id",
)


def kind_of(problem: Exception) -> Kind:
    """Tell a missing object, an unmet condition and a refusal from what may pass by itself."""
    from obstore import exceptions as known

    text = str(problem)
    if isinstance(problem, known.NotModifiedError):
        return "unchanged"
    if isinstance(problem, known.PreconditionError | known.AlreadyExistsError):
        return "changed"
    if isinstance(problem, known.PermissionDeniedError | known.UnauthenticatedError | Panicked):
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


def explain(problem: Exception, scheme: str = "s3") -> str:
    """Return what happened and what to check, in words that carry nothing secret."""
    text = str(problem)
    code, status = _code(text), _STATUS.search(text)
    if isinstance(problem, Panicked):
        return "the client broke off: check the URL, the endpoint and the region"
    if "169.254.169.254" in text:
        return _CREDENTIALS[scheme]
    if code in _CHECKS or _ELSEWHERE in text:
        return _CHECKS.get(code) or _CHECKS["PermanentRedirect"]
    if status is not None and status[1] in ("404", "405") and not code:
        return f"no {_SERVERS[scheme]} answers there ({status[1]}): check the endpoint and the name"
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


_CREDENTIALS = {
    "s3": "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_PROFILE for a profile of ~/.aws",
    "gs": "no credentials were found: set GOOGLE_APPLICATION_CREDENTIALS to the path of a key "
    "file, or run gcloud auth application-default login",
    "az": "no credentials were found: set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or "
    "AZURE_CLIENT_ID with its secret and tenant",
}
_SERVERS = {"s3": "S3 server", "gs": "Google Cloud Storage", "az": "Azure storage"}


def _code(text: str) -> str:
    found = _CODE.search(text)
    return (found[1] or found[2]) if found else ""


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
