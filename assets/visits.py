"""What a visit of a query leaves in Dagster: materializations, checks, the ledger, and the notices that were sent.

The jobs `maintain_queries` and `maintain_query`, and a person who materializes an asset, record a visit in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import Any, TypeAlias

import dagster as dg

from statekeeper.assets import metadata, pictures, spark_runs
from statekeeper.assets.checks import (
    LINEAGE_CHECKS,
    RETENTION_FLOOR_IS_KEPT,
    TAIL_IS_SHORT,
    for_a_person,
    lineage_checks,
    retention_floor_is_kept,
    tail_is_short,
)
from statekeeper.assets.launches import of_prepared
from statekeeper.assets.memory import Known, Look, observation, read, tell
from statekeeper.assets.names import Check, Names
from statekeeper.assets.partitions import store_key
from statekeeper.assets.verdicts import red_in
from statekeeper.assets.work import Given, Work
from statekeeper.resources.fleet import OpenedQuery
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.sizes import sizes_of_snapshots
from statekeeper.statestore.maintenance.rounds.visit import Status, Visit, visit
from statekeeper.statestore.maintenance.upkeep.audit.facts import AuditFacts, StoreAuditFacts
from statekeeper.statestore.maintenance.upkeep.retention import DeletionOutcome
from statekeeper.statestore.maintenance.verbs.config import Configuration
from statekeeper.statestore.maintenance.verbs.contract import Run
from statekeeper.statestore.maintenance.verbs.retention import Retention
from statekeeper.statestore.maintenance.verbs.snapshot import Snapshot
from statekeeper.statestore.root.attempts import metrics_at
from statekeeper.statestore.storage import Reads

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


@dataclass(frozen=True, kw_only=True)
class Shown:
    """All that Dagster shows of a visit: values that another process can send.

    name, status, text, is_certain, is_undecided, is_held, is_left_to_spark, has_failed  as in `Visit`
    why     why it has failed; of a visit with some of the steps, why these have
    ledger  the stores that it changed, by their partition keys
    """

    name: str
    status: Status
    text: str
    why: str
    is_certain: bool
    is_undecided: bool
    is_held: bool
    is_left_to_spark: bool
    has_failed: bool
    parts: tuple[Part, ...] = ()
    ledger: tuple[tuple[str, metadata.Metadata], ...] = ()

    def as_sent(self) -> dict[str, Any]:
        """Encode it."""
        parts = [
            {
                "asset": part.asset,
                "metadata": part.metadata and spark_runs.metadata_as_sent(part.metadata),
                "checks": list(map(spark_runs.check_as_sent, part.checks)),
            }
            for part in self.parts
        ]
        ledger = [[key, spark_runs.metadata_as_sent(of)] for key, of in self.ledger]
        without = replace(self, parts=(), ledger=())
        return {**asdict(without), "status": int(self.status), "parts": parts, "ledger": ledger}

    @classmethod
    def of_sent(cls, sent: Mapping[str, Any]) -> Shown:
        """Decode it."""
        parts = [
            Part(
                part["asset"],
                part["metadata"] and spark_runs.metadata_in(part["metadata"]),
                tuple(map(spark_runs.check_in, part["checks"])),
            )
            for part in sent["parts"]
        ]
        return cls(
            **{one.name: sent[one.name] for one in fields(cls) if one.name not in ("status", "parts", "ledger")},
            status=Status(sent["status"]),
            parts=tuple(parts),
            ledger=tuple((key, spark_runs.metadata_in(of)) for key, of in sent["ledger"]),
        )


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of a visit. `takes`, `deletes`: False to only plan snapshots, or retention; `is_whole`: all assets of the
    visit were chosen."""

    takes: bool = True
    deletes: bool = True
    is_whole: bool = True


WHOLE = Steps()


def visited(
    run: Run,
    query: OpenedQuery,
    steps: Steps = WHOLE,
    *,
    reads: Reads | None = None,
    told: Callable[[str], None] = lambda progress: None,
) -> Shown:
    """Visit a query. `reads`, `told`: as in `visit`."""
    done = visit(query.name, run, reads=reads, takes=steps.takes, deletes=steps.deletes, told=told)
    return shown(done, query, is_whole=steps.is_whole)


def _visited(given: Given, how: Mapping[str, Any]) -> Shown:
    return visited(given.run, given.query, Steps(**how), told=given.told)


VISIT = Work(name="visit", do=_visited, encode=Shown.as_sent, decode=Shown.of_sent)
"""The visit of one query by a run for it alone. What is asked for are the fields of `Steps`."""


def shown(done: Visit, query: OpenedQuery | None, *, is_whole: bool = True) -> Shown:
    """Turn a visit into metadata and checks. Reads the figures that a job recorded. `query`: None if it could not be
    opened; `is_whole`: with all steps."""
    return Shown(
        name=done.name,
        status=done.status,
        text=done.text,
        why=_why(done, is_whole=is_whole),
        is_certain=done.is_certain,
        is_undecided=done.is_undecided,
        is_held=done.is_held,
        is_left_to_spark=done.is_left_to_spark,
        has_failed=done.has_failed,
        parts=() if query is None else tuple(_parts(done, query)),
        ledger=tuple(_ledger(done)),
    )


def _why(done: Visit, *, is_whole: bool) -> str:
    """Why a visit has failed. If only some assets were chosen: why their own step was not made."""
    if is_whole and done.problems:
        return done.problems[0].text
    if done.errors:
        return str(done.errors[0])
    refused = done.retention
    if not is_whole and refused is not None and refused.own and refused.verb.allowed(refused.run, refused.plan) is None:
        return str(refused.refusals[0])
    return done.text


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
        of_audit = {
            "picture": picture,
            **metadata.of_audit(for_a_person(looked, query)),
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
        name = one.name
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
        look = Look(name, one.status, one.text, is_certain=one.is_certain)
        if len(chosen) == len(CHECKS) and not one.is_undecided:
            policies = configuration.policies_of(name)
            yield from tell(context, self.names, self.memory, known, look, policies, configuration)
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
