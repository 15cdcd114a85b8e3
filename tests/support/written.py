"""The checkpoints in `tests/fixtures/checkpoints`, which Spark wrote, and the rows that its reader showed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.maintenance.upkeep import audit
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.dumped import dumped, expected, shown
from tests.support.unpacked import unpacked


def written_checkpoints(kind: str) -> list[Path]:
    """`kind`: "v" for those of RocksDB, "hdfs" for those of Spark's default provider."""
    return sorted((Path(__file__).parents[1] / "fixtures" / "checkpoints").glob(f"spark-*.*.*-{kind}*.zip"))


@dataclass
class Written:
    """A native checkpoint, and the rows that Spark's reader showed, by the reader's options."""

    checkpoint: Path
    views: dict[str, list[str]]

    @property
    def storage(self) -> Storage:
        return open_storage(str(self.checkpoint))

    def differing(self, rows: list[dict[str, Any]]) -> list[str]:
        """Return the views in which these rows differ from Spark's."""
        told = {view: json.loads(view) for view in self.views}
        return [v for v, options in told.items() if shown(rows, options) != expected(self.views[v], options)]

    @classmethod
    def unpacked(cls, archive: Path, folder: Path) -> Written:
        return cls(unpacked(archive, folder), json.loads((folder / "shown.json").read_text()))


def is_clean_and_as_spark_shows(written: Written, folder: Path) -> None:
    """The deep audit has no finding and writes nothing; the dump is what Spark's reader shows."""
    before = {path: path.stat().st_mtime_ns for path in written.checkpoint.rglob("*")}
    found = audit.judge(audit.gather(written.storage, scratch=folder / "scratch"))
    assert found.findings == ()
    heads = catalog.heads(written.storage)
    assert heads is not None
    assert [store.store for store in found.stores] == sorted(heads.heads)
    rows = dumped(written.checkpoint)
    assert rows
    assert written.differing(rows) == []
    assert written.differing(rows[1:]), "a row less is seen"
    assert {path: path.stat().st_mtime_ns for path in written.checkpoint.rglob("*")} == before
