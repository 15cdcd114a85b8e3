"""The reasons that block every rewrite of the rows of a stopped query. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from statekeeper.statestore.counts import counted
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.audit import FindingKind
from statekeeper.statestore.maintenance.switchover import SwitchoverFacts
from statekeeper.statestore.origin import Origin


def of_stores(stopped: SwitchoverFacts) -> Iterator[str]:
    """Yield the stores whose head cannot be loaded."""
    for one in stopped.stores:
        if one.load is None or one.problem:
            yield f"{one.store}: {one.problem or 'the head cannot be loaded'}"


def of_audit(stopped: SwitchoverFacts) -> Iterator[str]:
    """Yield the findings that make a rewrite unsafe."""
    if stopped.audit is None:
        return
    bad = [f for f in stopped.audit.findings if f in stopped.audit.breaks or f.kind is FindingKind.ROLLED_BACK_FILES]
    if bad:
        yield (
            f"the audit reports {counted(len(bad), 'finding')}, the first: {bad[0].file} {bad[0].problem} -> "
            f"{bad[0].action}; to list all, run: statekeeper audit ROOT"
        )


def of_release(stopped: SwitchoverFacts, structure: Structure | None, spark: Spark | None) -> Iterator[str]:
    """Require a known release if it decides on the header of new snapshots."""
    is_unknown_spark = spark is None and stopped.may_be_of_4_0 and stopped.origin is Origin.NATIVE
    if structure is Structure.V2 and is_unknown_spark and stopped.half_done is None:
        yield (
            "in structure V2, Spark 4.0 and later releases need different snapshots, and the checkpoint does not show the "
            "Spark release: add --for-spark"
        )


def of_disk(stopped: SwitchoverFacts, local_bytes: int) -> Iterator[str]:
    """Require enough local disk."""
    if local_bytes > stopped.free_bytes:
        yield (
            f"up to {local_bytes:,} bytes of local disk are needed, but {stopped.free_bytes:,} are free in the scratch "
            f"folder {stopped.scratch}: use another disk with --scratch"
        )
