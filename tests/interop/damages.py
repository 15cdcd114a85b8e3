"""Damage to one file of a checkpoint, and the class of facts that the audit does not prove of such a file."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from statekeeper.statestore.maintenance.upkeep.audit import Audit

_CLASSES: tuple[tuple[str, str], ...] = (
    ("commit", r"commits/[0-9]+"),
    ("offsets", r"offsets/[0-9]+"),
    ("query metadata", r"metadata"),
    ("source log", r"sources/.*/[0-9]+"),
    ("operator metadata", r"state/\d+/_metadata/(metadata|v2/\d+)"),
    ("state schema", r"state/\d+/(_stateSchema/.*|0/(.*/)?_metadata/schema)"),
    ("changelog", r"state/.*\.changelog"),
    ("snapshot", r"state/.*\.zip"),
    ("table", r"state/.*\.sst"),
    ("archived log", r"state/.*/logs/.*\.log"),
    ("sidecar", r"state/.*[a-z]\.crc"),
)


@dataclass(frozen=True)
class Damage:
    """`kind`: the kind of damage; `has_checksum`: whether Hadoop's hidden checksum of the undamaged file is beside it."""

    kind: str
    file_class: str
    file: str
    has_checksum: bool


def file_class(path: str) -> str | None:
    """The kind of a file, by its path; None for hidden ones."""
    return next((name for name, pattern in _CLASSES if re.fullmatch(pattern, path)), None)


def some_damage(checkpoint: Path, chance: random.Random) -> Damage:
    """Damage a file: any class of files is as likely as another."""
    by_class: dict[str, list[Path]] = {}
    for path in sorted(checkpoint.rglob("*")):
        kind = None if path.name.startswith(".") else file_class(str(path.relative_to(checkpoint)))
        if path.is_file() and kind is not None:
            by_class.setdefault(kind, []).append(path)
    kind = chance.choice(sorted(by_class))
    path = chance.choice(by_class[kind])
    others = [one for one in by_class[kind] if one != path and one.read_bytes() != path.read_bytes()]
    name = chance.choice(["deleted", "truncated", "flipped", "swapped"])
    if (name == "swapped" and not others) or (name in ("flipped", "truncated") and not path.stat().st_size):
        name = "deleted"
    hidden = path.with_name(f".{path.name}.crc")
    is_beside = hidden.exists()
    if chance.random() < 0.5:
        hidden.unlink(missing_ok=True)
        is_beside = False
    if name == "swapped":
        other = chance.choice(others)
        _swapped(path, other)
    else:
        _DAMAGES[name](path, chance)
    return Damage(name, kind, str(path.relative_to(checkpoint)), is_beside)


def _deleted(path: Path, _: random.Random) -> None:
    path.unlink()


def _truncated(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def _flipped(path: Path, chance: random.Random) -> None:
    body = bytearray(path.read_bytes())
    body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    path.write_bytes(body)


def _swapped(one: Path, other: Path) -> None:
    """Whole files, with the hidden checksums that fit them."""
    for left, right in ((one, other), (one.with_name(f".{one.name}.crc"), other.with_name(f".{other.name}.crc"))):
        between = left.with_name("between")
        if left.exists():
            left.rename(between)
        if right.exists():
            right.rename(left)
        if between.exists():
            between.rename(right)


_DAMAGES: Mapping[str, Callable[[Path, random.Random], None]] = {
    "deleted": _deleted,
    "truncated": _truncated,
    "flipped": _flipped,
}


def unproven(damage: Damage, found: Audit) -> str | None:
    """Return the class of unproved properties that the damage belongs to; None if it belongs to none."""
    for name, (applies, text) in _UNPROVEN.items():
        if applies(damage) and any(text in one for one in found.unproven):
            return name
    return None


def _is_source(damage: Damage) -> bool:
    return damage.file_class == "source log"


def _has_no_checksum(damage: Damage) -> bool:
    """A changed byte in a small text: where Hadoop keeps a checksum of it, the audit compares it."""
    texts = ("commit", "offsets", "query metadata", "operator metadata", "state schema")
    return damage.kind == "flipped" and damage.file_class in texts and not damage.has_checksum


def _is_swapped(damage: Damage) -> bool:
    """Two whole files have exchanged their names, with their checksum files."""
    return damage.kind == "swapped" and damage.file_class not in ("snapshot", "table")


def _has_no_guard(damage: Damage) -> bool:
    """A wrong byte where the codec keeps no checksums."""
    return damage.kind == "flipped" and damage.file_class == "changelog"


_UNPROVEN: Mapping[str, tuple[Callable[[Damage], bool], str]] = {
    "files of sources": (_is_source, "the progress files of sources"),
    "logs and descriptions without a checksum": (_has_no_checksum, "the binding have no checksums"),
    "whole files under each other's names": (_is_swapped, "replaced by another valid file of the same name"),
    "changelogs of a codec without checksums": (_has_no_guard, "have no checksums: without a checksum file"),
}
