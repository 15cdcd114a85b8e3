"""Stable codes of enum members, for records, JSON and tests."""

from __future__ import annotations

from enum import Enum

_FORMER_NAMES = {"ROLLED_BACK_FILES": "dead_time_line", "QUARANTINE": "aside", "OLD_QUARANTINE": "old_aside"}
"""A renamed member keeps its former code."""


def code(member: Enum) -> str:
    """Return the stable code of a finding, rule, reason or outcome."""
    return _FORMER_NAMES.get(member.name, member.name.lower())
