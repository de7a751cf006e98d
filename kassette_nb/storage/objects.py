"""Journals in an object store: one object a run, appended to by compare-and-set.

    {prefix}/{run_id}/journal.jsonl     the journal
    {prefix}/{run_id}/lease.json        who may write it, as far as that is known

An object cannot grow: an append uploads the journal anew, on the condition that it still is the one
that was read (its ETag). That condition alone keeps journals whole. The lease only says whether
somebody is alive, so that nobody begins in vain; see `kassette_nb.storage.leases`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import StorageError
from ..told import tell
from .base import Busy, Conflict, Token, check_run_id
from .clients import SCHEMES, connect, refuse_forked, require
from .leases import LEASE, Lease, ObjectHold, ServerTime
from .objectio import Object, Objects, Version

if TYPE_CHECKING:
    from obstore.store import ObjectStore

JOURNAL = "journal.jsonl"
#: Bytes above which a journal's owner is told what appending to it costs.
LARGE = 1024 * 1024
#: Bytes of journals that are remembered between reading them and appending to them.
REMEMBERED = 64 * 1024 * 1024
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class ObjectStorage:
    """One object a run, ``{url}/{run_id}/journal.jsonl``, in S3 and its like, GCS or Azure.

    Endpoint, region and credentials come from the environment or the AWS tools' shared files. The
    server must know conditional writes (``If-Match``): S3, R2, MinIO, GCS and Azure do.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
        lease: Seconds, at least 4, after which a run is free again whose holder was killed. Its
            holder renews the lease every quarter of it.
        config: Settings of the client by obstore's names, over those of the environment: two
            endpoints in one process, say.
    """

    blocking = True

    def __init__(
        self, url: str, *, lease: float = LEASE, config: Mapping[str, str] | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise StorageError(
                "an object store is opened by s3://bucket/prefix, gs://bucket/prefix or "
                "az://container/prefix",
                place=parts.scheme,
                reason="not such a URL",
            )
        if "@" in parts.netloc or parts.query or parts.fragment or ":" in parts.netloc:
            # Not repeated in the message: what stands before an @ is a password as a rule.
            raise StorageError(
                f"the URL of an object store is {parts.scheme}://bucket/prefix and nothing else: "
                "endpoint and credentials belong into the environment (AWS_ENDPOINT_URL, "
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY …)",
                place=parts.scheme,
                reason="more than a bucket and a prefix in the URL",
            )
        bucket, names = parts.netloc, [name for name in parts.path.split("/") if name]
        _check_names(f"{parts.scheme}://", bucket, names)
        _check_lease(url, lease)
        require(f"{parts.scheme}://{bucket}")
        prefix = "/".join(names)
        self._bucket = f"{parts.scheme}://{parts.netloc}"
        self._url = f"{self._bucket}/{prefix}" if prefix else self._bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._lease = float(lease)
        self._config = dict(config or {})
        self._client: ObjectStore | None = None
        self._guard = threading.Lock()
        self._objects = Objects(self._connect, self._bucket)
        self._time = ServerTime(self._objects, f"{self._prefix}.clock")
        self._holds: dict[str, ObjectHold] = {}
        self._known: dict[str, tuple[Version, bytes]] = {}
        self._size = 0
        self._warned: set[str] = set()
        self._checked = False

    def __repr__(self) -> str:
        return f"ObjectStorage({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._config:
            raise TypeError(
                "an ObjectStorage with config= does not pickle: its settings may be secrets. Put "
                "them into the environment of both processes, or make it anew in the other one."
            )
        return _opened, (self._url, self._lease)

    @property
    def url(self) -> str:
        """The URL, without credentials: it never had any."""
        return self._url

    @property
    def place(self) -> str:
        """The same as `url`."""
        return self._url

    def locate(self, run_id: str) -> str:
        """Return the URL of the run's journal."""
        return f"{self._url}/{check_run_id(run_id)}/{JOURNAL}"

    def read(self, run_id: str, since: Token | None = None) -> tuple[bytes, Token] | None:
        """See `Storage.read`. One GET; with ``since`` a conditional one."""
        found = self._objects.get(self._key(run_id), since if type(since) is Version else None)
        if found is None:
            raise KeyError(run_id)
        if found.data is None:
            return None
        self._remember(run_id, found.version, found.data)
        return found.data, found.version

    def create(self, run_id: str, data: bytes) -> Token:
        """See `Storage.create`. One PUT on the condition that there is no such object."""
        key = self._key(run_id)
        self._check_hold(run_id)
        version, there = self._objects.swap(key, None, data)
        if there is not None and there.data is not None and b"\n" not in there.data:
            # No whole line: a run that never began, written by something else than this library.
            version, there = self._objects.swap(key, there.version, data)
        if version is None:
            raise Conflict(f"run {run_id!r} exists already", run_id=run_id)
        self._remember(run_id, version, data)
        return version

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        """See `Storage.append`. One PUT of the whole journal, if it still is the expected one.

        Every line must be unlike any other (a write id does it): where a reply is lost, the
        object is read back, and found to end with these bytes it was written.
        """
        self._check_hold(run_id)
        before = self._content(run_id, expected)
        after = b"".join([before if keep is None else before[:keep], data])
        assert isinstance(expected, Version)
        if len(after) > LARGE:
            self._warn(run_id, len(after))
        version, _ = self._objects.swap(self._key(run_id), expected, after)
        if version is None:
            raise Conflict(f"the journal {self.locate(run_id)} has changed", run_id=run_id)
        self._remember(run_id, version, after)
        return version

    def hold(self, run_id: str, who: str) -> ObjectHold:
        """See `Storage.hold`. A lease that its holder has not renewed in time is taken over."""
        key = f"{self._prefix}{check_run_id(run_id)}/lease.json"
        with self._guard:
            own = self._holds.get(run_id)
        if own is not None and own.held:
            # Whatever the server says of its lease: whoever holds it lives, here.
            raise Busy(f"{own.owner} holds run {run_id!r}", run_id=run_id, holder=own.owner)
        if own is not None:
            own.wait_released()
        if not self._checked:  # only what was seen once need not be looked at again
            self._checked = self._objects.refuse_unconditional(f"{self._prefix}.clock")
        hold = ObjectHold(
            self._objects, self._time, key, run_id, Lease(owner=who, seconds=self._lease)
        )
        hold.take(self._forget)
        with self._guard:
            self._holds[run_id] = hold
        return hold

    def holder(self, run_id: str) -> str | None:
        """See `Storage.holder`. Reads the lease; never writes."""
        with self._guard:
            own = self._holds.get(run_id)
        if own is not None and own.held:
            return own.owner
        if own is not None and own.freed:
            return None  # the store is about to hear of it
        key = f"{self._prefix}{check_run_id(run_id)}/lease.json"
        return self._time.living(key, self._objects.get(key))

    def list(self, after: str = "", limit: int | None = None) -> Iterator[str]:
        """See `Storage.list`. One request a thousand objects, as far as they are asked for."""
        for number, (run_id, _) in enumerate(self.tokens(after)):
            if limit is not None and number >= limit:
                return
            yield run_id

    def tokens(self, after: str = "") -> Iterator[tuple[str, Token]]:
        """See `Storage.tokens`. Costs what listing costs."""
        # Keys come in the order of "id/", where "a.2/" stands before "a/"; so an id waits until
        # none that it begins with can come any more.
        waiting: list[tuple[str, Version]] = []
        ended = f"/{JOURNAL}"
        for found in self._objects.list(self._prefix, after):
            run_id = found.key[len(self._prefix) :].removesuffix(ended)
            if not found.key.endswith(ended) or not found.size or not _ID.match(run_id):
                continue
            while waiting and not _may_follow(waiting[0][0], run_id):
                yield heappop(waiting)
            if run_id > after:
                heappush(waiting, (run_id, found.version))
        while waiting:
            yield heappop(waiting)

    # ----------------------------------------------------------------------------- inside

    def _key(self, run_id: str) -> str:
        return f"{self._prefix}{check_run_id(run_id)}/{JOURNAL}"

    def _connect(self) -> ObjectStore:
        refuse_forked(self._url)
        with self._guard:
            if self._client is None:
                self._client = connect(self._bucket, self._config)
            return self._client

    def _check_hold(self, run_id: str) -> None:
        """Refuse to write for a holder whose lease somebody else has taken over."""
        hold = self._holds.get(run_id)
        if hold is not None:
            hold.check()

    def _content(self, run_id: str, expected: Token) -> bytes:
        """Return the journal as it was when its token was given."""
        with self._guard:
            known = self._known.get(run_id)
        if known is not None and known[0] == expected:
            return known[1]
        found: Object | None = self._objects.get(self._key(run_id))
        if found is None or found.data is None or found.version != expected:
            raise Conflict(f"the journal {self.locate(run_id)} has changed", run_id=run_id)
        return found.data

    def _remember(self, run_id: str, version: Version, data: bytes) -> None:
        """Keep what an append will need: the same bytes as the reader has, no copy."""
        with self._guard:
            self._drop(run_id)
            self._known[run_id] = version, data
            self._size += len(data)
            if self._size > REMEMBERED:
                for other in [*self._known][:-1]:
                    if self._size <= REMEMBERED:
                        break
                    if other not in self._holds:
                        self._drop(other)

    def _drop(self, run_id: str) -> None:
        known = self._known.pop(run_id, None)
        if known is not None:
            self._size -= len(known[1])

    def _forget(self, hold: ObjectHold) -> None:
        with self._guard:
            if self._holds.get(hold.run_id) is hold:
                del self._holds[hold.run_id]
                self._drop(hold.run_id)

    def _warn(self, run_id: str, size: int) -> None:
        if run_id in self._warned:
            return
        self._warned.add(run_id)
        tell(
            f"the journal of run {run_id!r} has {size / 1e6:.1f} MB, and every further entry "
            f"uploads all of it again to {self._url}. Return references to large results instead "
            "of the results (a path, an object's key), split the run, or keep it in a directory "
            "(storage='file:…').",
            self.locate(run_id),
        )


def _check_names(scheme: str, bucket: str, names: list[str]) -> None:
    if not _BUCKET.match(bucket):
        raise StorageError(
            f"{bucket!r} is not the name of a bucket: letters, digits, '.', '_' and '-' are, as in "
            f"{scheme}my-bucket/runs",
            place=f"{scheme}{bucket}",
            reason="not a bucket's name",
        )
    odd = next((name for name in names if name in (".", "..") or not name.isprintable()), None)
    if odd is not None:
        raise StorageError(
            f"{odd!r} cannot be part of a prefix: an object store has no directories to go up in. "
            f"Write it out, as in {scheme}{bucket}/runs",
            place=f"{scheme}{bucket}",
            reason="not a prefix",
        )


def _check_lease(url: str, lease: object) -> None:
    number = isinstance(lease, int | float) and not isinstance(lease, bool)
    if not number or not 4 <= lease < float("inf"):  # type: ignore[operator]  # a number
        raise StorageError(
            f"lease={lease!r}: a number of seconds, at least 4, since servers tell the age of an "
            "object in seconds",
            place=url,
            reason="not a lease",
        )


def _may_follow(waiting: str, arrived: str) -> bool:
    """Tell whether an id that ``waiting`` begins with may still come behind ``arrived``."""
    return any(
        waiting[length] in "-." and f"{waiting[:length]}/" >= f"{arrived}/"
        for length in range(1, len(waiting))
    )


def _opened(url: str, lease: float) -> ObjectStorage:
    return ObjectStorage(url, lease=lease)
