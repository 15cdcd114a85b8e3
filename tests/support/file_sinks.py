"""Checkpoints of queries with Spark's file sink, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.format.file_sink import LOG
from statekeeper.statestore.storage import Storage, open_storage
from tests.support.twins import statekeeper
from tests.support.unpacked import unpacked

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "spark-4.2.0-v1-aggregation.zip"


class CheckpointWithSink:
    """A checkpoint at its newest batch, and a sink of the same batches with this interval of compactions."""

    def __init__(self, folder: Path, interval: int = 10) -> None:
        self.folder = folder
        self.checkpoint = unpacked(ARCHIVE, folder)
        self.storage = open_storage(str(self.checkpoint))
        newest = catalog.newest_batch(self.storage)
        assert newest is not None
        self.newest = newest
        self.output = folder / "output"
        self.log = self.output / LOG
        self.log.mkdir(parents=True)
        lines: list[bytes] = []
        for batch in range(newest + 1):
            line = json.dumps({"path": f"file:///output/part-{batch}", "size": batch, "action": "add"}).encode()
            lines.append(line)
            is_compacted = (batch + 1) % interval == 0
            written = lines if is_compacted else [line]
            (self.log / f"{batch}{'.compact' if is_compacted else ''}").write_bytes(b"\n".join([b"v1", *written]))
        self.lines = lines

    @property
    def sink(self) -> Storage:
        return open_storage(str(self.output))

    def rewind(self, *options: str, exit_code: int = 0) -> str:
        scratch = ("--scratch", str(self.folder / "scratch"))
        return statekeeper("rewind", str(self.checkpoint), *options, *scratch, exit_code=exit_code)

    def rescale(self, *options: str, exit_code: int = 0) -> str:
        scratch = ("--scratch", str(self.folder / "scratch"))
        return statekeeper("rescale", str(self.checkpoint), *options, *scratch, exit_code=exit_code)

    def unlock(self) -> None:
        """Break the lease of a run that died."""
        statekeeper("lease", str(self.checkpoint), "--break")

    def files(self) -> set[str]:
        return {path.name for path in self.log.iterdir()}
