"""Claims of roots whose query has named sources (Spark 4.2): offsets of v2 contain the names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statekeeper.statestore.base.errors import RefusedAsUnsafe
from statekeeper.statestore.format import logs, names
from statekeeper.statestore.storage import open_storage
from tests.support.claims import claimed
from tests.support.clones import own
from tests.support.file_sources import read_up_to

NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def test_a_claim_rejects_a_lost_checkpoint_of_named_file_sources(tmp_path: Path) -> None:
    root, checkpoint = (open_storage(str(tmp_path / name)) for name in ("root", "checkpoint"))
    own(root, tmp_path)
    read_up_to(root, 7, {"orders": 7, "clicks": 3}, with_ids=True)
    with pytest.raises(RefusedAsUnsafe, match="source orders reads files"):
        claimed(root, checkpoint)
    assert checkpoint.list("") == []


def test_a_new_checkpoint_keeps_the_names_of_the_sources(tmp_path: Path) -> None:
    """Spark ignores the names without its setting, and reads all input again."""
    root, checkpoint = (open_storage(str(tmp_path / name)) for name in ("root", "checkpoint"))
    own(root, tmp_path)
    for batch in (6, 7):
        read_up_to(root, batch, {"orders": None}, with_ids=True)
        log = logs.parse_offsets(root.read(names.offsets(batch)), names.offsets(batch))
        log = replace(log, conf={**log.conf, NAMES: "true"})
        root.replace(
            names.offsets(batch), logs.encode_offsets(log).replace(b"orders:-", b'orders:{"offset":%d}' % batch)
        )
    claimed(root, checkpoint)
    body = checkpoint.read(names.offsets(7))
    assert body.startswith(b"v2\n")
    assert body.endswith(b'\norders:{"offset":7}')
    assert logs.parse_offsets(body, names.offsets(7)).conf == {NAMES: "true"}
