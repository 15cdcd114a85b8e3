"""Paths of objects, relative to their root, with '/'."""

from __future__ import annotations


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is the folder or inside it."""
    return path == folder or path.startswith(f"{folder}/")


def printable(path: str) -> str:
    """The path with undecodable bytes and control characters as escapes."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
