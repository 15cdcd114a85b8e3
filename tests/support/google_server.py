"""A small HTTP server with the requests of Google's JSON API that a copy sends, and their preconditions.

The tests of copies run on Google's own `Testbench`, too, if it is installed. Only this server loses replies and copies an
object in several calls.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.storage_servers import GoogleStore

_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)")
_REWRITE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o")

Key = tuple[str, ...]
"""Bucket and name."""


@dataclass(frozen=True)
class _Object:
    generation: int
    body: bytes


class Refused(Exception):
    """An answer with an error."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class GoogleServer(GoogleStore):
    """Runs in this process.

    bytes_per_call  a rewrite copies so many bytes before it returns a token
    lost_replies    so many of the next rewrites are done, but their reply is lost
    between         called after each reply with a token
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_per_call = 1024 * 1024
        self.lost_replies = 0
        self.between: Callable[[], None] = lambda: None
        self.rewrites: list[dict[str, str]] = []
        """The parameters of each rewrite."""
        self._objects: dict[Key, _Object] = {}
        self._generations = itertools.count(1)
        self._tokens: dict[str, int] = {}
        self._lock = threading.RLock()
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def arguments(self) -> Sequence[str]:
        return ()

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> Any:
        """Return the JSON value or the bytes of an answer. Raises `Refused`."""
        with self._lock:
            if method == "POST" and (match := _REWRITE.fullmatch(path)):
                names = [unquote(one) for one in match.groups()]
                return self._rewrite((names[0], names[1]), (names[2], names[3]), query)
            if method == "POST" and (match := _UPLOAD.fullmatch(path)):
                return self._write((match[1], query["name"]), body)
            if method == "POST":
                return {}
            if match := _LIST.fullmatch(path):
                found = [key for key in self._objects if key[0] == match[1] and key[1].startswith(query["prefix"])]
                return {"items": [self._about(key) for key in sorted(found)]}
            match = _OBJECT.fullmatch(path)
            key = () if match is None else (match[1], unquote(match[2]))
            if key not in self._objects:
                raise Refused(404)
            if method == "DELETE":
                del self._objects[key]
                return {}
            return self._objects[key].body if query.get("alt") == "media" else self._about(key)

    def _rewrite(self, source: Key, target: Key, query: dict[str, str]) -> Any:
        self.rewrites.append(query)
        origin = self._objects.get(source)
        if origin is None:
            raise Refused(404)
        there = self._objects.get(target)
        live = {
            "ifSourceGenerationMatch": origin.generation,
            "ifGenerationMatch": 0 if there is None else there.generation,
        }
        if any(int(query[name]) != generation for name, generation in live.items() if name in query):
            raise Refused(412)
        done = self._tokens.pop(query.get("rewriteToken", ""), 0) + self.bytes_per_call
        if done < len(origin.body):
            token = f"token {next(self._generations)}"
            self._tokens[token] = done
            self.between()
            return {"done": False, "rewriteToken": token}
        return {"done": True, "resource": self._write(target, origin.body)}

    def _write(self, key: Key, body: bytes) -> Any:
        self._objects[key] = _Object(next(self._generations), body)
        return self._about(key)

    def _about(self, key: Key) -> Any:
        found = self._objects[key]
        return {"bucket": key[0], "name": key[1], "size": str(len(found.body)), "generation": str(found.generation)}


def _handler(server: GoogleServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status = 200
            try:
                found = server.answer(self.command, parts.path, dict(parse_qsl(parts.query)), body)
            except Refused as refused:
                status, found = refused.status, {"error": {"code": refused.status, "message": "refused"}}
            if "/rewriteTo/" in parts.path and server.lost_replies:
                server.lost_replies -= 1
                return
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            if isinstance(found, bytes) and (wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")):
                status, data = 206, data[int(wanted[1]) : int(wanted[2]) + 1]
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return Handler
