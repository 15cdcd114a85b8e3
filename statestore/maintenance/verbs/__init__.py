"""One orchestration for each verb that changes a checkpoint. The command line, Dagster and Python all call it.

    plan(storage, policies, ...)            facts -> plan -> guards     reads only
        the caller shows the plan and asks for confirmation
    execute(storage, prepared, by, ...)     guards -> execute -> record

`plan` returns a frozen object with the plan and the `refusals`: typed errors of all that blocks it. The command line,
Dagster and Python show these refusals, and have no other answer to "may this verb run?". `execute` raises the first
refusal, verifies again the facts that can have changed, holds the lease, and writes plan and outcome to the history.
The interfaces differ only in their prompts and displays. `unattended` does both steps for a schedule; if the mode does
not allow the plan, it only plans.

| guard                                          | snapshot      | retention         | switch, abort | repair, undo |
| ---------------------------------------------- | ------------- | ----------------- | ------------- | ------------ |
| the configured mode allows it                  | not `observe` | `full`            | `full`        | `full`       |
| no other maintainer holds the lease            | yes           | yes               | yes           | yes          |
| no rewrite is half done                        | yes           | yes               | completes it  | yes          |
| a person has confirmed that the query is       | V1 of Spark,  | Spark, `--orphans`| yes           | yes          |
| stopped, and the checkpoint does not change    | at the head   | and confirmation  |               |              |
| the audit reports no lost or wrong state       | adds only     | yes               | yes           | removes none |

`rewind` and its undo have the guards of `repair`. A rewind also restores each store at its target, and needs one structure
from there on. `claim` has the guards of `repair`, too.

`rewrite` serves `rescale`, with the guards of `switch`. Its plan also needs a log of the file sink without a gap, if the
query has such a sink.
`edit` has the guards of `switch`, too; its undo has those of `repair`. So has a schema evolution, which `rewrite` executes.

`clone` takes a source and a destination and does not change the source, except for a hold of its batch. It needs a source
without a half-done switchover, from which no other maintainer deletes files. Its destination is empty or contains the same
clone. `mirror` does this repeatedly into one destination, and deletes there only files that it has copied and that the
source has deleted. A `savepoint` with files is a clone with a label. One with rows only reads the state of the source.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statekeeper.statestore.maintenance.verbs import (
        audit,
        claim,
        clone,
        edit,
        mirror,
        repair,
        retention,
        rewind,
        rewrite,
        savepoint,
        snapshot,
        switch,
    )
    from statekeeper.statestore.maintenance.verbs.claim import PreparedClaim
    from statekeeper.statestore.maintenance.verbs.clone import PreparedClone
    from statekeeper.statestore.maintenance.verbs.edit import PreparedEdit
    from statekeeper.statestore.maintenance.verbs.guards import Maintainer
    from statekeeper.statestore.maintenance.verbs.losses import Losses, StoreLoss
    from statekeeper.statestore.maintenance.verbs.mirror import PreparedMirror
    from statekeeper.statestore.maintenance.verbs.repair import PreparedRepair
    from statekeeper.statestore.maintenance.verbs.retention import PreparedRetention, RetentionPass
    from statekeeper.statestore.maintenance.verbs.rewind import PreparedRewind
    from statekeeper.statestore.maintenance.verbs.rewrite import PreparedRewrite
    from statekeeper.statestore.maintenance.verbs.savepoint import PreparedFiles, PreparedRows
    from statekeeper.statestore.maintenance.verbs.snapshot import PreparedSnapshots, SnapshotPass
    from statekeeper.statestore.maintenance.verbs.switch import PreparedSwitch

__all__ = [
    "Losses",
    "Maintainer",
    "PreparedClaim",
    "PreparedClone",
    "PreparedEdit",
    "PreparedFiles",
    "PreparedMirror",
    "PreparedRepair",
    "PreparedRetention",
    "PreparedRewind",
    "PreparedRewrite",
    "PreparedRows",
    "PreparedSnapshots",
    "PreparedSwitch",
    "RetentionPass",
    "SnapshotPass",
    "StoreLoss",
    "audit",
    "claim",
    "clone",
    "edit",
    "mirror",
    "repair",
    "retention",
    "rewind",
    "rewrite",
    "savepoint",
    "snapshot",
    "switch",
]

_MODULE_OF = {
    "PreparedClaim": "claim",
    "PreparedClone": "clone",
    "PreparedEdit": "edit",
    "Maintainer": "guards",
    "Losses": "losses",
    "StoreLoss": "losses",
    "PreparedMirror": "mirror",
    "PreparedRepair": "repair",
    "PreparedRetention": "retention",
    "RetentionPass": "retention",
    "PreparedRewind": "rewind",
    "PreparedRewrite": "rewrite",
    "PreparedFiles": "savepoint",
    "PreparedRows": "savepoint",
    "PreparedSnapshots": "snapshot",
    "SnapshotPass": "snapshot",
    "PreparedSwitch": "switch",
}


def __getattr__(name: str) -> Any:
    """Import a verb when it is first used: a command needs one of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, name)}")
    return getattr(module, name) if name in _MODULE_OF else module
