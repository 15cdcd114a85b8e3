"""Decides what a switchover does, and whether it may, from gathered facts alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from statestore.format import names
from statestore.format.names import StorePath
from statestore.format.sparks import Spark
from statestore.format.structure import Structure
from statestore.maintenance.audit import FindingKind
from statestore.maintenance.pool import WORKERS
from statestore.maintenance.switchover.plans import Source, StoreStep, StoreSwitchFacts, SwitchoverFacts, SwitchPlan

_TABLES_PER_BASE = 2
"""The tables that were fetched, and at worst as many again when they have to be merged."""

_LOCAL_BYTES_PER_TAIL = 8
"""What a compressed changelog becomes on local disk: it is fetched, sorted, and written as tables."""


def plan(gathered: SwitchoverFacts, to: Structure, spark: Spark | None = None, *, workers: int = WORKERS) -> SwitchPlan:
    """What has to be done, or why it cannot be. `spark`: which one goes on, where that is known. Pure."""
    half_done = gathered.half_done
    header = _header(gathered, to, spark)
    if half_done is not None and half_done.begun.to is to:
        header = half_done.begun.header
    is_there = gathered.structure is to and half_done is None
    is_rewritten = gathered.structure is to
    made = half_done.made.keys() if half_done else ()
    steps = () if is_rewritten else tuple(_step(one) for one in gathered.stores if one.load and one.store not in made)
    refusals = () if is_there else tuple(_refusals(gathered, to, spark, steps, workers))
    return SwitchPlan(
        to,
        gathered.batch,
        header,
        steps,
        () if is_rewritten else tuple(sorted(_strays(gathered, to))),
        () if is_there or to is Structure.V2 else tuple(sorted(_snapshots_with_ids(gathered))),
        refusals,
        is_there,
        half_done,
        gathered.conf,
        gathered.is_own,
        *_staying(gathered, to),
        _local_bytes(steps, workers),
        sum(step.tail_bytes for step in steps) / gathered.replay_bytes_per_second,
        gathered.commit,
        gathered.begun,
    )


def _header(gathered: SwitchoverFacts, to: Structure, spark: Spark | None) -> str:
    return spark.header if spark is not None and to is Structure.V2 and not gathered.is_own else "v1"


def _step(one: StoreSwitchFacts) -> StoreStep:
    assert one.load is not None
    source = Source.BUILT if one.load.replay else Source.REUSED
    written = one.tail_bytes if one.load.replay else 0
    return StoreStep(one.store, one.head, one.load, source, one.base_bytes + one.tail_bytes, written, one.tail_bytes)


def _refusals(
    gathered: SwitchoverFacts, to: Structure, spark: Spark | None, steps: tuple[StoreStep, ...], workers: int
) -> Iterator[str]:
    if gathered.batch is None:
        yield "no batch is committed yet: start the query with the conf of the structure that it is to have"
        return
    if not gathered.stores and not gathered.is_own:
        yield "there is no state to switch: start the query with the conf of either structure"
        return
    half_done = gathered.half_done
    if half_done is not None and half_done.begun.to is not to:
        yield f"a switchover to {half_done.begun.to.value} is half done: finish it with --apply, or --abort it"
        return
    if half_done is not None and gathered.structure is not to and half_done.begun.batch != gathered.batch:
        yield (
            f"the query has gone on from batch {half_done.begun.batch} to {gathered.batch} since the switchover was "
            f"interrupted: --abort it, then switch anew"
        )
        return
    if half_done is not None and spark is not None and half_done.begun.header != _header(gathered, to, spark):
        yield (
            f"the switchover that is half done makes snapshots that Spark {spark.value} does not read: --abort it, then "
            f"switch anew; or finish it without --for-spark"
        )
        return
    yield from _of_logs(gathered)
    for one in gathered.stores:
        if one.load is None or one.problem:
            yield f"{one.store}: {one.problem or 'its head cannot be loaded'}"
    if gathered.audit is not None:
        bad = [
            f for f in gathered.audit.findings if f in gathered.audit.breaks or f.what is FindingKind.ROLLED_BACK_FILES
        ]
        if bad:
            yield (
                f"the audit is not clean, {len(bad):,} findings: {bad[0].file} {bad[0].problem} -> {bad[0].action}; "
                f"statekeeper audit shows all"
            )
    if to is Structure.V2 and spark is not None and not spark.knows_v2:
        yield f"Spark {spark.value} knows no structure V2"
    if to is Structure.V2 and spark is Spark.V4_0 and (lone := _lone_operators(gathered)):
        yield (
            f"Spark 4.0 runs no operator of a single partition in structure V2, and operator {lone[0]} has but one of "
            f"{gathered.partitions}: upgrade the query first, or leave it in structure V1"
        )
    if to is Structure.V2 and spark is None and gathered.may_be_of_4_0 and half_done is None:
        yield (
            "Spark 4.0 reads other snapshots in structure V2 than later ones, and nothing tells which goes on: "
            "say --for-spark"
        )
    needed = _local_bytes(steps, workers)
    if needed > gathered.free_bytes:
        yield (
            f"{needed:,} bytes of local disk may be needed, and {gathered.free_bytes:,} are free: choose another disk with "
            f"--scratch, or fewer --workers"
        )


def _of_logs(gathered: SwitchoverFacts) -> Iterator[str]:
    assert gathered.batch is not None
    if not gathered.is_plain_commit:
        yield f"{names.commits(gathered.batch)} holds something that this release does not know, and would lose"
    if gathered.begun > gathered.batch + 1:
        yield (
            f"{names.offsets(gathered.begun)} is there, and commits only up to batch {gathered.batch}: restore the commits "
            f"that were lost, or delete the offsets after batch {gathered.batch}"
        )
    if gathered.pending:
        first = "" if gathered.half_done is None else "--abort the switchover, then "
        yield (
            f"{gathered.pending[0]}: the sink may hold batch {gathered.batch + 1} already, by ids of this structure: "
            f"{first}start the job once, so that the batch ends"
        )
    if gathered.repartitions:
        yield (
            f"{names.offsets(gathered.begun)} names another number of partitions: Spark's offline repartition has not "
            f"ended, run it again first"
        )


def _lone_operators(gathered: SwitchoverFacts) -> list[int]:
    """Limits, and aggregations over all rows, where others have more partitions: Spark 4.0 asserts that the commit names as
    many of each."""
    counts = Counter(operator for operator, _ in {(one.store.operator, one.store.partition) for one in gathered.stores})
    return [operator for operator, count in counts.items() if count != (gathered.partitions or count)]


def _strays(gathered: SwitchoverFacts, to: Structure) -> Iterator[str]:
    """Files of structure V1 behind the head, or at it, that would be met after the switchover or after the way back: of a
    batch that did not end, as when the conf alone was changed."""
    for one in gathered.stores:
        head = one.head.version
        files = (gathered.files or {}).get(one.store)
        if files is None:
            continue
        paths = [one.store.changelog(v) for v in files.changelogs if v.id is None and v.version > head]
        if to is Structure.V1:
            # Those of the head that were there before are out of the way as soon as the journal says so.
            oldest = head + 1 if gathered.half_done is not None and gathered.half_done.is_cleared else head
            paths += [one.store.snapshot(v) for v in files.snapshots if v.id is None and v.version >= oldest]
        yield from _with_sidecars(gathered, one.store, paths)


def _snapshots_with_ids(gathered: SwitchoverFacts) -> Iterator[str]:
    """Structure V1 does not load a store in whose folder one of them lies."""
    for store, files in (gathered.files or {}).items():
        yield from _with_sidecars(gathered, store, [store.snapshot(v) for v in files.snapshots if v.id is not None])


def _with_sidecars(gathered: SwitchoverFacts, store: StorePath, paths: list[str]) -> Iterator[str]:
    assert gathered.files is not None
    there = {entry.path for entry in gathered.files[store].others}
    for path in paths:
        yield path
        if names.sidecar(path) in there:
            yield names.sidecar(path)


def _staying(gathered: SwitchoverFacts, to: Structure) -> tuple[int, int]:
    """How many files of the old structure stay, and their bytes; tables belong to both."""
    stay = [
        entry
        for files in (gathered.files or {}).values()
        for found in (files.changelogs, files.snapshots if to is Structure.V2 else {})
        for version, entry in found.items()
        if (version.id is None) == (to is Structure.V2)
    ]
    return len(stay), sum(entry.size_bytes for entry in stay)


def _local_bytes(steps: tuple[StoreStep, ...], workers: int) -> int:
    """For as many stores at a time as there are workers, the largest ones."""
    each = (
        _TABLES_PER_BASE * (step.read_bytes - step.tail_bytes) + _LOCAL_BYTES_PER_TAIL * step.tail_bytes
        for step in steps
    )
    return sum(sorted(each, reverse=True)[:workers])
