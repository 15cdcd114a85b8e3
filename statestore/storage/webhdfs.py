"""HDFS through WebHDFS, the HTTP interface of namenodes and datanodes. Only the methods that `remote` calls.

    CREATE  <root>/_statekeeper/tmp/<id>    the datanode replies when the file is closed
    RENAME  that -> its name                renameoptions=NONE fails if the target exists, OVERWRITE replaces it

The namenode executes a rename atomically, as for Spark's own commits. A file created under its final name would be
visible as soon as it is opened, empty; and if a writer dies, the datanode closes the partial file as if it were
complete.

This module does not know checkpoints. The package requests-kerberos provides Kerberos.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from statekeeper.statestore.base.clock import RandomIds, SystemClock
from statekeeper.statestore.storage.parallel import AT_ONCE, at_once

_CONNECT_SECONDS = 5
_WAITS_SECONDS = (0.5, 2.0, 6.0)
"""Pauses between the tries of one request."""

_LATER = {"StandbyException", "ObserverRetryOnActiveException", "RetriableException", "SafeModeException"}
"""Exceptions of a namenode that is not active or not ready."""

_NAMED: Mapping[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
    "ParentNotDirectoryException": NotADirectoryError,
    "PathIsNotEmptyDirectoryException": IsADirectoryError,
    "AccessControlException": PermissionError,
    "AuthorizationException": PermissionError,
    "SecurityException": PermissionError,
    "InvalidToken": PermissionError,
}
_UNANSWERED = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
_UNAUTHORIZED = 401
_BUSY = {502, 503, 504}

T = TypeVar("T")


class NotAnswered(ConnectionError):
    """No reply, or a reply that asks to retry later."""


class WebHdfs:
    """The files of an HDFS. Thread-safe. Paths are absolute.

    servers     the web addresses of the namenodes, "host:port" with commas; one of several is active
    unfinished  the folder of unfinished files; leftovers of dead processes in it may be deleted
    user        the user name, for a cluster without authentication; default as in Hadoop: HADOOP_USER_NAME or this user
    token       a delegation token, instead of a user
    kerberos    whether to authenticate with Kerberos, with the existing ticket
    proxy_to    the user to impersonate
    """

    def __init__(
        self,
        *,
        servers: str,
        unfinished: str,
        request_seconds: float,
        tls: bool = False,
        user: str | None = None,
        token: str | None = None,
        kerberos: bool = False,
        proxy_to: str | None = None,
    ) -> None:
        if (user is not None) + (token is not None) + kerberos > 1:
            raise ValueError("user, token and kerberos exclude each other: give only one of them")
        self._servers = [f"{'https' if tls else 'http'}://{server}/webhdfs/v1" for server in servers.split(",")]
        self._unfinished = unfinished
        self._timeout = (_CONNECT_SECONDS, request_seconds)
        who = {"delegation": token, "doas": proxy_to, "user.name": user}
        if token is None and user is None and not kerberos:
            who["user.name"] = _hadoops_user()
        self._who = {name: value for name, value in who.items() if value is not None}
        self._session = requests.Session()
        # Without compression, the declared length of a reply is that of the file.
        self._session.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            # Each of the concurrent callers lists folders concurrently.
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE * AT_ONCE))
        if kerberos:
            from requests_kerberos import OPTIONAL, HTTPKerberosAuth

            self._session.auth = HTTPKerberosAuth(mutual_authentication=OPTIONAL)
        self._clock, self._ids = SystemClock(), RandomIds()

    def info(self, path: str) -> dict[str, Any]:
        """Return the properties of a file. Raises `FileNotFoundError`, as do the methods below."""
        return _about(path, self._told("GETFILESTATUS", path, "FileStatus"))

    def ls(self, folder: str, *, detail: bool = True) -> list[dict[str, Any]]:
        """List the entries of the folder; for a file, the file."""
        listed = self._told("LISTSTATUS", folder, "FileStatuses")["FileStatus"]
        return [_about(f"{folder.rstrip('/')}/{one['pathSuffix']}".rstrip("/"), one) for one in listed]

    def find(self, folder: str, *, detail: bool = True) -> dict[str, dict[str, Any]]:
        """List all files below the folder. Files and folders deleted meanwhile are omitted; any other failure is
        raised."""
        found: dict[str, dict[str, Any]] = {}
        folders = [folder]

        def look(at: str) -> None:
            with suppress(FileNotFoundError, NotADirectoryError):
                listings.append(self.ls(at))

        while folders:
            listings: list[list[dict[str, Any]]] = []
            at_once(look, folders)
            listed = [one for listing in listings for one in listing]
            found |= {one["name"]: one for one in listed if one["type"] == "file"}
            folders = [one["name"] for one in listed if one["type"] == "directory"]
        return found

    def cat_file(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Read the bytes from `start` to `end`, or to the end of the file. Raises `OSError` if the file ends before
        `start`."""
        part = {} if end is None else {"offset": start, "length": end - start}

        def read() -> bytes:
            where = self._ask("get", "OPEN", path, part)
            # A gateway replies itself, without a redirect.
            return _whole(self._send("get", where.headers["Location"]) if "Location" in where.headers else where)

        return self._again(read)

    def pipe_file(self, path: str, data: bytes, *, mode: str = "overwrite") -> None:
        """Write a file. `mode="create"` raises `FileExistsError` if it exists. After a lost reply, the existing file
        may be this one.

        *Guarantee*: a reader sees no file, the whole new file, or the previous one.
        """
        self._store(path, data, mode)

    def put_file(self, source: str, path: str, *, mode: str = "overwrite") -> None:
        """Write a file from a local file, without holding it in memory."""
        self._store(path, Path(source), mode)

    def rm_file(self, path: str) -> None:
        """Delete a file, bypassing the trash. A missing file is not an error. Raises `IsADirectoryError` for a folder
        with files."""
        self._again(lambda: self._ask("delete", "DELETE", path, {"recursive": "false"}))

    def _store(self, path: str, data: bytes | Path, mode: str) -> None:
        for _ in range(1 + len(_WAITS_SECONDS)):
            unfinished = self._again(lambda: self._uploaded(data))
            try:
                if self._has_named(unfinished, path, mode):
                    return
            except BaseException:
                # A rename that is still in progress then fails, too.
                self._drop(unfinished)
                raise
        raise NotAnswered("it is unknown whether the file was replaced; no reply arrived")

    def _uploaded(self, data: bytes | Path) -> str:
        """Upload the whole content and return its path. Each try uses a new file, because data of an earlier try may
        arrive later."""
        path = f"{self._unfinished}/{self._ids.fresh()}"
        try:
            where = self._ask("put", "CREATE", path, {"overwrite": "false"}).headers.get("Location")
            if where is None:
                raise OSError("the reply of the namenode names no datanode for the upload")
            with data.open("rb") if isinstance(data, Path) else nullcontext(data) as body:
                self._send("put", where, data=body, headers={"Content-Type": "application/octet-stream"})
        except BaseException:
            self._drop(path)
            raise
        return path

    def _has_named(self, unfinished: str, path: str, mode: str) -> bool:
        """Rename the file. Return False if it is unknown whether the rename succeeded. Raises `FileExistsError`."""
        for _ in range(1 + len(_WAITS_SECONDS)):
            try:
                self._rename(unfinished, path, mode)
            except FileNotFoundError:
                if self._is_there(unfinished):
                    # The folder is missing.
                    self._again(lambda: self._ask("put", "MKDIRS", path.rpartition("/")[0], {}))
                    continue
                # An earlier try succeeded and its reply was lost, or another process deleted the file as a leftover.
                if mode == "create":
                    raise FileExistsError(path) from None
                return False
            return True
        raise OSError("another process keeps deleting the folder of the file")

    def _rename(self, source: str, target: str, mode: str) -> None:
        option = "NONE" if mode == "create" else "OVERWRITE"
        answer = self._again(
            lambda: self._ask("put", "RENAME", source, {"destination": target, "renameoptions": option})
        )
        if answer.content:
            # A server that supports the options replies without a body. Another one would move the file into a folder of
            # that name.
            raise OSError("the server ignores rename options, as HttpFS does: use the namenode's own web address")

    def _is_there(self, path: str) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def _drop(self, unfinished: str) -> None:
        with suppress(OSError, ValueError):
            self._ask("delete", "DELETE", unfinished, {"recursive": "false"})

    def _told(self, op: str, path: str, what: str) -> Any:
        answer = self._again(lambda: self._ask("get", op, path, {}))
        try:
            return answer.json()[what]
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(_NOT_HDFS) from error

    def _again(self, act: Callable[[], T]) -> T:
        for wait_seconds in _WAITS_SECONDS:
            try:
                return act()
            except NotAnswered:
                self._clock.sleep(wait_seconds)
        return act()

    def _ask(self, method: str, op: str, path: str, parameters: Mapping[str, str | int]) -> requests.Response:
        """Return the reply of the active namenode. Raises the matching exception of Python, or `NotAnswered`."""
        failed: NotAnswered | None = None
        for server in tuple(self._servers):
            try:
                answer = self._send(
                    method, server + quote(path), params={**parameters, **self._who, "op": op}, allow_redirects=False
                )
            except NotAnswered as error:
                failed = failed or error
                continue
            # Try the server that replied first from now on.
            self._servers = [server, *(other for other in self._servers if other != server)]
            return answer
        assert failed is not None
        raise failed

    def _send(self, method: str, url: str, **how: Any) -> requests.Response:
        try:
            answer = self._session.request(method.upper(), url, timeout=self._timeout, **how)
        except requests.RequestException as error:
            is_final = isinstance(error, requests.exceptions.SSLError) or not isinstance(error, _UNANSWERED)
            # Text and traceback contain the URL with the token, so neither is passed on.
            raise (OSError if is_final else NotAnswered)(_reason(error)) from None
        if not answer.ok:
            raise _failure(answer)
        return answer


_NOT_HDFS = "the server does not speak WebHDFS"


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", cause)
    return f"{type(error).__name__}: {reason}" if isinstance(reason, HTTPError) else type(error).__name__


def _whole(answer: requests.Response) -> bytes:
    """Return the body. If a datanode dies while it sends, this must not look like the end of the file."""
    data = bytes(answer.content)
    declared = answer.headers.get("Content-Length")
    if declared != str(len(data)) and answer.headers.get("Transfer-Encoding") != "chunked":
        raise NotAnswered(f"received {len(data)} of {declared or 'an unknown number of'} bytes")
    return data


def _failure(answer: requests.Response) -> Exception:
    if answer.status_code in _BUSY:
        return NotAnswered(f"{answer.status_code} {answer.reason}")
    try:
        body = answer.json()["RemoteException"]
        name, what = str(body["exception"]), str(body["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        if answer.status_code == _UNAUTHORIZED:
            return PermissionError(f"{answer.status_code} {answer.reason}")
        # Not `FileNotFoundError`: a root on a wrong port would look empty.
        return OSError(f"{_NOT_HDFS}: {answer.status_code} {answer.reason}")
    if name in _LATER:
        return NotAnswered(f"{name}: {what}")
    if answer.status_code == _UNAUTHORIZED:
        return PermissionError(what)
    return _NAMED.get(name, OSError)(what if name in _NAMED else f"{name}: {what}")


def _about(path: str, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a listing entry of fsspec. The time is that of the last write; renames do not change it."""
    return {
        "name": path,
        "type": str(status["type"]).lower(),
        "size": int(status["length"]),
        "mtime": int(status["modificationTime"]) / 1000,
    }


def _hadoops_user() -> str | None:
    # In a container, the user id may have no name.
    with suppress(KeyError, OSError):
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return None
