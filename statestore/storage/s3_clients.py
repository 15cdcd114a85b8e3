"""The clients of S3 of this process.

Roots with the same options share a client: one costs an eighth of a second of a processor and 13 MB, nearly all of it for
Amazon's description of its own service, and who looks after hundreds of queries opens each of them every 15 seconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import s3fs

_CONNECT_TIMEOUT_SECONDS = 5
_READ_TIMEOUT_SECONDS = 30
_MOST_CONNECTIONS = 64
"""Of a client: eight roots are looked at at once, each with eight requests at a time."""

_CLIENTS: dict[object, s3fs.S3FileSystem] = {}
"""What is shared, by process, options and environment: a fork must not use what its parent has opened."""


def shared(options: Mapping[str, str]) -> s3fs.S3FileSystem:
    """The client of this process for such options. Nothing is requested yet."""
    # What is not in the options comes from these.
    environment = sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))
    key = (os.getpid(), *sorted(options.items()), *environment)
    # Of two threads that come at once both get the same one, without a lock that a fork might find taken.
    return _CLIENTS.get(key) or _CLIENTS.setdefault(key, _client(options))


def forget(client: s3fs.S3FileSystem) -> None:
    """Share it no more: who opens the root again reads the credentials again, which may have been renewed in their file.

    *The losing schedule*: credentials are rotated; who asks each 15 seconds is refused until the process is restarted.
    """
    for key, shared in list(_CLIENTS.items()):
        if shared is client:
            _CLIENTS.pop(key, None)


def _client(options: Mapping[str, str]) -> s3fs.S3FileSystem:
    region = options.get("region") or os.environ.get("AWS_REGION")  # botocore itself reads AWS_DEFAULT_REGION only
    return s3fs.S3FileSystem(
        anon=options.get("anon", "false").lower() == "true",
        endpoint_url=options.get("endpoint_url"),
        key=options.get("key"),
        secret=options.get("secret"),
        client_kwargs={"region_name": region} if region else {},
        config_kwargs={
            "connect_timeout": _CONNECT_TIMEOUT_SECONDS,
            "read_timeout": _READ_TIMEOUT_SECONDS,
            "max_pool_connections": _MOST_CONNECTIONS,
            # Retries are made here: hidden ones could be neither counted nor replayed.
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
