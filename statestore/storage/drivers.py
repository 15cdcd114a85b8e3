"""Which driver a URL needs, and what it is told.

    abfss://container@account.dfs.core.windows.net/folder    adlfs, of fsspec's
    gs://bucket/folder                                       gcsfs, of fsspec's
    webhdfs://namenode:9870/folder                           `webhdfs`, on requests
    swebhdfs://namenode:9871/folder                          the same with TLS

Whether a driver creates an object only where nothing is, in one step of the store's, was read in each of them: fsspec
itself does not promise it. Its default for `mode="create"` looks first and writes then, and some drivers do not even look.
So only those are listed that can, from a named release on.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any
from urllib.parse import SplitResult, urlsplit

from statestore.errors import StorageError
from statestore.storage.base import TEMP_FOLDER
from statestore.storage.content import PIECE_BYTES

_REQUEST_SECONDS = 60
"""For one request; with its retries it stays below the life of a lease."""

_ACCOUNT = re.compile(r"(?P<container>[^@/]+)@(?P<account>[^./:]+)\.(?P<rest>[^/:]+)")


@dataclass(frozen=True)
class Driver:
    """A driver that creates an object only where nothing is, in one step, by the package that it needs.

    kind        its class, as "module:class"; it has the methods of fsspec's that `remote` calls
    release     the oldest release of the package that is known to keep what is said here
    options     what a root may tell it
    upload      what keeps it from holding a large file in memory while it sends it
    failures    what it raises beside Python's own errors, as "module:class"
    told        what it is told beside the options, from the URL
    place       where the root lies, as the driver names it
    """

    package: str
    kind: str
    release: str
    options: tuple[str, ...]
    upload: Mapping[str, int]
    failures: tuple[str, ...]
    told: Callable[[SplitResult], dict[str, Any]]
    place: Callable[[SplitResult], str]


@dataclass(frozen=True)
class Opened:
    """A driver at work: its file system, the root's place in it, and what its requests may fail with."""

    files: Any
    place: str
    upload: Mapping[str, int]
    failures: tuple[type[Exception], ...]


_NOTHING_KEPT: Mapping[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
"""fsspec's caches: a listing that decides must be new."""

_WEB_PORTS = {"webhdfs": 9870, "swebhdfs": 9871}
"""Hadoop's own, from 3 on."""


def _azure(parts: SplitResult) -> dict[str, Any]:
    told: dict[str, Any] = {**_NOTHING_KEPT, "connection_timeout": 5, "read_timeout": _REQUEST_SECONDS}
    if match := _ACCOUNT.fullmatch(parts.netloc):
        told["account_name"] = match["account"]
        # The host of a container's files; blobs have a host of their own.
        told["account_host"] = f"{match['account']}.{match['rest'].replace('dfs.', 'blob.', 1)}"
    return told


def _hdfs(parts: SplitResult) -> dict[str, Any]:
    servers = [host if ":" in host else f"{host}:{_WEB_PORTS[parts.scheme]}" for host in parts.netloc.split(",")]
    return {
        "servers": ",".join(servers),
        "tls": parts.scheme == "swebhdfs",
        "unfinished": f"{_from_the_top(parts).rstrip('/')}/{TEMP_FOLDER}",
        "request_seconds": _REQUEST_SECONDS,
    }


def _from_the_top(parts: SplitResult) -> str:
    return f"/{parts.path.strip('/')}"


def _in_container(parts: SplitResult) -> str:
    return f"{parts.netloc.partition('@')[0]}/{parts.path.strip('/')}"


_AZURE = Driver(
    package="adlfs",
    kind="adlfs:AzureBlobFileSystem",
    release="2025.8.0",
    options=(
        "account_name",
        "account_key",
        "sas_token",
        "connection_string",
        "tenant_id",
        "client_id",
        "client_secret",
        "anon",
    ),
    # It creates by If-None-Match, also where the blocks of a large blob are put together.
    upload={"max_concurrency": 1},
    failures=("azure.core.exceptions:AzureError",),
    told=_azure,
    place=_in_container,
)
_HDFS = Driver(
    package="requests",
    kind="statestore.storage.webhdfs:WebHdfs",
    release="2.31",
    options=("user", "token", "kerberos", "proxy_to"),
    # It creates by a rename that the namenode refuses where something is.
    upload={},
    failures=(),
    told=_hdfs,
    place=_from_the_top,
)
_DRIVERS = {
    "abfss": _AZURE,
    "gs": Driver(
        package="gcsfs",
        # Not what fsspec takes: that asks by gRPC first whether the bucket is a zonal one, and writes into those otherwise.
        kind="gcsfs.core:GCSFileSystem",
        release="2025.5.0",
        options=("project", "token", "endpoint_url"),
        # It creates by ifGenerationMatch=0, also where a resumable upload begins.
        upload={"chunksize": PIECE_BYTES},
        failures=("gcsfs.retry:HttpError", "google.auth.exceptions:GoogleAuthError", "aiohttp:ClientError"),
        told=lambda _: {**_NOTHING_KEPT, "requests_timeout": _REQUEST_SECONDS},
        place=_in_container,
    ),
    "webhdfs": _HDFS,
    "swebhdfs": _HDFS,
}

_TELLING = ("AZURE_", "GOOGLE_", "STORAGE_", "HADOOP_USER_NAME")
"""The variables of the environment that drivers listen to."""

_OPENED: dict[object, Any] = {}
"""The file systems of this process, which share what costs much to make. A fork must not use its parent's."""


def options_of(scheme: str) -> tuple[str, ...]:
    """What a root of this scheme may be told."""
    return _DRIVERS[scheme].options


def open_driver(url: str, options: Mapping[str, str]) -> Opened:
    """The driver for a URL with one of the schemes above. Nothing is requested yet.

    Raises `StorageError` where the driver, or what it needs, is not installed, or it is given no credentials.
    """
    parts = urlsplit(url)
    driver = _DRIVERS[parts.scheme]
    _require_installed(driver, url)
    # Each failed request would be logged with a traceback on stderr; what fails for good is raised with its name.
    logging.getLogger(driver.package).addHandler(logging.NullHandler())
    told = {**driver.told(parts), **options}
    for switch in ("anon", "kerberos"):
        if switch in told:
            told[switch] = told[switch].lower() == "true"
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_TELLING))
    key = (os.getpid(), driver.kind, *sorted(told.items()), *environment)
    failures: tuple[type[Exception], ...] = (ImportError,)
    try:
        failures = (ImportError, *_failures(driver))
        files = _OPENED.get(key) or _OPENED.setdefault(key, _named(driver.kind)(**told))
    except failures as error:
        what = f"{driver.package} cannot be used: {str(error).partition(chr(10))[0]}"
        raise StorageError(what, path=url, hint="give credentials, or look at the root's storage options") from error
    return Opened(files, driver.place(parts).rstrip("/"), driver.upload, failures)


def _require_installed(driver: Driver, url: str) -> None:
    try:
        there = metadata.version(driver.package)
    except metadata.PackageNotFoundError as error:
        raise StorageError(
            f"needs the package {driver.package}, which is not installed", path=url, hint=_install(driver)
        ) from error
    if _numbers(there) < _numbers(driver.release):
        raise StorageError(
            f"needs {driver.package} {driver.release} or later, and {there} is installed",
            path=url,
            hint=_install(driver),
        )


def _install(driver: Driver) -> str:
    return f"pip install '{driver.package}>={driver.release}'"


def _numbers(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)[:3]]


def _failures(driver: Driver) -> tuple[type[Exception], ...]:
    return (OSError, RuntimeError, ValueError, *(_named(name) for name in driver.failures))


def _named(name: str) -> Any:
    """What "module:class" names."""
    module, _, kind = name.partition(":")
    return getattr(import_module(module), kind)
