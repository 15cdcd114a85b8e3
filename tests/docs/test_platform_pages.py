"""What the pages on platforms say about errors. Nothing here runs on a platform."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.pages import Page
from tests.support.running import REPOSITORY

ARCHIVE = REPOSITORY / "tests" / "fixtures" / "checkpoints" / "spark-4.2.0-v1-aggregation.zip"
OF_SPARK = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OF_DATABRICKS = "com.databricks.sql.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint whose offset log names the provider of Databricks."""
    zipfile.ZipFile(ARCHIVE).extractall(tmp_path)
    for offsets in (tmp_path / "checkpoint" / "offsets").iterdir():
        if offsets.name.startswith("."):
            offsets.unlink()
        else:
            offsets.write_text(offsets.read_text().replace(OF_SPARK, OF_DATABRICKS))
    return tmp_path / "checkpoint"


@pytest.mark.parametrize(
    "verb",
    [["audit"], ["inspect"], ["dump"], ["gc"], ["snapshot", "--mode", "snapshots"], ["rescale", "--partitions", "4"]],
)
def test_each_command_rejects_the_provider_of_databricks(checkpoint: Path, verb: list[str]) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in checkpoint.rglob("*"))
    done = run(verb[0], checkpoint, *verb[1:])
    assert done.exit_code == 12
    assert sorted((path, path.stat().st_mtime_ns) for path in checkpoint.rglob("*")) == before


def test_the_page_of_databricks_shows_the_error_of_its_provider(checkpoint: Path) -> None:
    (shown,) = (block for block in Page.of("platforms/databricks.md").blocks if "unsupported_provider" in block)
    assert run("audit", checkpoint).output.strip() == shown


def test_an_address_of_dbfs_is_rejected_with_the_addresses_that_are_supported() -> None:
    done = run("audit", "dbfs:/checkpoints/orders")
    assert done.exit_code == 1
    assert "s3://bucket/folder" in done.output
    assert "abfss://container@account.dfs.core.windows.net/folder" in done.output
