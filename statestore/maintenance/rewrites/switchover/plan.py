"""Plans a switchover, or states why it is blocked. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from statekeeper.statestore.base.workers import WORKERS
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteKind
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.sparks import Spark
from statekeeper.statestore.format.structure import Structure
from statekeeper.statestore.maintenance.rewrites.engine.model import StoppedQuery, StoreStep
from statekeeper.statestore.maintenance.rewrites.engine.plan import (
    local_bytes,
    of_audit,
    of_begun,
    of_disk,
    of_other,
    of_release,
    of_stores,
    step_of,
)
from statekeeper.statestore.maintenance.rewrites.switchover.model import SwitchPlan


def plan(gathered: StoppedQuery, to: Structure, spark: Spark | None = None, *, workers: int = WORKERS) -> SwitchPlan:
    """Plan a switchover to the structure `to`. `spark`: the release that continues, if known. Pure."""
    half_done = gathered.half_done
    header = _header(gathered, to, spark)
    if half_done is not None and half_done.begun.to is to:
        header = half_done.begun.header
    is_there = gathered.structure is to and half_done is None
    is_rewritten = gathered.structure is to
    made = half_done.made.keys() if half_done else ()
    steps = (
        ()
        if is_rewritten
        else tuple(
            step_of(one, gathered.former.get(one.store))
            for one in gathered.stores
            if one.load and one.store not in made
        )
    )
    refusals = () if is_there else tuple(_refusals(gathered, to, spark, steps, workers))
    stays_files, stays_bytes = _staying(gathered, to)
    return SwitchPlan(
        to=to,
        batch=gathered.batch,
        header=header,
        stores=steps,
        first=() if is_rewritten else tuple(sorted(_strays(gathered, to))),
        last=() if is_there or to is Structure.V2 else tuple(sorted(_snapshots_with_ids(gathered))),
        refusals=refusals,
        is_there=is_there,
        half_done=half_done,
        conf=gathered.conf,
        origin=gathered.origin,
        stays_files=stays_files,
        stays_bytes=stays_bytes,
        local_bytes=local_bytes(steps, workers),
        seconds=sum(step.tail_bytes for step in steps) / gathered.replay_bytes_per_second,
        commit=gathered.commit,
        begun=gathered.begun,
    )


def _header(gathered: StoppedQuery, to: Structure, spark: Spark | None) -> str:
    return spark.header if spark is not None and to is Structure.V2 and gathered.origin is Origin.NATIVE else "v1"


def _refusals(
    gathered: StoppedQuery, to: Structure, spark: Spark | None, steps: tuple[StoreStep, ...], workers: int
) -> Iterator[str]:
    if gathered.batch is None:
        yield "no batch is committed yet: nothing to switch; start the query with the settings of the new structure"
        return
    if not gathered.stores and gathered.origin is Origin.NATIVE:
        yield "the checkpoint has no state: nothing to switch; start the query with checkpointFormatVersion 1 or 2"
        return
    half_done = gathered.half_done
    if half_done is not None and half_done.begun.rewrite is not RewriteKind.SWITCH:
        yield of_other(half_done.begun)
        return
    if half_done is not None and half_done.begun.to is not to:
        yield (
            f"a switchover to {half_done.begun.to.value} is half done: complete it with --to {half_done.begun.to.value} "
            f"--apply, or roll it back with --abort"
        )
        return
    if half_done is not None and gathered.structure is not to and half_done.begun.batch != gathered.batch:
        yield (
            f"the query continued from batch {half_done.begun.batch} to {gathered.batch} after the switchover was "
            f"interrupted: roll back with --abort, then switch again"
        )
        return
    if half_done is not None and spark is not None and half_done.begun.header != _header(gathered, to, spark):
        yield (
            f"the half-done switchover writes snapshots that Spark {spark.value} cannot read: complete it without "
            f"--for-spark; or roll it back with --abort and switch again"
        )
        return
    yield from _of_logs(gathered, to)
    yield from of_stores(gathered)
    yield from of_audit(gathered)
    if to is Structure.V2 and spark is not None and not spark.knows_v2:
        yield f"Spark {spark.value} does not support structure V2"
    if to is Structure.V2 and spark is Spark.V4_0 and (lone := _lone_operators(gathered)):
        yield (
            f"in structure V2, Spark 4.0 requires {gathered.partitions} partitions of each operator; operator {lone[0]} "
            f"has fewer: upgrade Spark first, or keep structure V1"
        )
    yield from of_release(gathered, to, spark)
    yield from of_disk(gathered, local_bytes(steps, workers), grows_with_workers=True)


def _of_logs(gathered: StoppedQuery, to: Structure) -> Iterator[str]:
    assert gathered.batch is not None
    if not gathered.is_plain_commit:
        yield f"{names.commits(gathered.batch)} has unknown fields, which a switchover would lose: upgrade Statekeeper"
    yield from of_begun(gathered, gathered.batch)
    attempts = gathered.pending or (() if gathered.former or gathered.half_done else gathered.others)
    if attempts:
        batch = gathered.batch + 1
        first = "" if gathered.half_done is None else "Run: statekeeper switch ROOT --abort --confirm-stopped. Then "
        yield (
            f"{attempts[0]}: batch {batch} has begun, and the sink may already contain its rows. {first}"
            f"{'start' if first else 'Start'} the job with structure {to.other.name} until it commits batch {batch}. "
            f"Then stop it and run: statekeeper switch ROOT --to {to.value} --apply --confirm-stopped"
        )
    if gathered.repartitions:
        yield (
            f"{names.offsets(gathered.begun)} has another number of partitions than the newest commit. If Spark's offline "
            f"repartitioning was interrupted, run it again first. If the query was started with another number, run: "
            f"statekeeper rewind ROOT --to-batch {gathered.batch}"
        )


def _lone_operators(gathered: StoppedQuery) -> list[int]:
    """Return the operators with fewer partitions than the query: limits, and aggregations over all rows. Spark 4.0 asserts
    that the commit has the same number for each operator."""
    counts = Counter(operator for operator, _ in {(one.store.operator, one.store.partition) for one in gathered.stores})
    return [operator for operator, count in counts.items() if count != (gathered.partitions or count)]


def _strays(gathered: StoppedQuery, to: Structure) -> Iterator[str]:
    """Yield structure V1 files at or after the head that a query would load after the switchover or after the switch back.
    They belong to a batch that did not complete, for example after a change of the conf alone."""
    for one in gathered.stores:
        head = one.head.version
        files = (gathered.files or {}).get(one.store)
        if files is None:
            continue
        # The attempt in the other structure has written the changelog after the head, and the sink may contain its rows.
        newest = head + 1 if gathered.former else head
        paths = [one.store.changelog(v) for v in files.changelogs if v.id is None and v.version > newest]
        if to is Structure.V1:
            # After the journal is cleared, snapshots at the head belong to this switchover.
            oldest = head + 1 if gathered.half_done is not None and gathered.half_done.is_cleared else head
            paths += [one.store.snapshot(v) for v in files.snapshots if v.id is None and v.version >= oldest]
        yield from _with_sidecars(gathered, one.store, paths)


def _snapshots_with_ids(gathered: StoppedQuery) -> Iterator[str]:
    """Yield the snapshots with ids. In structure V1, Spark loads no store whose folder has such a snapshot."""
    for store, files in (gathered.files or {}).items():
        yield from _with_sidecars(gathered, store, [store.snapshot(v) for v in files.snapshots if v.id is not None])


def _with_sidecars(gathered: StoppedQuery, store: StorePath, paths: list[str]) -> Iterator[str]:
    assert gathered.files is not None
    there = {entry.path for entry in gathered.files[store].others}
    for path in paths:
        yield path
        if names.sidecar(path) in there:
            yield names.sidecar(path)


def _staying(gathered: StoppedQuery, to: Structure) -> tuple[int, int]:
    """Return the number and bytes of the files of the old structure that are kept, without tables: both structures use
    them."""
    stay = [
        entry
        for files in (gathered.files or {}).values()
        for found in (files.changelogs, files.snapshots if to is Structure.V2 else {})
        for version, entry in found.items()
        if (version.id is None) == (to is Structure.V2)
    ]
    return len(stay), sum(entry.size_bytes for entry in stay)
