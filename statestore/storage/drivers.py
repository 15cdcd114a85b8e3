"""The driver of each URL scheme, and its parameters.

    abfss://container@account.dfs.core.windows.net/folder    adlfs, of fsspec
    gs://bucket/folder                                       gcsfs, of fsspec
    webhdfs://namenode:9870/folder                           `webhdfs`, on requests
    swebhdfs://namenode:9871/folder                          the same with TLS

A driver must create an object atomically and only if it does not exist. fsspec does not guarantee this: its default for
`mode="create"` checks first and writes then, and some drivers do not even check. The source code of each driver below
was read to verify that it does, from the given release on.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any
from urllib.parse import SplitResult, urlsplit

from statekeeper.statestore.base.errors import StorageError
from statekeeper.statestore.base.extras import how_to_install
from statekeeper.statestore.storage import hedging
from statekeeper.statestore.storage.base import TEMP_FOLDER
from statekeeper.statestore.storage.content import PIECE_BYTES
from statekeeper.statestore.storage.remote_copies import ServiceCopy, copy_on_azure, copy_on_google

_REQUEST_SECONDS = 60
"""The timeout of one request. Including retries it is shorter than the life of a lease."""

_ACCOUNT = re.compile(r"(?P<container>[^@/]+)@(?P<account>[^./:]+)\.(?P<rest>[^/:]+)")


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A driver with atomic create-if-absent, and the package that it needs.

    extra       the extra of Statekeeper that installs the package
    kind        its class, as "module:class", with fsspec's methods that `remote` calls
    release     the oldest release of the package that was verified
    options     the options that a root may have
    upload      parameters that prevent it from holding a large file in memory during an upload
    failures    its exceptions other than Python's, as "module:class"
    parameters  returns its parameters, other than the options, from the URL
    place       returns the driver's path of the root
    copy        copies an object inside the service; None if the service cannot
    service     identifies the service if each root has its own driver; None if roots of one service share it
    """

    package: str
    extra: str
    kind: str
    release: str
    options: tuple[str, ...]
    upload: Mapping[str, int]
    failures: tuple[str, ...]
    parameters: Callable[[SplitResult], dict[str, Any]]
    place: Callable[[SplitResult], str]
    copy: ServiceCopy | None
    service: Callable[[SplitResult], Hashable] | None = None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open driver: its file system, the service, its path of the root, the exceptions of its requests, and its copy."""

    files: Any
    service: Hashable
    place: str
    upload: Mapping[str, int]
    failures: tuple[type[Exception], ...]
    copy: ServiceCopy | None


_NOTHING_KEPT: Mapping[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
"""Disables fsspec's caches: decisions need a fresh listing."""

_WEB_PORTS = {"webhdfs": 9870, "swebhdfs": 9871}
"""Hadoop's default ports, since Hadoop 3."""


def _azure(parts: SplitResult) -> dict[str, Any]:
    found: dict[str, Any] = {**_NOTHING_KEPT, "connection_timeout": 5, "read_timeout": _REQUEST_SECONDS}
    if match := _ACCOUNT.fullmatch(parts.netloc):
        found["account_name"] = match["account"]
        # The URL has the host of a container's files; blobs have another host.
        found["account_host"] = f"{match['account']}.{match['rest'].replace('dfs.', 'blob.', 1)}"
    return found


def _hdfs(parts: SplitResult) -> dict[str, Any]:
    servers = [host if ":" in host else f"{host}:{_WEB_PORTS[parts.scheme]}" for host in parts.netloc.split(",")]
    return {
        "servers": ",".join(servers),
        "tls": parts.scheme == "swebhdfs",
        "unfinished": f"{_from_the_top(parts).rstrip('/')}/{TEMP_FOLDER}",
        "request_seconds": _REQUEST_SECONDS,
    }


def _namenodes(parts: SplitResult) -> Hashable:
    # The two protocols use different ports of the same host.
    return ("hdfs", *sorted(host.partition(":")[0] for host in parts.netloc.lower().split(",")))


def _from_the_top(parts: SplitResult) -> str:
    return f"/{parts.path.strip('/')}"


def _in_container(parts: SplitResult) -> str:
    return f"{parts.netloc.partition('@')[0]}/{parts.path.strip('/')}"


_AZURE = Driver(
    package="adlfs",
    extra="azure",
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
        hedging.OPTION,
    ),
    # It creates with If-None-Match, also when it commits the blocks of a large blob.
    upload={"max_concurrency": 1},
    failures=("azure.core.exceptions:AzureError",),
    parameters=_azure,
    place=_in_container,
    copy=copy_on_azure,
)
_HDFS = Driver(
    package="requests",
    extra="hdfs",
    kind="statekeeper.statestore.storage.webhdfs:WebHdfs",
    release="2.31",
    options=("user", "token", "kerberos", "proxy_to"),
    # It creates by a rename that the namenode rejects if the target exists.
    upload={},
    failures=(),
    parameters=_hdfs,
    place=_from_the_top,
    # A namenode concatenates and truncates files, but does not copy them.
    copy=None,
    # The driver of a root has a folder for its unfinished files.
    service=_namenodes,
)
_DRIVERS = {
    "abfss": _AZURE,
    "gs": Driver(
        package="gcsfs",
        extra="google",
        # Not fsspec's default class: it asks by gRPC whether the bucket is zonal, and writes to zonal ones differently.
        kind="gcsfs.core:GCSFileSystem",
        release="2025.5.0",
        options=("project", "token", "endpoint_url", hedging.OPTION),
        # It creates with ifGenerationMatch=0, also at the start of a resumable upload.
        upload={"chunksize": PIECE_BYTES},
        failures=("gcsfs.retry:HttpError", "google.auth.exceptions:GoogleAuthError", "aiohttp:ClientError"),
        parameters=lambda _: {**_NOTHING_KEPT, "requests_timeout": _REQUEST_SECONDS},
        place=_in_container,
        copy=copy_on_google,
    ),
    "webhdfs": _HDFS,
    "swebhdfs": _HDFS,
}

_TELLING = ("AZURE_", "GOOGLE_", "STORAGE_", "HADOOP_USER_NAME")
"""Prefixes of the environment variables that drivers read."""

_OPENED: dict[object, Any] = {}
"""The open file systems of this process. Opening one is expensive. A fork must not use those of its parent."""


def options_of(scheme: str) -> tuple[str, ...]:
    """Return the options of roots with this scheme."""
    return _DRIVERS[scheme].options


def open_driver(url: str, options: Mapping[str, str]) -> Opened:
    """Open the driver for a URL with one of the schemes above. Sends no request.

    Call `require_installed` before. Raises `StorageError` if a package that the driver needs is not installed, or if
    credentials are missing.
    """
    parts = urlsplit(url)
    driver = _DRIVERS[parts.scheme]
    # Otherwise each failed request would be logged with a traceback on stderr. Permanent failures are raised.
    logging.getLogger(driver.package).addHandler(logging.NullHandler())
    parameters = {**driver.parameters(parts), **options}
    for switch in ("anon", "kerberos"):
        if switch in parameters:
            parameters[switch] = parameters[switch].lower() == "true"
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_TELLING))
    key = (os.getpid(), driver.kind, *sorted(parameters.items()), *environment)
    failures: tuple[type[Exception], ...] = (ImportError,)
    try:
        failures = (ImportError, *_failures(driver))
        files = _OPENED.get(key) or _OPENED.setdefault(key, _named(driver.kind)(**parameters))
    except failures as error:
        what = f"{driver.package} cannot be used: {str(error).partition(chr(10))[0]}"
        raise StorageError(what, path=url, hint="check the credentials and the root's storage options") from error
    return Opened(
        files=files,
        # Roots with the same driver have the same account and credentials.
        service=("driver", id(files)) if driver.service is None else driver.service(parts),
        place=driver.place(parts).rstrip("/"),
        upload=driver.upload,
        failures=failures,
        copy=driver.copy,
    )


def require_installed(url: str) -> None:
    """Raise `StorageError` if the driver of a URL is not installed, or is older than the verified release."""
    driver = _DRIVERS[urlsplit(url).scheme]
    there = {}
    for package in (driver.package, "fsspec"):
        try:
            there[package] = metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise StorageError(
                f"needs the package {package}, which is not installed",
                path=url,
                hint=f"run: {how_to_install(driver.extra)}",
            ) from error
    if _numbers(there[driver.package]) < _numbers(driver.release):
        raise StorageError(
            f"needs {driver.package} {driver.release} or later, but {there[driver.package]} is installed",
            path=url,
            hint=f"run: pip install '{driver.package}>={driver.release}'",
        )


def _numbers(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)[:3]]


def _failures(driver: Driver) -> tuple[type[Exception], ...]:
    return (OSError, RuntimeError, ValueError, *(_named(name) for name in driver.failures))


def _named(name: str) -> Any:
    """Import the object with the name "module:class"."""
    module, _, kind = name.partition(":")
    return getattr(import_module(module), kind)
