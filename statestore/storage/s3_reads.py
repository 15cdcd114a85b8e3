"""Requests to a bucket through `object_store`, a library in Rust: they cost less CPU than botocore's.

Maintenance reads a small file for each store and batch, so the CPU of a request is most of its cost.

botocore remains the reference. It knows every kind of endpoint, credential and redirect. So what is sent here is only what
both do alike: a GET and a HEAD of an object, a listing of a folder, and a create-if-absent. An error that is not plainly
an answer of the store is asked again with botocore, and if only botocore succeeds `FAILURES_IN_A_ROW` times in a row, it
gets all requests for a while.

A request that may be hedged is a coroutine in the event loop of the client. Others are sent by the thread that needs the
answer, which saves half of their CPU.

A process that is forked after the first request here uses botocore: the threads of `object_store` are not copied.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import s3fs
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from statekeeper.statestore.storage.base import Entry

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta

FAILURES_IN_A_ROW = 3
OFF_SECONDS = 600.0
PAGE = 1000
"""The entries that one request lists."""

FAILURES: tuple[type[Exception], ...] = (BaseError, OSError, ValueError)
"""What a request here raises if the store did not plainly answer."""

_RENEWED_SECONDS = 300.0
_LISTING_SECONDS = 600.0
"""Of all pages."""
_REGIONS = {None: "us-east-1", "aws-global": "us-east-1"}
"""The regions of signatures for what botocore calls a region and is none."""
_PLAIN_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ANSWER = re.compile(r"status code: (?P<status>\d{3})[\s\S]*?<Code>(?P<code>\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_CONFLICT = "status code: 412"
_SAME_FOR_ALL_CLIENTS = frozenset({404, 416, 429, 500, 502, 503, 504})
"""Statuses that do not depend on how the request was signed or addressed."""

T = TypeVar("T")
U = TypeVar("U")
_LOG = logging.getLogger("statekeeper")


class NotPlain(ValueError):
    """A listing has keys that `object_store` may show in another form."""


@dataclass(frozen=True)
class _Opened:
    """`brief`: for requests without hedging, whose time includes the body."""

    store: S3Store
    brief: S3Store
    credentials: tuple[str, ...] | None
    renew_at: float


class QuickReads:
    """The reads of one bucket with the credentials of one client. Its coroutines run in the event loop of the client."""

    def __init__(
        self, bucket: str, connection: s3fs.S3FileSystem, *, connect_timeout_seconds: int, read_timeout_seconds: int
    ) -> None:
        self._bucket, self._connection = bucket, connection
        # The time limit of a request includes its body, whatever its size. So the time of each step is limited here.
        self._connect_timeout = f"{connect_timeout_seconds}s"
        self._read_timeout_seconds = read_timeout_seconds
        self._opened: _Opened | None = None
        self._failed, self._off_until = 0, 0.0
        self._has_answered = False

    async def first(
        self,
        client: Any,
        quick: Callable[[S3Store], Awaitable[T]],
        with_botocore: Callable[[], Awaitable[U]],
        *,
        again: Callable[[], None],
    ) -> T | U:
        """Send a read here, or with botocore. `client`: of botocore; `again` counts a second request."""
        store = await self._store(client)
        if store is None:
            return await with_botocore()
        try:
            answer = await quick(store)
        except FAILURES as error:
            again()
            found = await with_botocore()
            self._has_failed(error)
            return found
        except ClientError:
            self._has_succeeded()
            raise
        self._has_succeeded()
        return answer

    def opened(self) -> S3Store | None:
        """Return what to send a request with in the calling thread; None before the first request in the event loop, and
        while botocore has to send it."""
        opened, now = self._opened, self._connection.loop.time()
        if opened is None or now >= opened.renew_at or now < self._off_until or _first_user != os.getpid():
            return None
        return opened.brief

    def here(
        self, store: S3Store, send: Callable[[S3Store], T], with_botocore: Callable[[], T], *, again: Callable[[], None]
    ) -> T:
        """Send a request in the calling thread, or with botocore. `again` counts a second request."""
        try:
            answer = send(store)
        except FAILURES as error:
            again()
            found = with_botocore()
            self._has_failed(error)
            return found
        except ClientError:
            self._has_succeeded()
            raise
        self._has_succeeded()
        return answer

    async def _store(self, client: Any) -> S3Store | None:
        """Return what to read from; None if botocore has to read."""
        global _first_user
        if not _PLAIN_BUCKET.fullmatch(self._bucket) or _now() < self._off_until:
            return None
        if _first_user not in (None, os.getpid()):
            return None
        _first_user = os.getpid()
        opened = self._opened
        if opened is None or _now() >= opened.renew_at:
            # Credentials that expire are renewed by botocore, which is asked for them again and again.
            try:
                opened = self._opened = await self._renewed(client, opened)
            except FAILURES as error:
                self._turn_off(error)
                return None
        return None if opened is None else opened.store

    async def _renewed(self, client: Any, opened: _Opened | None) -> _Opened | None:
        credentials = await self._credentials()
        if credentials is None and not self._connection.anon:
            return None
        renew_at = _now() + _RENEWED_SECONDS
        if opened is not None and opened.credentials == credentials:
            return replace(opened, renew_at=renew_at)
        url = urlsplit(client.meta.endpoint_url)
        is_amazon = (url.hostname or "").endswith(".amazonaws.com") and "." not in self._bucket
        names = ("access_key_id", "secret_access_key", "session_token")
        config: dict[str, Any] = (
            dict(zip(names, credentials, strict=False)) if credentials else {"skip_signature": True}
        )

        def opened_for(timeout: str) -> S3Store:
            client_options: Any = {"connect_timeout": self._connect_timeout, "timeout": timeout, "allow_http": True}
            return S3Store(
                self._bucket,
                endpoint=f"{url.scheme}://{self._bucket}.{url.netloc}" if is_amazon else client.meta.endpoint_url,
                virtual_hosted_style_request=is_amazon,
                region=_REGIONS.get(client.meta.region_name, client.meta.region_name),
                client_options=client_options,
                retry_config={"max_retries": 0},
                checksum_algorithm="SHA256",
                **config,
            )

        return _Opened(opened_for("1day"), opened_for(f"{self._read_timeout_seconds}s"), credentials, renew_at)

    async def _credentials(self) -> tuple[str, ...] | None:
        """Return key, secret and, if there is one, token; None if there are none."""
        connection = self._connection
        if connection.anon:
            return None
        if connection.key and connection.secret:
            return (connection.key, connection.secret, *([connection.token] if connection.token else []))
        found = await connection.session.get_credentials()
        if found is None:
            return None
        frozen = await found.get_frozen_credentials()
        return (frozen.access_key, frozen.secret_key, *([frozen.token] if frozen.token else []))

    async def get(self, store: S3Store, key: str, range_header: str | None = None) -> GetResult:
        """Send a GET of an object, or of a range, `bytes=0-99`. Returns when the first bytes arrive."""
        try:
            async with asyncio.timeout(self._read_timeout_seconds):
                return await store.get_async(key, options=_ranged(range_header))
        except FAILURES as error:
            raise _answer(error, "GetObject") or error from None

    def get_here(self, store: S3Store, key: str, range_header: str | None = None) -> GetResult:
        """As `get`, in the calling thread."""
        try:
            return store.get(key, options=_ranged(range_header))
        except FAILURES as error:
            raise _answer(error, "GetObject") or error from None

    def head_here(self, store: S3Store, key: str) -> Entry:
        """Send a HEAD of an object, in the calling thread. The path of the entry is the key.

        Raises `ClientError` for an answer of the store, and one of `FAILURES` for what botocore must be asked.
        """
        try:
            found = store.head(key)
        except FAILURES as error:
            # The answer has no body that says who sent it. Before the first plain answer of the store, botocore is asked.
            status = _STATUS.search(str(error)) if self._has_answered else None
            if status is None or int(status[1]) not in _SAME_FOR_ALL_CLIENTS:
                raise
            raise _client_error(status[1], int(status[1]), error, "HeadObject") from None
        if found["e_tag"] is None:
            raise ValueError(f"the HEAD of {key} was answered without an ETag, so not by the store")
        return _entry(found)

    async def pieces(self, answer: GetResult, piece_bytes: int) -> AsyncIterator[bytes]:
        """Read the body of a GET in pieces of at least this size, except for the last."""
        stream = answer.stream(min_chunk_size=piece_bytes)
        while True:
            try:
                async with asyncio.timeout(self._read_timeout_seconds):
                    piece = await anext(stream)
            except StopAsyncIteration:
                return
            yield bytes(piece)

    async def list(self, store: S3Store, folder: str) -> list[Entry]:
        """List the objects whose keys begin with `folder`, which is empty or ends with a slash. Their paths are keys.

        Raises `NotPlain` if a key may be that of a folder, whose slash is omitted.
        """
        try:
            async with asyncio.timeout(_LISTING_SECONDS):
                found = await store.list(folder or None, chunk_size=PAGE).collect_async()
        except FAILURES as error:
            raise _answer(error, "ListObjectsV2") or error from None
        return _entries(found, f"{self._bucket}/{folder}")

    def list_here(self, store: S3Store, folder: str) -> Sequence[Entry]:
        """As `list`, in the calling thread."""
        try:
            found = store.list(folder or None, chunk_size=PAGE).collect()
        except FAILURES as error:
            raise _answer(error, "ListObjectsV2") or error from None
        return _entries(found, f"{self._bucket}/{folder}")

    def create_here(self, store: S3Store, key: str, data: bytes) -> None:
        """Create an object if there is none with this key, in the calling thread."""
        try:
            store.put(key, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            # A 409 means that another create is not decided yet. The message also has the key, which may contain "412".
            if _CONFLICT not in str(error):
                raise
            raise _client_error("PreconditionFailed", 412, error, "PutObject") from None
        except FAILURES as error:
            raise _answer(error, "PutObject") or error from None

    def _has_succeeded(self) -> None:
        self._failed, self._has_answered = 0, True

    def _has_failed(self, error: Exception) -> None:
        """Note a request that failed here and that botocore made."""
        if isinstance(error, NotPlain):
            return
        self._failed += 1
        if self._failed >= FAILURES_IN_A_ROW:
            self._turn_off(error)

    def _turn_off(self, error: Exception) -> None:
        self._failed, self._off_until = 0, self._connection.loop.time() + OFF_SECONDS
        _LOG.info("requests to the bucket %s use botocore for %.0f s: %s", self._bucket, OFF_SECONDS, error)


def _entry(found: ObjectMeta) -> Entry:
    etag = str(found["e_tag"] or "").strip('"')
    return Entry(found["path"], found["size"], found["last_modified"].timestamp(), etag)


def _entries(found: Sequence[ObjectMeta], where: str) -> list[Entry]:
    entries = list(map(_entry, found))
    # Plans without a step have an empty outcome; no folder has such a name.
    if any(not one.size_bytes and not one.path.endswith(".jsonl") for one in entries):
        raise NotPlain(f"{where} has an object without bytes")
    return entries


def _now() -> float:
    return asyncio.get_running_loop().time()


def _answer(error: Exception, operation: str) -> ClientError | None:
    """Return an error that the store answered, in the form of botocore."""
    found = _ANSWER.search(str(error))
    if found is None or int(found["status"]) not in _SAME_FOR_ALL_CLIENTS:
        return None
    return _client_error(found["code"], int(found["status"]), error, operation)


def _client_error(code: str, status: int, error: Exception, operation: str) -> ClientError:
    about = {"Code": code, "Message": str(error).partition("\n")[0]}
    answered: Any = {"Error": about, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answered, operation)


def _ranged(range_header: str | None) -> GetOptions:
    if range_header is None:
        return {}
    first, _, last = range_header.removeprefix("bytes=").partition("-")
    return {"range": (int(first), int(last) + 1)}


_first_user: int | None = None
"""The process that read here first."""

_SHARED: dict[tuple[int, int, str], QuickReads] = {}


def shared(bucket: str, connection: s3fs.S3FileSystem, **timeouts: int) -> QuickReads:
    """Return this process's reads of a bucket, so that roots in it share connections."""
    key = (os.getpid(), id(connection), bucket)
    return _SHARED.get(key) or _SHARED.setdefault(key, QuickReads(bucket, connection, **timeouts))
