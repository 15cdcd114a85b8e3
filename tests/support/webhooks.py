"""A server that gets messages, as a chat does."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Webhook:
    """The bodies that it received, and its answers. `hangs`: it receives a message and never answers."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status, self.hangs = 200, False
        self.received, self._ended = threading.Event(), threading.Event()
        hook = self

        class Hook(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                hook.received.set()
                if hook.hangs:
                    hook._ended.wait()
                    return
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    @property
    def texts(self) -> list[str]:
        return [body["text"] for body in self.bodies]

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Webhook]:
        made = cls()
        threading.Thread(target=made._server.serve_forever, daemon=True).start()
        yield made
        made._ended.set()
        made._server.shutdown()
        made._server.server_close()
