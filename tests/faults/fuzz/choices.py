"""Random choices of damages (a file, a length), and writes of changed files."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.fuzz.files import by_kind


class Inapplicable(Exception):
    """A damage finds no file of its kind."""


def a_file(chance: random.Random, root: Path) -> str:
    """Some file: first its kind is drawn, so that the few logs are hit as often as the many tables."""
    return chance.choice(one_kind_first(chance, by_kind(root)))


def one_kind_first(chance: random.Random, kinds: dict[str, list[str]]) -> list[str]:
    names = sorted(kind for kind in kinds if kind != "sidecar" or chance.random() < 0.4)
    return kinds[chance.choice(names or sorted(kinds))]


def a_length(chance: random.Random, size: int) -> int:
    """A length up to `size`: the ends are as likely as all that is between."""
    return chance.choice((0, 1, size // 2, max(0, size - 1), int(chance.random() * size)))


def sidecar_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.crc")


def written(root: Path, path: str, data: bytes, done: str, chance: random.Random | None = None) -> str:
    """Write new bytes of a file. In half of the random cases, delete its sidecars, so that the file is read."""
    (root / path).write_bytes(data)
    if chance is None or chance.random() < 0.5:
        return f"{path}: {done}"
    for sidecar in (sidecar_of(root / path), root / f"{path}.crc"):
        sidecar.unlink(missing_ok=True)
    return f"{path}: {done}, without sidecars"
