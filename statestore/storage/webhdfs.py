"""HDFS by WebHDFS, the HTTP that each namenode and datanode speaks: what `remote` asks of a driver, and nothing else.

    CREATE  <root>/_statekeeper/tmp/<id>    the datanode answers when the file is closed
    RENAME  that -> its name                renameoptions=NONE is refused where something is, OVERWRITE takes its place

The namenode decides about a rename in one step, as it does for Spark's own commits. Under its own name a file would be seen
as soon as it is opened, empty; and when a writer dies, the datanode closes what it has got as if that were all.

Here belongs nothing of a checkpoint. Kerberos is the business of the package requests-kerberos.
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

from statestore.clock import RandomIds, SystemClock
from statestore.storage.parallel import AT_ONCE, at_once

_CONNECT_SECONDS = 5
_WAITS_SECONDS = (0.5, 2.0, 6.0)
"""Between the tries of one request."""

_LATER = {"StandbyException", "ObserverRetryOnActiveException", "RetriableException", "SafeModeException"}
"""What a namenode says that may do it later, or that is not the active one."""

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
    """There was no answer, or one that says: later."""


class WebHdfs:
    """The files of an HDFS. Safe to use from several threads. Paths are absolute.

    servers     the web addresses of the namenodes, "host:port" with commas; of several, one is the active one
    unfinished  the folder for what has not got its name yet: what is left there by the dead may be deleted
    user        who asks, where the cluster believes it; as for Hadoop: HADOOP_USER_NAME, or who runs this
    token       a delegation token, in place of a user
    kerberos    whether to answer the namenode by Kerberos, with the ticket that is there
    proxy_to    the user in whose name it is done
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
            raise ValueError("of user, token and kerberos, one says who asks")
        self._servers = [f"{'https' if tls else 'http'}://{server}/webhdfs/v1" for server in servers.split(",")]
        self._unfinished = unfinished
        self._timeout = (_CONNECT_SECONDS, request_seconds)
        who = {"delegation": token, "doas": proxy_to, "user.name": user}
        if token is None and user is None and not kerberos:
            who["user.name"] = _hadoops_user()
        self._who = {name: value for name, value in who.items() if value is not None}
        self._session = requests.Session()
        # The length that an answer declares is then that of the file.
        self._session.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            # Folders are listed at once, for each of the callers that are at work at once.
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE * AT_ONCE))
        if kerberos:
            from requests_kerberos import OPTIONAL, HTTPKerberosAuth

            self._session.auth = HTTPKerberosAuth(mutual_authentication=OPTIONAL)
        self._clock, self._ids = SystemClock(), RandomIds()

    def info(self, path: str) -> dict[str, Any]:
        """Raises `FileNotFoundError`, as what follows does."""
        return _about(path, self._told("GETFILESTATUS", path, "FileStatus"))

    def ls(self, folder: str, *, detail: bool = True) -> list[dict[str, Any]]:
        """What is in the folder; of a file, the file."""
        listed = self._told("LISTSTATUS", folder, "FileStatuses")["FileStatus"]
        return [_about(f"{folder.rstrip('/')}/{one['pathSuffix']}".rstrip("/"), one) for one in listed]

    def find(self, folder: str, *, detail: bool = True) -> dict[str, dict[str, Any]]:
        """All files below the folder. What goes meanwhile is not in it; whatever else fails, all of it does."""
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
        """The bytes from `start` to `end`, or to where the file ends; `OSError` where that is before `start`."""
        part = {} if end is None else {"offset": start, "length": end - start}

        def read() -> bytes:
            where = self._ask("get", "OPEN", path, part)
            # A gateway answers by itself.
            return _whole(self._send("get", where.headers["Location"]) if "Location" in where.headers else where)

        return self._again(read)

    def pipe_file(self, path: str, data: bytes, *, mode: str = "overwrite") -> None:
        """Write a file. `mode="create"` raises `FileExistsError` where one is, and also when an answer was lost after which
        this one may be it.

        *Guarantee*: a reader sees nothing, the whole file, or the one before.
        """
        self._store(path, data, mode)

    def put_file(self, source: str, path: str, *, mode: str = "overwrite") -> None:
        """The same from a local file, which is not held in memory."""
        self._store(path, Path(source), mode)

    def rm_file(self, path: str) -> None:
        """Delete a file, past the trash. What is not there is fine. Raises `IsADirectoryError` for a folder with files."""
        self._again(lambda: self._ask("delete", "DELETE", path, {"recursive": "false"}))

    def _store(self, path: str, data: bytes | Path, mode: str) -> None:
        for _ in range(1 + len(_WAITS_SECONDS)):
            unfinished = self._again(lambda: self._uploaded(data))
            try:
                if self._has_named(unfinished, path, mode):
                    return
            except BaseException:
                # Also a rename that is still under way finds nothing, then.
                self._drop(unfinished)
                raise
        raise NotAnswered("whether it took the place of the one before is not known")

    def _uploaded(self, data: bytes | Path) -> str:
        """Where the whole content is. Each try has a file of its own: what an earlier one sent may arrive later."""
        path = f"{self._unfinished}/{self._ids.fresh()}"
        try:
            where = self._ask("put", "CREATE", path, {"overwrite": "false"}).headers.get("Location")
            if where is None:
                raise OSError("the answer does not say which datanode takes the file")
            with data.open("rb") if isinstance(data, Path) else nullcontext(data) as body:
                self._send("put", where, data=body, headers={"Content-Type": "application/octet-stream"})
        except BaseException:
            self._drop(path)
            raise
        return path

    def _has_named(self, unfinished: str, path: str, mode: str) -> bool:
        """Whether the file now has that name; False when that is not known. Raises `FileExistsError`."""
        for _ in range(1 + len(_WAITS_SECONDS)):
            try:
                self._rename(unfinished, path, mode)
            except FileNotFoundError:
                if self._is_there(unfinished):
                    # It is the folder that is not there.
                    self._again(lambda: self._ask("put", "MKDIRS", path.rpartition("/")[0], {}))
                    continue
                # A try whose answer was lost had done it. Or it is gone because somebody deletes what is left over.
                if mode == "create":
                    raise FileExistsError(path) from None
                return False
            return True
        raise OSError("its folder goes as often as it is made")

    def _rename(self, source: str, target: str, mode: str) -> None:
        option = "NONE" if mode == "create" else "OVERWRITE"
        answer = self._again(
            lambda: self._ask("put", "RENAME", source, {"destination": target, "renameoptions": option})
        )
        if answer.content:
            # What knows the options answers without a body. Without them a folder of that name would take the file in.
            raise OSError("the server renames without options, as HttpFS does: give the namenode's own web address")

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
        """The answer of the namenode that is active. Raises what Python names such a failure, or `NotAnswered`."""
        failed: NotAnswered | None = None
        for server in tuple(self._servers):
            try:
                answer = self._send(
                    method, server + quote(path), params={**parameters, **self._who, "op": op}, allow_redirects=False
                )
            except NotAnswered as error:
                failed = failed or error
                continue
            # The one that answers is asked first from now on.
            self._servers = [server, *(other for other in self._servers if other != server)]
            return answer
        assert failed is not None
        raise failed

    def _send(self, method: str, url: str, **how: Any) -> requests.Response:
        try:
            answer = self._session.request(method.upper(), url, timeout=self._timeout, **how)
        except requests.RequestException as error:
            is_final = isinstance(error, requests.exceptions.SSLError) or not isinstance(error, _UNANSWERED)
            # Neither its text nor its traceback: the URL is in them, and in that the token.
            raise (OSError if is_final else NotAnswered)(_reason(error)) from None
        if not answer.ok:
            raise _failure(answer)
        return answer


_NOT_HDFS = "what answers does not speak WebHDFS"


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", cause)
    return f"{type(error).__name__}: {reason}" if isinstance(reason, HTTPError) else type(error).__name__


def _whole(answer: requests.Response) -> bytes:
    """The body. A datanode that dies while it sends must not look like the end of the file."""
    data = bytes(answer.content)
    declared = answer.headers.get("Content-Length")
    if declared != str(len(data)) and answer.headers.get("Transfer-Encoding") != "chunked":
        raise NotAnswered(f"{len(data)} bytes came of {declared or 'an unknown number'}")
    return data


def _failure(answer: requests.Response) -> Exception:
    if answer.status_code in _BUSY:
        return NotAnswered(f"{answer.status_code} {answer.reason}")
    try:
        said = answer.json()["RemoteException"]
        name, what = str(said["exception"]), str(said["message"]).partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        if answer.status_code == _UNAUTHORIZED:
            return PermissionError(f"{answer.status_code} {answer.reason}")
        # Not to be taken for a file that is missing: a root on a wrong port would look empty.
        return OSError(f"{_NOT_HDFS}: {answer.status_code} {answer.reason}")
    if name in _LATER:
        return NotAnswered(f"{name}: {what}")
    if answer.status_code == _UNAUTHORIZED:
        return PermissionError(what)
    return _NAMED.get(name, OSError)(what if name in _NAMED else f"{name}: {what}")


def _about(path: str, status: Mapping[str, Any]) -> dict[str, Any]:
    """What a listing of fsspec's would say. A file is as old as its last byte, whatever it was named since."""
    return {
        "name": path,
        "type": str(status["type"]).lower(),
        "size": int(status["length"]),
        "mtime": int(status["modificationTime"]) / 1000,
    }


def _hadoops_user() -> str | None:
    # In a container nobody may be known by the number that it runs as.
    with suppress(KeyError, OSError):
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return None
