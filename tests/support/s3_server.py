"""A real HTTP server that implements S3 (moto), with network faults: lost, rejected or truncated replies."""

from __future__ import annotations

import itertools
import socket
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

CREDENTIALS = {"key": "a-key", "secret": "a-secret", "region": "us-east-1"}


_LONGEST_HOLD_SECONDS = 60.0

_BUCKET_NUMBERS = itertools.count(1)
"""Of all servers of this process: moto keeps their buckets in one place."""


class Wire(Enum):
    """A fault of a request."""

    LOSE_REPLY = "done by the store, then the connection breaks"
    REFUSE = "answered with 503 SlowDown, not done"
    UNDECIDED = "answered with 409 ConditionalRequestConflict, not done: another create is not decided yet"
    NO_UPLOAD = "answered with 404 NoSuchUpload, not done; moto answers 500 for an unknown upload"
    CUT = "half of the body arrives, then the connection breaks"
    HOLD = "not done until the test releases it"
    HOLD_REPLY = "done by the store, answered when the test releases it"


@dataclass
class _Rule:
    method: str
    part_of_url: str
    wire: Wire
    times: int
    released: threading.Event = field(default_factory=threading.Event)


class S3Server:
    """Start it once. Each test creates its own bucket."""

    def __init__(self) -> None:
        self._store = DomainDispatcherApplication(create_backend_app)
        # S3 decides about If-None-Match atomically; moto looks, then writes. One request at a time makes it so.
        self._one_at_a_time = threading.Lock()
        self._rules: list[_Rule] = []
        self._answers: deque[tuple[str, str, int]] = deque(maxlen=10_000)
        self.deletes_on_condition = False
        """Whether it honours If-Match on DELETE, as Amazon S3 does. moto itself ignores it."""
        self.ignores_if_none_match = False
        """An upload overwrites the object, as in some compatible object storages."""
        self.rejects_agent: str | None = None
        """A part of the name of a client whose requests it rejects, as a store that does not understand them."""
        self.latency_seconds: Callable[[], float] | None = None
        """Returns the additional latency of a request. Concurrent requests wait at the same time."""
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.options = {**CREDENTIALS, "endpoint_url": self.endpoint}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def make_bucket(self, name: str | None = None) -> str:
        """The name of a new, empty bucket."""
        name = name or f"bucket-{next(_BUCKET_NUMBERS)}"
        self._ask("PUT", f"/{name}")
        return name

    def put(self, bucket: str, key: str, data: bytes, *, acl: str = "private") -> None:
        """Put an object there behind everybody's back."""
        self._ask("PUT", f"/{bucket}/{key}", data, acl)

    def open_uploads(self, bucket: str) -> int:
        """Return the number of uploads that were neither completed nor aborted: each one costs money."""
        return self._ask("GET", f"/{bucket}?uploads").count(b"<UploadId>")

    def check_credentials(self, check: bool) -> None:
        """From now on, refuse keys that no user has. Switch it off again: the server is shared."""
        self._ask("POST", "/moto-api/reset-auth", b"0" if check else b"inf")

    def next(self, method: str, part_of_url: str, wire: Wire, *, times: int = 1) -> None:
        """Let it happen to the next requests of this method whose quoted url contains the part."""
        self._rules.append(_Rule(method, part_of_url, wire, times))

    def hold(self, method: str, part_of_url: str, *, replies: bool = False) -> threading.Event:
        """Hold the next such request, or its reply, until the event is set."""
        rule = _Rule(method, part_of_url, Wire.HOLD_REPLY if replies else Wire.HOLD, 1)
        self._rules.append(rule)
        return rule.released

    def answered(self, method: str, part_of_url: str) -> list[int]:
        """The statuses of the store's answers to such requests, in the order in which they were sent."""
        return [status for found, url, status in self._answers.copy() if found == method and part_of_url in url]

    def fetched(self, bucket: str, work: Callable[[], object]) -> Counter[str]:
        """Do some work, and return the number of its GET requests for files of stores, by the end of their names."""

        def gets() -> Counter[str]:
            urls = [url.partition("?")[0] for method, url, _ in self._answers.copy() if method == "GET"]
            return Counter(url.rpartition(".")[2] for url in urls if url.startswith(f"/{bucket}/") and "/state/" in url)

        before = gets()
        work()
        return gets() - before

    def _ask(self, method: str, path: str, body: bytes = b"", acl: str = "private") -> bytes:
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream", "x-amz-acl": acl}
        request = urllib.request.Request(self.endpoint + path, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        rule = self._rule_for(environ)
        wire = rule and rule.wire
        if self.latency_seconds is not None:
            time.sleep(self.latency_seconds())
        if self.rejects_agent is not None and self.rejects_agent in environ.get("HTTP_USER_AGENT", ""):
            start("400 Bad Request", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InvalidRequest</Code><Message>It is not understood.</Message></Error>"]
        if rule and wire is Wire.HOLD:
            rule.released.wait(_LONGEST_HOLD_SECONDS)
        if wire is Wire.REFUSE:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        if wire is Wire.UNDECIDED:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("409 Conflict", [("Content-Type", "application/xml")])
            return [b"<Error><Code>ConditionalRequestConflict</Code><Message>Try again.</Message></Error>"]
        if wire is Wire.NO_UPLOAD:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("404 Not Found", [("Content-Type", "application/xml")])
            return [b"<Error><Code>NoSuchUpload</Code><Message>The upload does not exist.</Message></Error>"]
        with self._one_at_a_time:
            if self.ignores_if_none_match:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if not self._source_matches(environ) or (self.deletes_on_condition and not self._matches(environ)):
                start("412 Precondition Failed", [("Content-Type", "application/xml")])
                return [b"<Error><Code>PreconditionFailed</Code><Message>The ETag differs.</Message></Error>"]
            statuses: list[int] = []

            def noting(status: str, *how: Any) -> Any:
                statuses.append(int(status[:3]))
                return start(status, *how)

            body = b"".join(self._store(environ, noting))
        if rule and wire is Wire.HOLD_REPLY:
            rule.released.wait(_LONGEST_HOLD_SECONDS)
        self._answers.append((environ["REQUEST_METHOD"], environ["RAW_URI"], *statuses))
        if wire is Wire.LOSE_REPLY:
            # Nothing was sent so far: the headers are sent with the first bytes of the body.
            with suppress(OSError):
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("the reply is lost")
        return [body[: len(body) // 2] if wire is Wire.CUT else body]

    def _matches(self, environ: dict[str, Any]) -> bool:
        """Whether the object has the ETag that a DELETE names; Amazon compares it in the same step."""
        wanted: str | None = environ.get("HTTP_IF_MATCH")
        if environ["REQUEST_METHOD"] != "DELETE" or wanted is None:
            return True
        return self._etag(environ) == wanted.strip('"')

    def _source_matches(self, environ: dict[str, Any]) -> bool:
        """Whether the source of a copy has the ETag that the request names; moto copies whatever is there."""
        wanted = environ.get("HTTP_X_AMZ_COPY_SOURCE_IF_MATCH")
        if wanted is None:
            return True
        source = "/" + environ["HTTP_X_AMZ_COPY_SOURCE"].lstrip("/")
        of_source = {
            **environ,
            "PATH_INFO": unquote(source),
            "RAW_URI": source,
            "REQUEST_URI": source,
            "QUERY_STRING": "",
        }
        of_source["CONTENT_LENGTH"] = "0"
        return self._etag(of_source) in (wanted.strip('"'), None)

    def _etag(self, environ: dict[str, Any]) -> str | None:
        """Return the ETag of an object; None if it does not exist."""
        found: list[tuple[str, str]] = []
        head = {name: value for name, value in environ.items() if not name.startswith(("HTTP_IF_", "HTTP_X_AMZ_COPY"))}
        list(self._store({**head, "REQUEST_METHOD": "HEAD"}, lambda _, headers, *__: found.extend(headers)))
        etag = {name.lower(): value for name, value in found}.get("etag")
        return None if etag is None else etag.strip('"')

    def _rule_for(self, environ: dict[str, Any]) -> _Rule | None:
        for rule in self._rules:
            if rule.method == environ["REQUEST_METHOD"] and rule.part_of_url in environ["RAW_URI"]:
                rule.times -= 1
                if not rule.times:
                    self._rules.remove(rule)
                return rule
        return None


class _QuietHandler(MotoRequestHandler):
    def log(self, *_: object) -> None:
        """Say nothing."""

    def handle_expect_100(self) -> bool:
        """Leave it to Werkzeug, which says "100 Continue" as well: Amazon's client would take the second for the reply."""
        return True
