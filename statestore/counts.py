"""Counts in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, which is plural unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
