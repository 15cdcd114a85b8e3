"""One canonical URL per root, for the different forms that Spark, Hadoop and people write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

_SAME = {"s3a": "s3", "abfs": "abfss"}
"""Hadoop's alternative schemes for the same storage, through another connector or without TLS."""


def canonical(url: str) -> str:
    """Return the canonical URL: `s3a://bucket/folder/` is `s3://bucket/folder`. A local path is returned unchanged."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    scheme = scheme.lower()
    return f"{_SAME.get(scheme, scheme)}://{rest if scheme == 'file' else rest.rstrip('/')}"


class Locality(Enum):
    """Whether a location in a file of Spark points to the root that contains the file."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "in another kind of storage, which may be the same location under another scheme"


@dataclass(frozen=True)
class _Parts:
    scheme: str
    authority: str
    path: str

    @property
    def family(self) -> str:
        return _FAMILIES.get(self.scheme, self.scheme)


_FAMILIES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "webhdfs": "hdfs", "swebhdfs": "hdfs"}


def locality(root: str, location: str) -> Locality:
    """Return whether a location, as Spark writes it, is the root with that URL. Follows links on the local disk."""
    ours, theirs = _of_root(root), _parts(location)
    if ours.family != theirs.family:
        return Locality.UNKNOWN
    if ours.family == "file":
        is_here = ours.path == os.path.realpath(theirs.path)
    elif ours.family == "hdfs":
        is_here = ours.path == theirs.path  # the two protocols use different ports of the same host
    else:
        is_here = (ours.authority, ours.path) == (theirs.authority, theirs.path)
    return Locality.HERE if is_here else Locality.ELSEWHERE


def path_below(root: str, location: str) -> str | None:
    """Return the path of a file relative to a root; None if it is not below the root. `location`: the percent-encoded URL
    of the file. Of HDFS only the paths are compared: two protocols of one cluster have different hosts or ports."""
    ours, theirs = _of_root(root), _parts(location)
    if ours.family != theirs.family or (ours.family != "hdfs" and ours.authority != theirs.authority):
        return None
    path, folder = unquote(theirs.path), ours.path.rstrip("/") + "/"
    return path.removeprefix(folder) if path.startswith(folder) else None


def as_spark_writes_it(root: str, like: str) -> str | None:
    """Return the URL of a root in Spark's form, like its former location `like`; None if that does not determine it."""
    ours, before = _of_root(root), _parts(like)
    if ours.family == "file":
        return f"file:{ours.path}"
    if ours.family == before.family:
        authority = before.authority if ours.family == "hdfs" else ours.authority
        return f"{before.scheme}://{authority}{ours.path}"
    if ours.family == "hdfs":
        return None
    return f"{'s3a' if ours.family == 's3' else ours.scheme}://{ours.authority}{ours.path}"


def _of_root(url: str) -> _Parts:
    found = _parts(url)
    return _Parts(found.scheme, found.authority, unquote(found.path)) if found.scheme == "file" else found


def _parts(url: str) -> _Parts:
    scheme, _, rest = url.partition(":")
    authority, path = "", rest
    if rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
        path = f"/{path}"
    return _Parts(scheme.lower(), authority, path.rstrip("/") or "/")
