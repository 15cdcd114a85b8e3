"""Every verb on checkpoints with forged records and names: typed errors, and output that controls no terminal."""

from __future__ import annotations

import json
import os
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from statekeeper.statestore.format import names
from statekeeper.statestore.format.savepoint_names import MANIFEST
from statekeeper.statestore.storage import open_storage
from tests.faults.fuzz.roots import Stage, made
from tests.support.commands import statekeeper
from tests.support.records import CONTROL, Leaf, calls_by_file, leaves, replaced, with_all_records

FORGED = "FORGED\x1b]52;c;Y3VybA==\x07\x1b]0;title\x07\x9b31m\u202e\u2028\r\nFORGED: all is well\tFORGED"
"""Writes to the clipboard and to the title of a terminal, changes its color, reverses text, and begins a line."""
FORGED_NAME = FORGED.replace("/", "")

NUMBERS: tuple[Any, ...] = (10**400, float("nan"), -1e18, 2**62, True, "text")
TEXTS: tuple[Any, ...] = ("", "9" * 400, "\ud800", 2**63)
CONTAINERS: tuple[Any, ...] = (None, [[]], {"": {}})

Call = tuple[object, ...]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return with_all_records(tmp_path_factory.mktemp("records"))


def _strange(leaf: Leaf) -> tuple[Any, ...]:
    if isinstance(leaf.value, str):
        return TEXTS
    return CONTAINERS if isinstance(leaf.value, dict | list) else NUMBERS


def _require_typed(result: Result, *context: object) -> None:
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert result.exc_info is not None
        pytest.fail(f"{context}: {''.join(traceback.format_exception(*result.exc_info))[-3000:]}")


@pytest.mark.parametrize("place", ["job", "switched", "files", "clone", "mirror"])
def test_a_strange_value_in_any_record_is_a_typed_error_or_harmless(
    place: str, pristine: dict[str, Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(pristine[place], tmp_path / "root"))
    calls: list[Call] = [
        ("inspect", root),
        ("gc", root, "--retain", "1", "--grace", "0s"),
        ("savepoint", root, "--list"),
        ("lease", root),
    ]
    readers = calls_by_file(root, calls)
    cases = 0
    for leaf in leaves(root, CONTROL):
        for value in _strange(leaf):
            before = replaced(root, leaf, value)
            for call in readers.get(leaf.file, ()):
                _require_typed(statekeeper(*call), leaf, str(value)[:40], call[0])
                cases += 1
            (root / leaf.file).write_bytes(before)
    assert cases >= 10


WRITERS = (
    ("gc", "--mode", "full", "--apply"),
    ("snapshot", "--mode", "full", "--all"),
    ("repair", "--apply", "--confirm-stopped"),
    ("rewind", "--to-batch", "5", "--apply", "--confirm-stopped"),
    ("switch", "--to", "v1", "--apply", "--confirm-stopped"),
    ("claim", "--query-id", "0badc0de-0000-4000-8000-00000000000a", "--apply", "--confirm-stopped"),
)


@pytest.mark.parametrize("seconds", [10**400, float("nan"), -1e18, 2**62, -1, 1e300, True, None, "1", [], {}])
def test_a_lease_with_an_absurd_time_can_be_broken_and_blocks_no_verb_after_that(
    seconds: object, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(made(tmp_path, "own-v2", Stage.WRITTEN), tmp_path / "root"))
    place = root / names.lease(7)
    place.parent.mkdir(parents=True)
    body = {"run": "x", "holder": "here:1", "verb": "gc", "since_seconds": seconds, "released": False, "beat": 0}
    place.write_text(json.dumps(body))
    breaking = {f"statekeeper lease {named} --break" for named in (root, open_storage(str(root)).url)}
    for call in (("lease",), *WRITERS):
        verb, *options = call
        scratch = ["--scratch", str(tmp_path / "scratch")] if verb in ("snapshot", "rewind", "switch") else []
        result = statekeeper(verb, root, *options, *scratch)
        _require_typed(result, verb)
        if verb not in ("repair", "snapshot", "gc") or result.exit_code:
            assert result.exit_code == 1, (verb, result.output)
            assert any(one in result.output.replace("\n", "") for one in breaking), (verb, result.output)
    assert statekeeper("lease", root, "--break").exit_code == 0
    assert statekeeper("lease", root).output == "the lease is free\n"
    assert statekeeper("gc", root, "--mode", "full", "--retain", "1", "--grace", "0s", "--apply").exit_code == 0


def test_a_file_with_a_time_that_no_date_can_show_is_shown(tmp_path: Path, pristine: dict[str, Path]) -> None:
    root = Path(shutil.copytree(pristine["job"], tmp_path / "root"))
    far = 10**12
    for path in root.rglob("*"):
        try:
            os.utime(path, (far, far))
        except OverflowError:
            pytest.skip("this file system has no such time")
    if (root / "metadata").stat().st_mtime != far:
        pytest.skip("this file system has no such time")
    for call in readers(root, tmp_path):
        _require_typed(statekeeper(*call), call[0])


# -- output ------------------------------------------------------------------------------------------------------------


def readers(root: Path, folder: Path) -> Iterator[Call]:
    """The calls that show what a checkpoint contains. None of them writes into it."""
    scratch = ("--scratch", folder / "scratch")
    yield "inspect", root
    yield "inspect", root, "--lineage", "0/0"
    yield "inspect", root, "--lineage", "9/9"
    yield "lease", root
    yield "audit", root, "--verbose"
    yield "gc", root, "--verbose", "--retain", "1", "--grace", "0s"
    yield "repair", root
    yield "savepoint", root, "--list"
    yield "rewind", root, "--to-batch", "5", *scratch
    yield "switch", root, "--to", "v1", *scratch
    yield "snapshot", root, "--dry-run"
    yield "unpack", root
    yield "dump", root, "--family", "x", *scratch


def deep_readers(root: Path, folder: Path) -> Iterator[Call]:
    """The calls that read rows, or compare with another location."""
    scratch = ("--scratch", folder / "scratch")
    yield "audit", root, "--deep", "--verbose", *scratch
    for form in ("table", "json", "jsonl"):
        yield "dump", root, "--output", form, *scratch
        yield "diff", root, "--output", form, *scratch
    yield "gc", root, "--verbose", "--orphans", "--retain", "1", "--grace", "0s"
    yield "rescale", root, "--partitions", "3", *scratch
    yield "convert", root, "--to", "hdfs", *scratch
    yield "edit", root, "--operator", "0", "--delete", "name=counter", *scratch
    yield "clone", root, folder / "new", "--dry-run"
    yield "mirror", root, folder / "new", "--dry-run"
    yield "savepoint", root, folder / "new", "--rows", "--dry-run", *scratch
    yield "claim", root, "--query-id", "0badc0de-0000-4000-8000-00000000000a"


def _require_harmless(result: Result, *context: object) -> int:
    """Require that only the line breaks of the renderer control the output. Return how often it shows a forged text."""
    _require_typed(result, *context)
    for line in result.output.split("\n"):
        assert line.isprintable(), (context, [c for c in line if not c.isprintable()], line)
        assert not line.startswith("FORGED"), (context, result.output)
    return result.output.count("FORGED")


def _texts(root: Path) -> list[Leaf]:
    found = leaves(root, CONTROL, "metadata", "offsets", "commits", "state", MANIFEST)
    return [leaf for leaf in found if isinstance(leaf.value, str)]


@pytest.mark.parametrize("place", ["job", "switched", "files", "rows", "clone", "mirror"])
def test_a_forged_text_in_any_record_controls_no_terminal(
    place: str, pristine: dict[str, Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(pristine[place], tmp_path / "root"))
    load = ("load", root, pristine["job"], "--scratch", tmp_path / "scratch")
    readers_of = calls_by_file(root, (*readers(root, tmp_path), load))
    shown = 0
    for leaf in _texts(root):
        before = replaced(root, leaf, FORGED)
        for call in readers_of.get(leaf.file, ()):
            shown += _require_harmless(statekeeper(*call), leaf, call[0])
        (root / leaf.file).write_bytes(before)
    # No text of a savepoint with rows is shown before its manifest is verified.
    assert shown > 0 or place == "rows"


@pytest.mark.parametrize("name", ["v1-aggregation", "v2-transformWithState", "v1-join-2"])
def test_a_forged_text_in_a_checkpoint_of_spark_controls_no_terminal(name: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(made(tmp_path, name, Stage.WRITTEN), tmp_path / "root"))
    shown = 0
    for leaf in _texts(root):
        before = replaced(root, leaf, FORGED)
        for call in (("inspect", root), ("audit", root, "--verbose"), ("rewind", root, "--to-batch", "0")):
            shown += _require_harmless(statekeeper(*call), leaf, call[0])
        (root / leaf.file).write_bytes(before)
    assert shown > 0


@pytest.mark.parametrize("place", ["job", "switched", "files", "clone", "mirror"])
def test_a_forged_name_of_a_file_controls_no_terminal(place: str, pristine: dict[str, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(pristine[place], tmp_path / "root"))
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        for name in (FORGED_NAME, f"{FORGED_NAME}.json", f"9{FORGED_NAME}.zip", f"{FORGED_NAME}.sst"):
            (folder / name).write_bytes(b"x")
            os.utime(folder / name, (1, 1))
        (folder / f"folder {FORGED_NAME}").mkdir()
        (folder / f"link {FORGED_NAME}").symlink_to(tmp_path / FORGED_NAME)
    shown = 0
    for call in (*readers(root, tmp_path), *deep_readers(root, tmp_path)):
        shown += _require_harmless(statekeeper(*call), call)
    assert shown > 0
