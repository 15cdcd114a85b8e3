"""What a visit of a query leaves in Dagster: materializations, checks, the ledger, and the notices that were sent.

The jobs `maintain_queries` and `maintain_query`, and a person who materializes an asset, record a visit in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeAlias

import dagster as dg

from statekeeper.assets import metadata, pictures
from statekeeper.assets.checks import (
    LINEAGE_CHECKS,
    RETENTION_FLOOR_IS_KEPT,
    TAIL_IS_SHORT,
    in_dagster,
    lineage_checks,
    retention_floor_is_kept,
    tail_is_short,
)
from statekeeper.assets.launches import of_prepared
from statekeeper.assets.memory import Known, Look, observation, read, tell
from statekeeper.assets.names import Check, Names
from statekeeper.assets.partitions import store_key
from statekeeper.assets.verdicts import red_in
from statekeeper.resources.fleet import OpenedQuery
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.sizes import sizes_of_snapshots
from statekeeper.statestore.maintenance.rounds.visit import Visit
from statekeeper.statestore.maintenance.upkeep.audit.facts import AuditFacts, StoreAuditFacts
from statekeeper.statestore.maintenance.upkeep.retention import DeletionOutcome
from statekeeper.statestore.maintenance.verbs.config import Configuration, Policies
from statekeeper.statestore.maintenance.verbs.retention import Retention
from statekeeper.statestore.maintenance.verbs.snapshot import Snapshot
from statekeeper.statestore.root.attempts import metrics_at

SNAPSHOT, LINEAGE, RETENTION = "snapshot", "lineage", "retention"

CHECKS: Mapping[str, tuple[Check, ...]] = {
    SNAPSHOT: (TAIL_IS_SHORT,),
    LINEAGE: tuple(LINEAGE_CHECKS),
    RETENTION: (RETENTION_FLOOR_IS_KEPT,),
}
"""The checks of the assets of a visit."""

LEFT_TO_SPARK = "Spark maintains it: with the default provider, Spark takes the snapshots and deletes old files"
"""Of a query that is only audited."""

Event: TypeAlias = Any
"""What an op or an asset yields."""


@dataclass(frozen=True)
class Part:
    """The part of a visit that one asset shows. `metadata`: None if its step failed or was blocked."""

    asset: str
    metadata: metadata.Metadata | None
    checks: tuple[dg.AssetCheckResult, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A visit, and all that Dagster shows of it."""

    done: Visit
    policies: Policies
    parts: tuple[Part, ...] = ()
    ledger: tuple[tuple[str, metadata.Metadata], ...] = ()


def shown(done: Visit, query: OpenedQuery) -> Shown:
    """Turn a visit into metadata and checks. Reads the figures that a job recorded."""
    return Shown(done, query.policies, tuple(_parts(done, query)), tuple(_ledger(done)))


def _parts(done: Visit, query: OpenedQuery) -> Iterator[Part]:
    if done.snapshots is not None:
        found, taken = done.snapshots.plan, done.taken
        of_job = metadata.of_job(_metrics(query, done), query.prices)
        is_made = Snapshot.name not in done.failed
        checks = (tail_is_short(found, taken, query),)
        yield Part(SNAPSHOT, {**of_prepared(done.snapshots), **of_job} if is_made else None, checks)
    if done.audited is not None:
        looked = replace(done.audited, requests=done.requests)
        picture = pictures.of_lineage(looked.facts, looked.audit)
        named = replace(looked.audit, findings=tuple(in_dagster(one, query) for one in looked.audit.findings))
        of_audit = {
            "picture": picture,
            **metadata.of_audit(replace(looked, audit=named)),
            **dict(_of_sizes(looked.facts)),
        }
        if done.is_left_to_spark:
            of_audit["maintained_by"] = LEFT_TO_SPARK
        yield Part(LINEAGE, of_audit, tuple(lineage_checks(looked.audit, query)))
    is_made = done.retention is not None and not done.retention.own and Retention.name not in done.failed
    if is_made and done.retention is not None and done.after is not None:
        checks = (retention_floor_is_kept(done.retention.plan.plan, done.after, query),)
        yield Part(RETENTION, of_prepared(done.retention), checks)


def _of_sizes(facts: AuditFacts) -> Iterator[tuple[str, dg.MetadataValue]]:
    """Show what the snapshots that the audit has read say about sizes, skew and growth. No request."""
    sizes = sizes_of_snapshots(store.chain for store in facts.stores if isinstance(store, StoreAuditFacts))
    picture = pictures.of_partitions(sizes)
    if picture is not None:
        yield "sizes", metadata.of_sizes(sizes)
        yield "partitions", picture


def _metrics(query: OpenedQuery, done: Visit) -> Any:
    """Read the figures that the job recorded; None for a native query, which records none."""
    assert done.snapshots is not None
    found = done.snapshots.plan
    batch = found.plan.batch
    return metrics_at(query.storage, batch) if found.gathered.origin is Origin.OWN and batch is not None else None


def _ledger(done: Visit) -> Iterator[tuple[str, metadata.Metadata]]:
    """Yield the stores that got a snapshot, and those that lost files or changed after the plan of retention."""
    for one in done.taken.taken:
        yield store_key(done.name, one.action.store), metadata.of_taken(one)
    changed = (step for step in done.deleted if step.outcome is not DeletionOutcome.READ)
    for store, steps in groupby(changed, key=lambda step: step.store):
        if store is not None:
            yield store_key(done.name, store), metadata.of_deleted(list(steps))


@dataclass(frozen=True)
class Recorder:
    """Records visits as events of a run.

    keys        of the assets of a visit, by their names without the prefix of the fleet
    memory      the asset whose observations remember a query
    """

    names: Names
    keys: Mapping[str, dg.AssetKey]
    memory: dg.AssetKey
    state_store: dg.AssetKey

    def recorded(
        self,
        context: Any,
        configuration: Configuration,
        one: Shown,
        *,
        chosen: Collection[str] = (SNAPSHOT, LINEAGE, RETENTION),
        is_asset: bool = False,
    ) -> Iterator[Event]:
        """Record a visit, and tell what changed.

        `chosen`: the assets to materialize. A visit without some of them tells nothing: it has left out what the others may
        need. `is_asset`: the step is that of the assets, and not an op.
        """
        name, done = one.done.name, one.done
        if one.ledger:
            context.instance.add_dynamic_partitions(self.names.store_set, sorted({key for key, _ in one.ledger}))
        for key, of_store in one.ledger:
            context.log_event(dg.AssetMaterialization(self.state_store, partition=key, metadata=dict(of_store)))
        for part in one.parts:
            if part.asset in chosen:
                yield from self._of_part(context, name, part, is_asset=is_asset)
        known = read(context.instance, self.memory, name)
        evaluated = [check for part in one.parts if part.asset in chosen for check in part.checks]
        others = {check: one for check, one in known.red.items() if check not in {one.check_name for one in evaluated}}
        known = Known(known.told, {**others, **red_in(evaluated)})
        look = Look(name, done.status, done.text, is_certain=done.is_certain)
        if len(chosen) == len(CHECKS) and not done.is_undecided:
            yield from tell(context, self.names, self.memory, known, look, one.policies, configuration)
        else:
            yield observation(self.memory, known, look)

    def _of_part(self, context: Any, query: str, part: Part, *, is_asset: bool) -> Iterator[Event]:
        key = self.keys[part.asset]
        if is_asset:
            checks = [check._replace(asset_key=key) for check in part.checks]
            if part.metadata is None:
                yield from checks
            else:
                yield dg.MaterializeResult(asset_key=key, metadata=part.metadata, check_results=checks)
            return
        if part.metadata is not None:
            context.log_event(dg.AssetMaterialization(key, partition=query, metadata=dict(part.metadata)))
        blocking = {check.name: check.blocking for check in CHECKS[part.asset]}
        for check in part.checks:
            assert check.check_name is not None
            context.log_event(
                dg.AssetCheckEvaluation(
                    asset_key=key,
                    check_name=check.check_name,
                    passed=check.passed,
                    metadata=check.metadata,
                    severity=check.severity,
                    description=check.description,
                    blocking=blocking[check.check_name],
                    partition=query,
                )
            )
