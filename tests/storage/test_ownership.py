"""The ownership of new files on a local disk, for any umask of the writer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import ForeignOwner, StorageError
from statekeeper.statestore.storage import open_storage
from tests.support.users import AS_ROOT, GROUP, OTHER, SPARK, as_user, give, owned, public_folder, umask

PRIVATE = 0o077


@pytest.fixture
def root() -> Iterator[Path]:
    """A root with a world-readable changelog."""
    with public_folder() as folder:
        root = folder / "root"
        store = root / "state" / "0" / "3"
        store.mkdir(parents=True)
        (store / "1.changelog").write_bytes(b"1")
        (root / "metadata").write_bytes(b"{}")
        give(root)
        yield root


def mode(place: Path) -> int:
    return stat.S_IMODE(place.stat().st_mode)


def test_a_new_file_has_the_mode_of_adjacent_files_for_any_umask(tmp_path: Path) -> None:
    (tmp_path / "root/state/0/3").mkdir(parents=True)
    beside = tmp_path / "root/state/0/3/1.changelog"
    beside.write_bytes(b"1")
    beside.chmod(0o640)
    beside.parent.chmod(0o750)
    with umask(PRIVATE):
        storage = open_storage(str(tmp_path / "root"))
        storage.create("state/0/3/2.zip", b"2")
        storage.create("state/0/3/SSTs/000004-x.sst", b"table")
    assert mode(beside.with_name("2.zip")) == 0o640
    assert mode(beside.with_name("SSTs")) == 0o750
    assert mode(beside.with_name("SSTs") / "000004-x.sst") == 0o640


def test_a_replaced_file_keeps_its_mode_and_a_moved_one_too(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for name in ("commits/1", "commits/2"):
        storage.create(name, b"v1")
    (tmp_path / "commits/1").chmod(0o604)
    with umask(PRIVATE):
        storage.replace("commits/1", b"v2")
        assert mode(tmp_path / "commits/1") == 0o604
        storage.create("_statekeeper/aside/run/commits/1", b"v2", like="commits/1")
        storage.delete(["commits/1"])
        assert mode(tmp_path / "_statekeeper/aside/run/commits/1") == 0o604
        storage.create("commits/1", b"v2", like="_statekeeper/aside/run/commits/1")
    assert mode(tmp_path / "commits/1") == 0o604


def test_in_an_empty_root_files_take_the_ownership_of_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o2770)
    with umask(PRIVATE):
        open_storage(str(root)).create("commits/0", b"v1")
    assert mode(root / "commits") == 0o2770
    assert mode(root / "commits/0") == 0o660


@AS_ROOT
@pytest.mark.parametrize("bits", [0o022, PRIVATE])
def test_files_created_by_root_belong_to_the_user_of_the_query(root: Path, bits: int) -> None:
    with umask(bits):
        storage = open_storage(str(root))
        storage.require_ownership()
        storage.create("state/0/3/2.zip", b"2")
        storage.create("state/0/3/SSTs/000004-x.sst", b"table")
        storage.replace("state/0/3/1.changelog", b"3")
        storage.create("_statekeeper/lease/00000001.json", b"{}")
    assert {name[:2] for name in owned(root).values()} == {(SPARK, GROUP)}
    assert {about[2] for name, about in owned(root).items() if (root / name).is_file()} == {0o644}
    assert {about[2] for name, about in owned(root).items() if (root / name).is_dir()} == {0o755}

    def goes_on() -> None:
        assert (root / "state/0/3/2.zip").read_bytes() == b"2"
        (root / "state/0/3/SSTs/000005-y.sst").write_bytes(b"Spark's")
        open_storage(str(root)).create("_statekeeper/pending/1", b"{}")

    assert as_user(SPARK, goes_on) == 0


@AS_ROOT
def test_a_folder_of_a_group_keeps_its_group(root: Path) -> None:
    give(root, user=0, group=GROUP, files=0o664, folders=0o2775)
    with umask(PRIVATE):
        open_storage(str(root)).create("state/0/3/SSTs/000004-x.sst", b"table")
    assert owned(root)["state/0/3/SSTs"] == (0, GROUP, 0o2775)
    assert owned(root)["state/0/3/SSTs/000004-x.sst"] == (0, GROUP, 0o664)


@AS_ROOT
@pytest.mark.parametrize("foreign", ["all", "one store", "only files"])
def test_a_user_who_cannot_set_the_owner_is_rejected_before_any_write(root: Path, foreign: str) -> None:
    give(root, user=SPARK if foreign == "all" else OTHER, files=0o666, folders=0o777)
    if foreign == "one store":
        give(root / "state/0/3", files=0o666, folders=0o777)
    if foreign == "only files":
        os.chown(root / "state/0/3/1.changelog", SPARK, GROUP)
    before = owned(root)

    def refused() -> None:
        with pytest.raises(ForeignOwner, match=rf"belongs to user {SPARK} .* run the command as user {SPARK}"):
            open_storage(str(root)).require_ownership()

    assert as_user(OTHER, refused) == 0
    assert owned(root) == before
    give(root)
    assert as_user(SPARK, open_storage(str(root)).require_ownership) == 0


@AS_ROOT
def test_a_user_outside_of_the_group_is_rejected(root: Path) -> None:
    def refused() -> None:
        with pytest.raises(ForeignOwner, match=f"group {GROUP}"):
            open_storage(str(root)).require_ownership()

    assert as_user(SPARK, refused, group=GROUP + 1) == 0


@AS_ROOT
def test_a_link_planted_in_place_of_a_new_folder_does_not_change_another_owner(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = root.parent / "victim"
    victim.mkdir()
    mkdir = Path.mkdir

    def swapped(self: Path, *args: int, **how: int) -> None:
        mkdir(self, *args, **how)
        if self.name == "SSTs":
            self.rmdir()
            self.symlink_to(victim)

    monkeypatch.setattr(Path, "mkdir", swapped)
    with pytest.raises(StorageError):
        open_storage(str(root)).create("state/0/3/SSTs/000004-x.sst", b"table")
    assert victim.stat().st_uid == 0
