"""Local copies belong to one user, and no other user can read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.base.clock import RandomIds
from statekeeper.statestore.base.errors import LocalStateError
from statekeeper.statestore.store.engine.local_copy import LocalCopyFolder
from statekeeper.statestore.store.engine.rocks import EngineLimits
from statekeeper.statestore.store.engine.scratch import user_folder
from tests.support.users import AS_ROOT, GROUP, OTHER, SPARK, as_user, public_folder, umask


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder with the mode of /tmp."""
    with public_folder() as folder:
        folder.chmod(0o1777)
        yield folder


def mode(place: Path) -> int:
    return stat.S_IMODE(place.stat().st_mode)


def copy_in(folder: Path) -> LocalCopyFolder:
    return LocalCopyFolder(folder, EngineLimits(), RandomIds())


def test_a_users_folder_is_private_with_any_umask(tmp_path: Path) -> None:
    with umask(0):
        folder = user_folder(tmp_path / "base")
        copy_in(folder / "root" / "0-0")
    assert folder.name == f"statekeeper-{os.geteuid()}"
    assert (mode(folder), mode(folder / "root" / "0-0")) == (0o700, 0o700)


def test_an_own_folder_that_others_can_read_is_made_private(tmp_path: Path) -> None:
    folder = user_folder(tmp_path)
    folder.chmod(0o755)
    assert mode(user_folder(tmp_path)) == 0o700


@pytest.mark.parametrize("open_it", [user_folder, lambda base: copy_in(base / f"statekeeper-{os.geteuid()}")])
def test_a_link_a_file_or_a_world_writable_folder_is_rejected(tmp_path: Path, open_it) -> None:
    name = tmp_path / f"statekeeper-{os.geteuid()}"
    (tmp_path / "elsewhere").mkdir()
    name.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalStateError, match="is a link"):
        open_it(tmp_path)
    name.unlink()
    name.touch()
    with pytest.raises(LocalStateError, match="is a link or a file"):
        open_it(tmp_path)
    name.unlink()
    name.mkdir()
    name.chmod(0o777)
    with pytest.raises(LocalStateError, match="writable by other users"):
        open_it(tmp_path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@AS_ROOT
def test_two_users_cannot_read_or_prepare_each_others_folders(shared: Path) -> None:
    def prepared_for(user: int) -> None:
        (shared / f"statekeeper-{user}").mkdir(mode=0o700)

    assert as_user(SPARK, lambda: copy_in(user_folder(shared) / "root" / "0-0"), GROUP) == 0
    assert as_user(OTHER, lambda: copy_in(user_folder(shared) / "root" / "0-0"), GROUP) == 0
    assert mode(shared / f"statekeeper-{SPARK}") == 0o700

    def refused() -> None:
        with pytest.raises(PermissionError):
            list((shared / f"statekeeper-{SPARK}").iterdir())
        prepared_for(0)

    assert as_user(OTHER, refused) == 0
    with pytest.raises(LocalStateError, match="belongs to another user"):
        user_folder(shared)
