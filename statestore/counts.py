"""Counts in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, which is plural unless the number is 1."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"
