"""Paths of objects, relative to their root, with '/'."""

from __future__ import annotations


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is the folder or inside it."""
    return path == folder or path.startswith(f"{folder}/")
