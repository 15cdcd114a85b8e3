"""New files of each writing verb belong to the user of the query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statekeeper.statestore.cli import main
from statekeeper.statestore.format import names
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.faulty_storage import Fault
from tests.support.maintainers import MAINTAINER
from tests.support.structures import as_sparks, without_ids
from tests.support.switching import abort, after_the_dead, die_at, structure_of
from tests.support.users import AS_ROOT, GROUP, OTHER, SPARK, as_user, give, owned, public_folder, umask

pytestmark = AS_ROOT

FILES, FOLDERS = 0o640, 0o750


@pytest.fixture(scope="module", params=["own", "native, V1", "native, V2"])
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("prepared")
    made = Checkpoint(open_storage(str(folder / "root")), folder / "job")
    made.grow(6)
    if request.param != "own":
        as_sparks(made)
    if request.param == "native, V1":
        without_ids(made)
    return made


@pytest.fixture
def root(prepared: Checkpoint) -> Iterator[Path]:
    """A checkpoint of the user of the query, maintained by root with umask 077."""
    with public_folder() as folder, umask(0o077):
        prepared.copied_to(open_storage(str(folder / "root")), folder / "job")
        give(folder / "root", files=FILES, folders=FOLDERS)
        yield folder / "root"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=MAINTAINER)


def is_the_querys(root: Path) -> bool:
    """Each file and folder: those of before, and all that was added."""
    expected = {False: (SPARK, GROUP, FILES), True: (SPARK, GROUP, FOLDERS)}
    found = owned(root)
    wrong = {name: about for name, about in found.items() if about != expected[(root / name).is_dir()]}
    assert not wrong, wrong
    return True


def test_snapshots_and_garbage_collection(root: Path) -> None:
    assert run("snapshot", root, "--all", "--mode", "full").exit_code == 0
    assert list(root.rglob("*.zip"))
    assert is_the_querys(root)
    done = run("gc", root, "--retain", "1", "--grace", "0s", "--apply", "--mode", "full")
    assert done.exit_code == 0, done.output
    assert is_the_querys(root)


def test_a_switch_and_the_switch_back(root: Path) -> None:
    first = structure_of(open_storage(str(root)))
    for to in (first.other, first):
        done = run("switch", root, "--to", to.value, "--apply", "--confirm-stopped")
        assert done.exit_code == 0, done.output
        assert is_the_querys(root)
        assert structure_of(open_storage(str(root))) is to


def test_an_aborted_switch(root: Path, tmp_path: Path) -> None:
    storage = open_storage(str(root))
    # Its own mode stays with a file that is quarantined and put back.
    changelog = next(root.glob("state/0/0/1*.changelog"))
    other = structure_of(storage).other
    die_at(storage, other, tmp_path, lambda request: request.path == names.commits(5), Fault.AFTER)
    assert is_the_querys(root)
    abort(storage, clock=after_the_dead())
    assert is_the_querys(root)
    assert changelog.exists()
    assert structure_of(storage) is other.other


def test_a_repair_and_its_undo_keep_the_mode_of_each_file(root: Path) -> None:
    # The newest batch is taken back: its changelogs are in the way of the one that comes.
    for log in (names.COMMITS, names.OFFSETS):
        (root / log / "5").unlink()
    in_the_way = list((root / names.STATE).rglob("6*.changelog"))
    for path in in_the_way:
        path.chmod(0o604)
    before = owned(root)
    done = run("repair", root, "--apply", "--confirm-stopped")
    assert done.exit_code == 0, done.output
    assert not any(path.exists() for path in in_the_way), done.output
    quarantined = list((root / names.QUARANTINE).rglob("*.changelog"))
    assert {owned(root)[str(path.relative_to(root))] for path in quarantined} == {(SPARK, GROUP, 0o604)}
    undone = run(
        "repair",
        root,
        "--undo",
        quarantined[0].relative_to(root / names.QUARANTINE).parts[0],
        "--apply",
        "--confirm-stopped",
    )
    assert undone.exit_code == 0, undone.output
    assert {path: about for path, about in owned(root).items() if path in before} == before
    for path in in_the_way:
        path.chmod(FILES)
    assert is_the_querys(root)


@pytest.mark.parametrize(
    "verb",
    [
        ("snapshot", "--all", "--mode", "full"),
        ("gc", "--retain", "1", "--grace", "0s", "--apply", "--mode", "full"),
        ("switch", "--to", "other", "--apply", "--confirm-stopped"),
    ],
    ids=lambda verb: verb[0],
)
def test_a_maintainer_that_is_neither_root_nor_owner_is_rejected_before_it_writes(
    root: Path, verb: tuple[str, ...]
) -> None:
    if verb[0] == "gc":
        assert run("snapshot", root, "--all", "--mode", "full").exit_code == 0
    storage = open_storage(str(root))
    give(root, files=0o666, folders=0o777)
    before = owned(root), {entry.path: storage.read(entry.path) for entry in storage.list("")}
    to = structure_of(storage).other.value
    name, *options = [to if word == "other" else word for word in verb]
    scratch = root.parent / "scratch"
    scratch.mkdir(mode=0o777)
    scratch.chmod(0o777)

    def refused() -> None:
        given = ("--scratch", scratch) if name != "gc" else ()
        done = run(name, root, *options, *given)
        assert done.exit_code == 13, done.output
        assert f"belongs to user {SPARK}" in done.output, done.output

    assert as_user(OTHER, refused) == 0
    assert (owned(root), {entry.path: storage.read(entry.path) for entry in storage.list("")}) == before
