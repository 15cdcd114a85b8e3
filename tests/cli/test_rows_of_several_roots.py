"""`statekeeper dump` and `statekeeper diff` for several roots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import VersionNotLoadable
from statekeeper.statestore.storage import open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.commands import run
from tests.support.counted_state import SCHEMA, changes


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """Two roots of one store: two versions with the keys a and b, one version with the key z."""
    names = ("orders", "clicks")
    made = [
        Checkpoint(open_storage(str(tmp_path / name)), tmp_path / f"{name} job", schema=SCHEMA, partitions=1)
        for name in names
    ]
    made[0].batch(changes(a=1))
    made[0].batch(changes(b=2))
    made[1].batch(changes(z=9))
    return tmp_path / "orders", tmp_path / "clicks"


def damage(root: Path) -> None:
    [changelog, *_] = sorted((root / "state/0/0").glob("*.changelog"))
    changelog.write_bytes(b"not a changelog")


def test_the_rows_of_several_roots_are_one_json_object(roots: tuple[Path, Path]) -> None:
    result = run("dump", *roots, "--output", "json")
    first, second = json.loads(result.stdout)["roots"]
    assert (result.exit_code, first["root"], second["root"]) == (0, str(roots[0]), str(roots[1]))
    assert [sorted(row["key"]["name"] for row in one["rows"]) for one in (first, second)] == [["a", "b"], ["z"]]
    assert [(one["version"], one["shown"], one["exit_code"]) for one in (first, second)] == [(2, 2, 0), (1, 1, 0)]


def test_each_line_names_its_root_if_there_are_several(roots: tuple[Path, Path]) -> None:
    lines = [json.loads(line) for line in run("dump", *roots, "--output", "jsonl").stdout.splitlines()]
    assert sorted((line["root"], line["key"]["name"]) for line in lines) == sorted(
        [(str(roots[0]), "a"), (str(roots[0]), "b"), (str(roots[1]), "z")]
    )
    [alone] = run("dump", roots[1], "--output", "jsonl").stdout.splitlines()
    assert "root" not in json.loads(alone)


def test_a_heading_precedes_the_tables_of_each_root(roots: tuple[Path, Path]) -> None:
    shown = run("diff", *roots).stdout
    assert shown.index(f"== {roots[0]}") < shown.index("1 added") < shown.index(f"== {roots[1]}")
    assert shown.count("1 added") == 2


def test_the_newest_batch_of_all_configured_roots_is_compared(roots: tuple[Path, Path], tmp_path: Path) -> None:
    lines = [f'[roots.{root.name}]\nurl = "{root}"\n' for root in roots]
    (tmp_path / "statekeeper.toml").write_text("\n".join(lines))
    shown = run("--config", tmp_path / "statekeeper.toml", "diff", "--all", "--output", "json").stdout
    found = {one["root"]: [row["key"]["name"] for row in one["changes"]] for one in json.loads(shown)["roots"]}
    assert found == {"orders": ["b"], "clicks": ["z"]}


@pytest.mark.parametrize("verb", ["dump", "diff"])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_root_does_not_hide_the_rows_of_another(roots: tuple[Path, Path], verb: str, damaged: int) -> None:
    damage(roots[damaged])
    result = run(verb, *roots, "--output", "json")
    shown = json.loads(result.stdout)["roots"]
    assert result.exit_code == shown[damaged]["exit_code"] == VersionNotLoadable.exit_code
    assert shown[damaged]["error"]["code"] == VersionNotLoadable.code
    assert len(shown[1 - damaged]["rows" if verb == "dump" else "changes"]) > 0


def test_roots_and_the_option_for_all_exclude_each_other(roots: tuple[Path, Path]) -> None:
    assert run("dump", *roots, "--all").exit_code == run("dump").exit_code == 2
