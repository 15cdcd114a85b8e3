"""The S3 clients of this process.

Roots with the same options share a client. A client costs an eighth of a second of CPU time and 13 MB, mostly for
Amazon's service description, and a fleet of hundreds of queries opens each root every 15 seconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import s3fs

_CONNECT_TIMEOUT_SECONDS = 5
_READ_TIMEOUT_SECONDS = 30
_MOST_CONNECTIONS = 64
"""Per client: eight concurrent roots with eight concurrent requests each."""

_CLIENTS: dict[object, s3fs.S3FileSystem] = {}
"""The shared clients by process, options and environment. A fork must not use those of its parent."""


def shared(options: Mapping[str, str]) -> s3fs.S3FileSystem:
    """Return this process's client for these options. Sends no request."""
    # Missing options come from these variables.
    environment = sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))
    key = (os.getpid(), *sorted(options.items()), *environment)
    # `setdefault` gives concurrent threads the same client. A lock could be held during a fork.
    return _CLIENTS.get(key) or _CLIENTS.setdefault(key, _client(options))


def forget(client: s3fs.S3FileSystem) -> None:
    """Stop sharing a client. The next open reads the credentials again, which may have been renewed in their file.

    *Race*: credentials are rotated. A sensor that polls each 15 seconds would be rejected until the process is
    restarted.
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
            # `s3` does the retries, so that they are counted and can be simulated.
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
