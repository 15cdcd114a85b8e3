"""One place, one URL: the ways in which Spark, Hadoop and people write the same root, as one."""

from __future__ import annotations

_SAME = {"s3a": "s3", "abfs": "abfss"}
"""Schemes of Hadoop's that name what another one names, through another connector or without TLS."""


def canonical(url: str) -> str:
    """The URL as this library writes it: `s3a://bucket/folder/` is `s3://bucket/folder`. A local path stays as it is."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    scheme = scheme.lower()
    return f"{_SAME.get(scheme, scheme)}://{rest if scheme == 'file' else rest.rstrip('/')}"
