"""Storage backends: local disk, S3, Azure, Google Cloud Storage and HDFS. They count every request.

A backend moves whole objects and does not know their contents. `statestore.format` defines the names and contents of a
checkpoint's files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from statekeeper.statestore.base.clock import Clock, Ids, RandomIds, SystemClock
from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.base.extras import how_to_install, missing
from statekeeper.statestore.base.redaction import redacted
from statekeeper.statestore.format.limits import DEFAULT_LIMITS, SizeLimits
from statekeeper.statestore.storage.base import (
    DELETE_BATCH,
    TEMP_FOLDER,
    Created,
    Deletion,
    Entry,
    Kind,
    PartsUpload,
    RequestCounts,
    Requests,
    Storage,
    UnfinishedUpload,
    checked_folder,
    is_hidden,
    read_or_none,
)
from statekeeper.statestore.storage.batch_logs import BatchLogCache, LoggedStorage, MemberEntry, Members, list_members
from statekeeper.statestore.storage.forwarding import CheckedStorage
from statekeeper.statestore.storage.lines import read_lines
from statekeeper.statestore.storage.local import LocalStorage
from statekeeper.statestore.storage.omissions import Omitted
from statekeeper.statestore.storage.opened_object import OpenedObject
from statekeeper.statestore.storage.parallel import at_once
from statekeeper.statestore.storage.remembered import Reads, RememberingStorage
from statekeeper.statestore.storage.urls import canonical

__all__ = [
    "DELETE_BATCH",
    "TEMP_FOLDER",
    "BatchLogCache",
    "CheckedStorage",
    "Created",
    "Deletion",
    "Entry",
    "Kind",
    "MemberEntry",
    "Members",
    "Omitted",
    "OpenedObject",
    "PartsUpload",
    "Reads",
    "RememberingStorage",
    "RequestCounts",
    "Requests",
    "SizeLimits",
    "Storage",
    "StorageSpec",
    "UnfinishedUpload",
    "at_once",
    "canonical",
    "is_hidden",
    "list_members",
    "open_storage",
    "read_lines",
    "read_or_none",
]

_DRIVEN = ("abfss", "gs", "webhdfs", "swebhdfs")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_MOST_OPENED = 8
"""A task of a verb uses two or three storages."""
_SYSTEM_CLOCK = SystemClock()
_RANDOM_IDS = RandomIds()


@dataclass(frozen=True)
class StorageSpec:
    """The parameters to open a storage. Spark's Python workers get a spec instead of the storage itself.

    Workers are forked from one daemon. They would share a connection that was opened before the fork, and its event
    loop would run in none of them. So each worker opens its own. `options` may contain a secret and is not displayed.

    `timeout_seconds`: how long a request to unavailable storage is sent again, see `resending`. 0: a few tries, for
    about two seconds. Local disks ignore it.

    `limits`: the sizes that are read and written. Raise them for a root with larger values.
    """

    url: str
    options: tuple[tuple[str, str], ...] = ()
    timeout_seconds: float = 0.0
    limits: SizeLimits = DEFAULT_LIMITS

    def __repr__(self) -> str:
        return f"{type(self).__name__}(url={redacted(self.url)!r})"


def open_storage(
    where: StorageSpec | str,
    *,
    clock: Clock = _SYSTEM_CLOCK,
    ids: Ids = _RANDOM_IDS,
    options: Mapping[str, str] | None = None,
    cache: BatchLogCache | None = None,
    is_hurried: bool = True,
) -> Storage:
    """Open the root at a URL: a local path, `file:///path`, `s3://bucket/folder`, or a URL with a driver (`abfss://`,
    `gs://`, `webhdfs://`, `swebhdfs://`). `s3a://` is `s3://`, and `abfs://` is `abfss://`. Sends no request.

    `options` override those of the spec. S3 supports `endpoint_url`, `key`, `secret`, `region`, `anon` ("true") and
    `hedge` ("true" or "false"). Missing options come from the usual environment variables and files (AWS_* for S3).

    cache       the host's cache of batch logs of this root; without one, they are in memory only
    is_hurried  a batch waits for the replies. Without the option `hedge`, its slow requests are sent twice; maintenance
                saves the CPU that this costs

    Raises StorageError for an unknown scheme or option, and if a driver is not installed.
    """
    spec = where if isinstance(where, StorageSpec) else StorageSpec(where)
    spec = replace(spec, url=canonical(spec.url), options=tuple({**dict(spec.options), **(options or {})}.items()))
    backend = _open_backend(spec, clock, ids, is_hurried=is_hurried)
    # Its own URL: a relative path is another place in the working directory of an executor.
    return LoggedStorage(backend, cache, again=(_opened_again, (replace(spec, url=backend.url), is_hurried)))


@lru_cache(maxsize=_MOST_OPENED)
def _opened_again(spec: StorageSpec, is_hurried: bool) -> Storage:
    """Open a storage in the Python worker of an executor, once for all tasks that it runs."""
    return open_storage(spec, is_hurried=is_hurried)


def _open_backend(spec: StorageSpec, clock: Clock, ids: Ids, *, is_hurried: bool) -> Storage:
    chosen = dict(spec.options)
    parts = urlsplit(spec.url)
    scheme = parts.scheme if _SCHEME.match(spec.url) else ""
    if scheme and redacted(spec.url) != spec.url:
        raise StorageError(
            "contains a password or a token, which logs and Dagster would display; the storage was not opened",
            path=spec.url,
            hint="give credentials as storage options or environment variables, and remove them from the URL",
        )
    # An empty URL is rejected, because pathlib reads it as the working directory. In file://host/path a slash is missing.
    if spec.url and scheme in ("", "file") and not (scheme and parts.netloc):
        _refuse_unknown(chosen, (), spec.url)
        # Spark writes `file:/path`. A URL is percent-encoded, a bare path is not.
        return LocalStorage(Path(unquote(parts.path) if scheme else spec.url), ids=ids, limits=spec.limits)
    if scheme == "s3" and parts.netloc:
        if package := missing("s3fs"):
            raise StorageError(
                f"needs the package {package}, which is not installed",
                path=spec.url,
                hint=f"run: {how_to_install('s3')}",
            )
        # Imported on demand: the import takes a second, and roots on local disk do not need it.
        from statekeeper.statestore.storage import s3

        _refuse_unknown(chosen, s3.OPTIONS, spec.url)
        bucket, _, folder = spec.url.split("://", 1)[1].partition("/")
        return s3.S3Storage(
            bucket,
            checked_folder(folder.strip("/")),
            clock=clock,
            ids=ids,
            options=chosen,
            timeout_seconds=spec.timeout_seconds,
            is_hedged=is_hurried,
            limits=spec.limits,
        )
    if scheme in _DRIVEN and parts.netloc:
        from statekeeper.statestore.storage import drivers, hedging

        _refuse_unknown(chosen, drivers.options_of(scheme), spec.url)
        checked_folder(parts.path.strip("/"))
        drivers.require_installed(spec.url)
        from statekeeper.statestore.storage import remote

        options_of_driver, is_hedged = hedging.chosen(chosen, unless_given=is_hurried)
        return remote.RemoteStorage(
            spec.url,
            drivers.open_driver(spec.url, options_of_driver),
            clock=clock,
            ids=ids,
            timeout_seconds=spec.timeout_seconds,
            is_hedged=is_hedged,
            limits=spec.limits,
        )
    if scheme == "hdfs":
        raise StorageError(
            "hdfs:// is not supported",
            path=spec.url,
            hint=f"use the namenode's web address (dfs.namenode.http-address): "
            f"webhdfs://{parts.hostname or 'namenode'}:9870{parts.path}, or swebhdfs:// with TLS",
        )
    raise StorageError(
        "has an unknown scheme or no bucket",
        path=spec.url,
        hint="use a local path, s3://bucket/folder (or s3a://), abfss://container@account.dfs.core.windows.net/folder, "
        "gs://bucket/folder or webhdfs://namenode:9870/folder",
    )


def _refuse_unknown(chosen: Mapping[str, str], known: tuple[str, ...], url: str) -> None:
    if unknown := sorted(set(chosen) - set(known)):
        hint = f"use {', '.join(known)}" if known else "remove them; a local root has no options"
        raise StorageError(f"unknown options: {', '.join(unknown)}", path=url, hint=hint)
