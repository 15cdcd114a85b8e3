"""The parts of a plan that several rewrites share: the steps of stores, and the reasons that block a rewrite. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statekeeper.statestore.base.messages import counted
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import Begun
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import VersionId
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.model import (
    Source,
    StoppedQuery,
    StoppedStore,
    StoreStep,
)
from statekeeper.statestore.maintenance.upkeep.audit import FindingKind

LOCAL_BYTES_PER_TAIL = 8
"""Growth of a compressed changelog on local disk, where it is fetched, sorted, and written as tables."""

_TABLES_PER_BASE = 2
"""The fetched tables, and at most the same size again if they must be merged."""


def step_of(one: StoppedStore, name: VersionId | None = None) -> StoreStep:
    """Return the step for a store whose head can be loaded. `name`: see `StoreStep`."""
    assert one.load is not None
    return StoreStep(
        store=one.store,
        head=one.head,
        load=one.load,
        source=Source.BUILT if one.load.replay else Source.REUSED,
        read_bytes=one.base_bytes + one.tail_bytes,
        write_bytes=one.tail_bytes if one.load.replay else 0,
        tail_bytes=one.tail_bytes,
        name=name,
    )


def local_bytes(steps: Sequence[StoreStep], workers: int) -> int:
    """Return the local disk that the largest stores need, one for each worker."""
    each = (
        _TABLES_PER_BASE * (step.read_bytes - step.tail_bytes) + LOCAL_BYTES_PER_TAIL * step.tail_bytes
        for step in steps
    )
    return sum(sorted(each, reverse=True)[:workers])


def of_other(begun: Begun) -> str:
    """Return the reason that another rewrite is half done."""
    return f"a {begun.described} is half done: to finish it, run: {begun.finishing}; to reverse it: {begun.reversing}"


def of_begun(stopped: StoppedQuery, batch: int) -> Iterator[str]:
    """Require the commits of all batches but the last one that has begun."""
    if stopped.begun > batch + 1:
        yield (
            f"{names.offsets(stopped.begun)} exists, but the newest commit is of batch {batch}: restore the missing "
            f"commits, or delete the offsets after batch {batch}"
        )


def of_stores(stopped: StoppedQuery) -> Iterator[str]:
    """Yield the stores whose head cannot be loaded."""
    for one in stopped.stores:
        if one.load is None or one.problem:
            yield f"{one.store}: {one.problem or 'the head cannot be loaded'}"


def of_audit(stopped: StoppedQuery) -> Iterator[str]:
    """Yield the findings that make a rewrite unsafe."""
    if stopped.audit is None:
        return
    bad = [f for f in stopped.audit.findings if f in stopped.audit.breaks or f.kind is FindingKind.ROLLED_BACK_FILES]
    if bad:
        yield (
            f"the audit reports {counted(len(bad), 'finding')}. The first one: {bad[0].file} {bad[0].problem} -> "
            f"{bad[0].action}. To list all findings, run: statekeeper audit ROOT"
        )


def of_release(stopped: StoppedQuery, structure: Structure | None, spark: Spark | None) -> Iterator[str]:
    """Require a known release if it decides on the header of new snapshots."""
    is_unknown_spark = spark is None and stopped.may_be_of_4_0 and stopped.origin is Origin.NATIVE
    if structure is Structure.V2 and is_unknown_spark and stopped.half_done is None:
        yield (
            "in structure V2, Spark 4.0 and later releases need different snapshots, and the checkpoint does not show "
            "which release will run the query: add --for-spark"
        )


def of_disk(stopped: StoppedQuery, needed: int, *, grows_with_workers: bool) -> Iterator[str]:
    """Require enough local disk."""
    if needed > stopped.free_bytes:
        yield (
            f"up to {needed:,} bytes of local disk are needed, but {stopped.free_bytes:,} are free in the scratch folder "
            f"{stopped.scratch}: use another disk with --scratch{', or fewer --workers' if grows_with_workers else ''}"
        )
