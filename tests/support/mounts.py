"""File systems of their own in a file, for tests of a local disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SIZE_BYTES = 512 * 1024**2
"""Of the file system. The file is sparse."""


@contextmanager
def two_places(kind: str) -> Iterator[tuple[Path, Path]]:
    """Two folders of one new file system between which hard links are not possible: two mounts of XFS, or two subvolumes
    of Btrfs. Skips the test if this machine cannot mount it."""
    if os.geteuid() != 0 or shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"needs root and mkfs.{kind}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image, whole, other = folder / "image", folder / "whole", folder / "the other mount"
        with image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        _run(f"mkfs.{kind}", "-q", str(image))
        with _mounted("-o", "loop", str(image), str(whole)):
            one, two = whole / "one", whole / "two"
            if kind == "btrfs":
                for place in (one, two):
                    _run("btrfs", "subvolume", "create", str(place))
                yield one, two
                return
            for place in (one, two):
                place.mkdir()
            with _mounted("--bind", str(two), str(other)):
                yield one, other


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """A new folder in memory that has room for this many bytes. Skips the test if this machine cannot mount it."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    with _mounted("-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(place)):
        yield place


def fill(place: Path, *, left_bytes: int = 0) -> Path:
    """Write a file that leaves only this much space on a file system, and return it."""
    path = place / "all the space"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(64 * 1024))
    os.truncate(path, path.stat().st_size - left_bytes)
    return path


def used_bytes(place: Path) -> int:
    """The bytes in use on a file system, after all of its writes."""
    os.sync()
    about = os.statvfs(place)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


@contextmanager
def _mounted(*arguments: str) -> Iterator[None]:
    place = Path(arguments[-1])
    place.mkdir()
    try:
        _run("mount", *arguments)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot mount: {error.stderr}")
    try:
        yield
    finally:
        _run("umount", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
