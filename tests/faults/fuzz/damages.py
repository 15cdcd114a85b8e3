"""Damages of a checkpoint on disk: each changes a tree and describes the change.

A damage draws all it needs from one source of chance, out of names in a fixed order: a seed gives the same damage again.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.faults.fuzz.choices import a_file, a_length, sidecar_of, written
from tests.faults.fuzz.files import by_kind, files_of, folders_of
from tests.faults.fuzz.forgeries import json_value, repack_batch_log, repack_changelog, repack_snapshot

Damage = Callable[[random.Random, Path], str]

_STRANGE_NAMES = (
    b"\xff\xfe.changelog",
    b"7_\xc3\x28.zip",
    b"x" * 250 + b".zip",
    b"9" * 200,
    "٣.changelog".encode(),
    "٣".encode(),
    "²".encode(),
    b"007.changelog",
    b"-1.changelog",
    b"0.changelog",
    b"1e3",
    b"99999999999999999999.changelog",
    b"9223372036854775807.zip",
    b"4_.zip",
    b"4_00000000-0000-4000-8000-000000000000.zip",
    b"4_00000000-0000-4000-8000-00000000000G.changelog",
    b"..4.changelog",
    b"...",
    b".hidden",
    b" 4.zip",
    b"4.zip ",
    b"4.zip.tmp",
    b"new\nline.zip",
    b"\x1b[31mred.zip",
    b"[/red] and [bold].changelog",
    b"%2e%2e.zip",
    b"a\\b.zip",
    b"*?.sst",
)


def flip(chance: random.Random, root: Path) -> str:
    """Flip a few bits of a file."""
    path = a_file(chance, root)
    data = bytearray((root / path).read_bytes())
    for _ in range(chance.choice((1, 1, 2, 16))):
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return written(root, path, bytes(data), "bits flipped")


def truncate(chance: random.Random, root: Path) -> str:
    """Cut a file short."""
    path = a_file(chance, root)
    data = (root / path).read_bytes()
    return written(root, path, data[: a_length(chance, len(data))], "truncated")


def zero(chance: random.Random, root: Path) -> str:
    """Set a range of a file to zeros."""
    path = a_file(chance, root)
    data = bytearray((root / path).read_bytes())
    start, length = a_length(chance, len(data)), chance.choice((1, 8, 512, len(data)))
    data[start : start + length] = bytes(len(data[start : start + length]))
    return written(root, path, bytes(data), "zeros")


def append(chance: random.Random, root: Path) -> str:
    """Add bytes to a file."""
    path = a_file(chance, root)
    data = (root / path).read_bytes()
    more = chance.choice((b"\0", b"\n", b"{}", chance.randbytes(100), data))
    return written(root, path, data + more, "more bytes at the end")


def delete(chance: random.Random, root: Path) -> str:
    """Delete a file or two, with or without its sidecar."""
    gone = [a_file(chance, root) for _ in range(chance.choice((1, 1, 2)))]
    for path in gone:
        (root / path).unlink(missing_ok=True)
        if chance.random() < 0.5:
            sidecar_of(root / path).unlink(missing_ok=True)
    return f"deleted {gone}"


def delete_folder(chance: random.Random, root: Path) -> str:
    """Delete a folder with all that is in it."""
    path = chance.choice(folders_of(root))
    shutil.rmtree(root / path)
    return f"deleted {path}/"


def rename(chance: random.Random, root: Path) -> str:
    """Give a file another name: another version, another kind, another folder."""
    path = a_file(chance, root)
    place = root / path
    number = str(chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 2**62)))
    head, found, rest = place.name.partition("_")
    names = [
        f"{number}_{rest}" if found else number + "".join(place.suffixes[-1:]),
        place.name + ".tmp",
        f"{place.stem}.zip",
        f"{place.stem}.changelog",
        "." + place.name,
        head,
    ]
    folder = chance.choice([".", ".", "..", *folders_of(root)])
    target = (place.parent / folder if folder in (".", "..") else root / folder) / chance.choice(names)
    if target.is_dir() or not target.resolve().is_relative_to(root.resolve()):
        target = place.parent / f"{number}.renamed"
    place.rename(target)
    return f"renamed {path} to {target.resolve().relative_to(root.resolve())}"


def swap(chance: random.Random, root: Path) -> str:
    """Exchange two files of one kind: of two stores, operators or versions; with or without their sidecars."""
    kinds = [of_kind for of_kind in by_kind(root).values() if len(of_kind) > 1]
    one, two = chance.sample(chance.choice(kinds), 2)
    with_sidecars = chance.random() < 0.5
    pairs = [(root / one, root / two)]
    if with_sidecars:
        pairs.append((sidecar_of(root / one), sidecar_of(root / two)))
    for first, second in pairs:
        if first.exists() and second.exists():
            between = first.with_name(first.name[:100] + ".between")
            first.rename(between)
            second.rename(first)
            between.rename(second)
    return f"swapped {one} and {two}{', with sidecars' if with_sidecars else ''}"


def overwrite(chance: random.Random, root: Path) -> str:
    """Put the bytes of one file in place of another's; most are of the same kind."""
    kinds = by_kind(root)
    target = a_file(chance, root)
    alike = next(of_kind for of_kind in kinds.values() if target in of_kind)
    source = chance.choice(alike if chance.random() < 0.8 else files_of(root))
    return written(root, target, (root / source).read_bytes(), f"the bytes of {source}", chance)


def copy(chance: random.Random, root: Path) -> str:
    """Leave a file a second time, under another version's name or in another store."""
    path = a_file(chance, root)
    place = root / path
    _, found, rest = place.name.partition("_")
    number = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50))
    name = f"{number}_{rest}" if found else f"{number}{place.suffix}"
    target = chance.choice((place.with_name(name), root / chance.choice(folders_of(root)) / place.name))
    if target.is_dir():
        target = target.with_name("a copy")
    target.write_bytes(place.read_bytes())
    return f"copied {path} to {target.relative_to(root)}"


def strange_name(chance: random.Random, root: Path) -> str:
    """Add a file or a folder whose name nothing should have."""
    folder = chance.choice(["", *folders_of(root)])
    name = chance.choice(_STRANGE_NAMES)
    target = os.fsencode(root / folder) + b"/" + name
    what = chance.choice(("file", "empty file", "folder", "link", "FIFO"))
    if not os.path.lexists(target):
        _place(chance, root, target, what)
    return f"{what} {folder}/{name!r}"


def other_kind(chance: random.Random, root: Path) -> str:
    """Put a folder, a FIFO, a socket or a link where a file was, or a file where a folder was."""
    if chance.random() < 0.2:
        path = chance.choice(folders_of(root))
        shutil.rmtree(root / path)
        (root / path).write_bytes(b"a file")
        return f"a file instead of {path}/"
    path = a_file(chance, root)
    what = chance.choice(("folder", "FIFO", "socket", "link", "dangling link", "link to itself", "link to a folder"))
    data = (root / path).read_bytes()
    (root / path).unlink()
    _place(chance, root, os.fsencode(root / path), what, data)
    return f"{what} instead of {path}"


def linked_folder(chance: random.Random, root: Path) -> str:
    """Move a folder out of the root and leave a link to it."""
    path = chance.choice(folders_of(root))
    moved = root.parent / "outside" / f"moved {path.replace('/', ' ')}"
    (root / path).rename(moved)
    (root / path).symlink_to(moved)
    return f"{path}/ moved outside, a link instead"


def sparse(chance: random.Random, root: Path) -> str:
    """Make a file 20 GB long with a hole, or put such a one where a log would be."""
    path = chance.choice((a_file(chance, root), "commits/0", "offsets/99", "commits/99"))
    (root / path).parent.mkdir(exist_ok=True)
    with (root / path).open("r+b" if (root / path).exists() else "wb") as file:
        file.truncate(20 * 10**9)
    return f"{path} is 20 GB long"


DAMAGES: dict[str, tuple[Damage, int]] = {
    "bits flipped": (flip, 4),
    "truncated": (truncate, 3),
    "zeroed": (zero, 2),
    "bytes added": (append, 1),
    "deleted": (delete, 3),
    "folder deleted": (delete_folder, 1),
    "renamed": (rename, 3),
    "swapped": (swap, 4),
    "overwritten": (overwrite, 2),
    "copied": (copy, 2),
    "strange name": (strange_name, 3),
    "other kind of file": (other_kind, 3),
    "folder linked": (linked_folder, 1),
    "huge": (sparse, 1),
    "JSON changed": (json_value, 5),
    "changelog packed again": (repack_changelog, 3),
    "snapshot packed again": (repack_snapshot, 4),
    "batch log packed again": (repack_batch_log, 4),
}
"""Each damage with its weight."""


def _place(chance: random.Random, root: Path, target: bytes, what: str, data: bytes = b"some bytes") -> None:
    outside = root.parent / "outside"
    if what == "folder":
        os.mkdir(target)
        if chance.random() < 0.5:
            with open(target + b"/1.changelog", "wb") as file:
                file.write(data)
    elif what == "FIFO":
        os.mkfifo(target)
    elif what == "socket":
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(target)
        except OSError:  # the path is too long for a socket
            os.mkfifo(target)
    elif what == "link":
        kept = outside / f"linked {zlib.crc32(data)}"
        kept.write_bytes(data)
        os.symlink(os.fsencode(kept), target)
    elif what == "dangling link":
        os.symlink(b"/nowhere", target)
    elif what == "link to itself":
        os.symlink(os.path.basename(target), target)
    elif what == "link to a folder":
        os.symlink(os.fsencode(outside), target)
    else:
        with open(target, "wb") as file:
            file.write(b"" if what == "empty file" else data)
