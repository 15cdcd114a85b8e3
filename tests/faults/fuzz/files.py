"""A checkpoint as a tree of files, including links, FIFOs, sparse files and names that are not text."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections import defaultdict
from pathlib import Path

_SPARSE_BYTES = 64 * 1024 * 1024

_KINDS = (
    ("commit", re.compile(r"commits/[0-9]+")),
    ("offset", re.compile(r"offsets/[0-9]+")),
    ("query metadata", re.compile(r"metadata")),
    ("state schema", re.compile(r"state/.*(_stateSchema/.*|_metadata/schema)")),
    ("operator metadata", re.compile(r"state/.*_metadata/.*")),
    ("changelog", re.compile(r"state/.*\.changelog")),
    ("snapshot", re.compile(r"state/.*\.zip")),
    ("table", re.compile(r"state/.*/SSTs/[^/]*")),
    ("archived log", re.compile(r"state/.*/logs/[^/]*")),
    ("sidecar", re.compile(r"(?:.*/)?[^/]*\.crc")),
    ("batch log", re.compile(r"_statekeeper/log/.*")),
    ("control", re.compile(r"_statekeeper/.*")),
)
TEXTS = ("commit", "offset", "query metadata", "state schema", "operator metadata", "control")
"""Kinds that hold JSON, as far as they hold text."""


def files_of(root: Path) -> list[str]:
    """The regular files below a folder, relative to it, ascending."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            place = Path(folder, name)
            if stat.S_ISREG(place.lstat().st_mode):
                found.append(str(place.relative_to(root)))
    return sorted(found)


def folders_of(root: Path) -> list[str]:
    """The folders below a folder, relative to it, ascending."""
    return sorted(str(Path(folder).relative_to(root)) for folder, _, _ in os.walk(root) if folder != str(root))


def by_kind(root: Path) -> dict[str, list[str]]:
    """Return the files of a checkpoint by kind."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in files_of(root):
        found[next((kind for kind, pattern in _KINDS if pattern.fullmatch(path)), "other")].append(path)
    return dict(found)


def fingerprint(root: Path, *below: str) -> str:
    """Return a digest of names, kinds, sizes and times of all files below these folders; by default, below all folders
    except `_statekeeper`."""
    digest = hashlib.sha256()
    for name in below or ("",):
        top = root / name
        for folder, folders, names in os.walk(top):
            folders.sort()
            if folder == str(root) and "_statekeeper" in folders and not below:
                folders.remove("_statekeeper")
            for entry in sorted([*folders, *names]):
                place = Path(folder, entry)
                about = place.lstat()
                is_folder = stat.S_ISDIR(about.st_mode)
                seen = (str(place.relative_to(root)), about.st_mode, *(() if is_folder else _seen(about)))
                digest.update(repr(seen).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _seen(about: os.stat_result) -> tuple[int, int]:
    return about.st_size, about.st_mtime_ns


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree with its links, FIFOs, holes and times."""
    target.mkdir(parents=True)
    for item in os.scandir(source):
        place = target / item.name
        mode = item.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            copy_tree(Path(item.path), place)
        elif stat.S_ISREG(mode):
            _copy_file(Path(item.path), place)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(item.path), place)
        elif stat.S_ISFIFO(mode):
            os.mkfifo(place)


def _copy_file(source: Path, target: Path) -> None:
    about = source.lstat()
    if about.st_size > _SPARSE_BYTES:
        with target.open("wb") as file:
            file.truncate(about.st_size)
    else:
        shutil.copyfile(source, target)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
