"""Codes for programs: records, JSON and tests show an enum's member by its code."""

from __future__ import annotations

from enum import Enum

_FORMER_NAMES = {"ROLLED_BACK_FILES": "dead_time_line", "QUARANTINE": "aside", "OLD_QUARANTINE": "old_aside"}
"""Codes do not change: a member that is renamed keeps the code that it had."""


def code(member: Enum) -> str:
    """The stable code of a finding, rule, reason or outcome."""
    return _FORMER_NAMES.get(member.name, member.name.lower())
