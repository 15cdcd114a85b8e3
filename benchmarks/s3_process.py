"""An S3 server in a process of its own, so that it does not share the interpreter with the measured code."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

from statekeeper.statestore.storage import StorageSpec
from tests.support.s3_server import S3Server


@contextlib.contextmanager
def s3_process(latency_seconds: float = 0.0) -> Iterator[StorageSpec]:
    """Start a server that waits for `latency_seconds` before each request. Yields an empty root, without hedging."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, latency_seconds), daemon=True)
    process.start()
    try:
        options, bucket = here.recv()
        yield StorageSpec(f"s3://{bucket}", (*options.items(), ("hedge", "false")))
    finally:
        here.send("stop")
        process.join()


def _serve(connection: Connection, latency_seconds: float) -> None:
    server = S3Server()
    server.start()
    connection.send((server.options, server.make_bucket()))
    server.latency_seconds = lambda: latency_seconds
    connection.recv()
    server.stop()
