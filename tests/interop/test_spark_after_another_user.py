"""Spark of one user continues with its checkpoint while root maintains it with umask 077."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.storage import open_storage
from tests.support.native import FORMAT
from tests.support.switching import structure_of
from tests.support.twins import statekeeper
from tests.support.users import AS_ROOT, give, owned, public_folder, umask

pytestmark = [pytest.mark.spark, pytest.mark.slow, AS_ROOT]

USER = pwd.getpwnam("daemon") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
"""Hadoop asks for a name: a bare number is none."""

SCRIPT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from statekeeper.statestore.format.provider import PROVIDER, Provider
from tests.support.native import OPERATORS, NativeQuery, state

folder, batches, done, confs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "2").config(PROVIDER, Provider.ROCKSDB.class_name)
for name, value in confs.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
query = NativeQuery(spark, folder, OPERATORS["aggregation"], confs)
query.batches = done
query.run(batches)
held = {name: sorted(rows.elements()) for name, rows in state(query).items()}
Path(sys.argv[5]).write_text(json.dumps(held))
spark.stop()
"""


_AS_USER = ("setpriv", f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--clear-groups")
_MAY_READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
"""Python can be in a folder that only root may read. The JVM, which reads the checkpoint, does not get this right."""
_MAY_NOT = "setpriv --ambient-caps=-all --inh-caps=-all"


@dataclass
class UsersQuery:
    """A query of a user who is not root. Each run starts its own Spark."""

    folder: Path
    confs: dict[str, str]
    batches: int = 0

    @property
    def root(self) -> Path:
        return self.folder / "checkpoint"

    def run(self, batches: int, **confs: str) -> dict[str, list[str]]:
        """Run this number of further batches, and return the state."""
        report = self.folder / "report.json"
        given = [str(self.folder), str(batches), str(self.batches), json.dumps({**self.confs, **confs}), str(report)]
        environment = {
            **os.environ,
            "HOME": str(self.folder),
            "JAVA_HOME": str(self.folder / "java"),
            "USER": USER.pw_name,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TMPDIR": str(self.folder / "tmp"),
        }
        ended = subprocess.run(
            [*_AS_USER, *_MAY_READ, sys.executable, "-c", SCRIPT, *given],
            env=environment,
            cwd=self.folder,
            umask=0o022,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        self.batches += batches
        return dict(json.loads(report.read_text()))


@pytest.fixture(params=["1", "2"])
def query(request: pytest.FixtureRequest) -> Iterator[UsersQuery]:
    with public_folder() as folder:
        (folder / "tmp").mkdir()
        java = folder / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        found = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
        java.write_text(f'#!/bin/sh\nexec {_MAY_NOT} {found} "$@"\n')
        give(folder, USER.pw_uid, USER.pw_gid)
        java.chmod(0o755)
        yield UsersQuery(folder, {FORMAT: request.param})


def test_spark_of_another_user_continues_and_takes_snapshots_after_maintenance_by_root(
    query: UsersQuery, tmp_path: Path
) -> None:
    query.run(3)
    before = set(query.root.rglob("*.zip"))
    scratch = ("--scratch", str(tmp_path))
    with umask(0o077):
        statekeeper("snapshot", str(query.root), "--at-head", "--confirm-stopped", "--mode", "full", *scratch)
        statekeeper("gc", str(query.root), "--retain", "1", "--grace", "0s", "--mode", "full", "--apply")
    assert set(query.root.rglob("*.zip")) > before
    query.run(1)
    first = structure_of(open_storage(str(query.root)))
    with umask(0o077):
        statekeeper("switch", str(query.root), "--to", first.other.value, "--apply", "--confirm-stopped", *scratch)
    query.confs[FORMAT] = "1" if first.other is Structure.V1 else "2"
    query.run(2)
    with umask(0o077):
        statekeeper("switch", str(query.root), "--to", first.value, "--apply", "--confirm-stopped", *scratch)
    query.confs[FORMAT] = "1" if first is Structure.V1 else "2"
    zips = set(query.root.rglob("*.zip"))
    # Every version a snapshot: into the folder of tables that root made.
    held = query.run(2, **{"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"})
    own = {path for path in query.root.rglob("*.zip") if path not in zips}
    assert {path.stat().st_uid for path in own} == {USER.pw_uid}
    assert own
    assert {about[:2] for about in owned(query.root).values()} == {(USER.pw_uid, USER.pw_gid)}
    assert sum(len(rows) for rows in held.values()) > 0
