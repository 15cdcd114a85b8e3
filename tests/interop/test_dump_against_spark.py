"""`statekeeper dump` and `diff` compared with Spark's `statestore` reader, on native checkpoints."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statekeeper.statestore.cli import main
from statekeeper.statestore.store.engine.rocks import Database
from tests.support.dumped import Row, dumped, expected, shown
from tests.support.native import (
    DEFAULT_PROVIDER,
    FORMAT,
    HERE,
    ON_DEFAULT_PROVIDER,
    OPERATORS,
    STATE_STORE,
    NativeQuery,
    views_as_json,
)

pytestmark = pytest.mark.spark

ROW_CHECKSUMS = {f"{STATE_STORE}rowChecksum.enabled": "true"}
BY_THE_WAY = {f"{STATE_STORE}rowChecksum.enabled": "true", f"{STATE_STORE}rocksdb.mergeOperatorVersion": "1"}
"""A checksum for each row, and a comma between merged values."""

HOW = {
    "plain": {},
    "checksums and commas": BY_THE_WAY,
    "default provider": DEFAULT_PROVIDER,
    "default provider with checksums": {**DEFAULT_PROVIDER, **ROW_CHECKSUMS},
}
MATRIX = [
    (name, structure, how)
    for name in HERE
    for structure, how in (("1", "plain"), ("2", "plain"), ("2", "checksums and commas"))
] + [(name, "1", how) for name in ON_DEFAULT_PROVIDER for how in HOW if how.startswith("default")]
IN_CI = [
    ("aggregation", "1", "plain"),
    ("join 2", "2", "plain"),
    ("transformWithState", "2", "plain"),
    ("join 4", "2", "checksums and commas"),
    ("applyInPandasWithState", "1", "default provider with checksums"),
]
CASES = [case if case in IN_CI else pytest.param(case, marks=pytest.mark.slow) for case in MATRIX]
BATCHES = 2


@dataclass
class Run:
    """A query, its checkpoint, and all its dumped rows by version."""

    query: NativeQuery
    folder: Path
    rows: dict[int, list[Row]] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.query.checkpoint

    def version(self, version: int) -> list[Row]:
        if version not in self.rows:
            self.rows[version] = dumped(self.checkpoint, "--version", version)
        return self.rows[version]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def run(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    name, structure, how = request.param
    folder = tmp_path_factory.mktemp("dump")
    confs = {FORMAT: structure, **HOW[how]}
    query = NativeQuery(spark, folder / "query", OPERATORS[name], confs)
    query.run(BATCHES)
    return Run(query, folder)


def newest(run: Run) -> int:
    """Joins and watermarks make a batch without data more."""
    return max(int(path.name) for path in (run.checkpoint / "commits").iterdir() if path.name.isdecimal()) + 1


def test_a_dump_equals_the_output_of_sparks_reader(run: Run) -> None:
    for version in (1, newest(run)):
        rows = run.version(version)
        assert rows
        by_spark = views_as_json(run.query, batch=version - 1)
        for view, found in by_spark.items():
            assert shown(rows, json.loads(view)) == expected(found, json.loads(view)), (version, view)
        assert sum(map(len, by_spark.values())) > 0


def test_dumps_of_two_versions_differ(run: Run) -> None:
    """A negative control of the comparison above."""
    by_spark = views_as_json(run.query, batch=0)
    rows = run.version(newest(run))
    differing = [
        view for view, found in by_spark.items() if shown(rows, json.loads(view)) != expected(found, json.loads(view))
    ]
    assert differing


def test_a_moved_checkpoint_has_the_same_dump(run: Run) -> None:
    """It contains the paths of the schemas at its former location."""
    moved = run.folder / "moved"
    here = run.version(newest(run))
    shutil.move(run.checkpoint, moved)
    try:
        assert dumped(moved) == here
    finally:
        shutil.move(moved, run.checkpoint)


def test_applying_a_diff_to_a_version_gives_the_other_version(run: Run) -> None:
    def by_key(rows: list[Row]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for row in rows:
            place = json.dumps([row["store"], row["family"], row["key"]])
            found.setdefault(place, []).append(json.dumps(row["value"]))
        return found

    before, after = by_key(run.version(1)), by_key(run.version(newest(run)))
    done = CliRunner().invoke(main, ["diff", str(run.checkpoint), "--from", "1", "--output", "json"])
    assert done.exit_code == 0, done.output
    changes = json.loads(done.stdout)["changes"]
    assert changes
    for change in changes:
        place = json.dumps([change["store"], change["family"], change["key"]])
        held = before.pop(place, None)
        if change["before"] is None:
            assert (held, change["change"]) == (None, "added")
        else:
            assert held == _values(change["before"])
        if change["after"] is None:
            assert change["change"] == "removed"
        else:
            assert place not in before
            before[place] = _values(change["after"])
    assert before == after


def _values(value: Row | list[Row]) -> list[str]:
    return [json.dumps(one) for one in (value if isinstance(value, list) else [value])]


def test_a_changed_value_makes_a_dump_differ_from_sparks_rows(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy gets a snapshot with one changed value, or with one changed key if values are empty, and no changelogs."""
    if DEFAULT_PROVIDER.items() <= run.query.confs.items():
        pytest.skip("test_hdfs_backed_state.py changes snapshots of Spark's default provider")
    holds_nothing = all(one is None for row in run.version(newest(run)) for one in row["value"].values())
    copy = tmp_path / "copy"
    shutil.copytree(run.checkpoint, copy)
    capture = Database.capture

    def flipped(data: bytes) -> bytes:
        return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]

    def spoilt(database: Database, path: Path) -> None:
        keys, values = next(iter(database.scan()), ([], []))
        if keys:
            key, value = keys[0], values[0]
            if holds_nothing:
                database.apply([[(key, None)]], None)
                key = flipped(key)
            else:
                value = flipped(value)
            database.apply([[(key, value)]], None)
        capture(database, path)

    monkeypatch.setattr(Database, "capture", spoilt)
    arguments = ["snapshot", str(copy), "--at-head", "--confirm-stopped", "--mode", "snapshots"]
    taken = CliRunner().invoke(main, [*arguments, "--scratch", str(tmp_path)])
    assert taken.exit_code == 0, taken.output
    for changelog in copy.glob("state/**/*.changelog"):
        changelog.unlink()
    done = CliRunner().invoke(main, ["dump", str(copy), "--output", "jsonl"])
    if BY_THE_WAY.items() <= run.query.confs.items():
        assert done.exit_code == 1
        assert "wrong checksum of the row" in done.stderr
    elif done.exit_code == 0:
        assert [json.loads(line) for line in done.stdout.splitlines()] != run.version(newest(run))
    else:
        assert "corrupt_file" in done.stderr
