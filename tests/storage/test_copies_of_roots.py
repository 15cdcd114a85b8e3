"""Clone, mirror, savepoint, rewind and claim of a root on Azure, on Google Cloud Storage and on HDFS."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.checkpoint import catalog
from statekeeper.statestore.storage import StorageSpec, open_storage
from tests.support.checkpoints import Checkpoint
from tests.support.claims import bound
from tests.support.clones import at
from tests.support.repairs import contents
from tests.support.storage_servers import StoreServer
from tests.support.twins import statekeeper

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["azurite", "fake_gcs", "hdfs"])
def test_each_copy_of_a_root_has_its_rows(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: StoreServer = request.getfixturevalue(kind)
    spec = server.new_root()
    made = Checkpoint(open_storage(spec), tmp_path / "job")
    made.grow(6)
    options = ", ".join(f'{name} = "{value}"' for name, value in spec.options)
    config = tmp_path / "statekeeper.toml"
    config.write_text(f'[roots.counts]\nurl = "{spec.url}"\nstorage = {{ {options} }}\n')

    def run(verb: str, *rest: str, exit_code: int = 0) -> str:
        return statekeeper("--config", str(config), verb, "counts", *rest, exit_code=exit_code)

    def beside(name: str) -> StorageSpec:
        return replace(spec, url=f"{spec.url} {name}")

    def require_rows(where: StorageSpec, batch: int) -> None:
        storage = open_storage(where)
        assert catalog.newest_batch(storage) == batch
        at(made, storage, tmp_path / f"model {where.url.rpartition(' ')[2]} {batch}", batch).assert_right(
            tmp_path / "host"
        )

    scratch = ("--scratch", str(tmp_path / "scratch"))
    shown = json.loads(run("clone", beside("clone").url, *scratch, "--batch", "4", "--output", "json"))
    assert (shown["bytes_by_service"] > 0) is (kind != "hdfs")
    require_rows(beside("clone"), 4)
    for batch in (3, 5):
        run("mirror", beside("mirror").url, *scratch, "--batch", str(batch))
        require_rows(beside("mirror"), batch)
    run("savepoint", beside("files").url, *scratch, "--label", "march")
    require_rows(beside("files"), 5)
    assert beside("files").url in run("savepoint", "--list")
    run("savepoint", beside("rows").url, *scratch, "--rows")
    manifest = json.loads(open_storage(beside("rows")).read("savepoint.json"))
    assert manifest["rows"] == sum(map(len, made.states[-1]))
    before = contents(made.storage)
    done = run("rewind", *scratch, "--to-batch", "3", "--apply", "--confirm-stopped")
    require_rows(spec, 3)
    (undo,) = re.findall(r"--undo ([0-9a-f-]{36})", done)[:1]
    run("rewind", "--undo", undo, "--confirm-stopped")
    assert contents(made.storage) == before
    new = "0badc0de-0000-4000-8000-00000000000a"
    run("claim", "--query-id", new, "--apply", "--confirm-stopped")
    owner = bound(made.storage)
    assert (owner.query_id, owner.claim is not None and owner.claim.former) == (new, "a query")
    run("clone", f"{spec.url}/clone", *scratch, exit_code=13)
    require_rows(spec, 5)
