"""The checks: statements that are true when green. Each states the meaning of red and the next step; see docs/checks/.

ERROR and blocking: state would be lost, or is corrupt. WARN: the query needs attention.

The description of a red result names the file, the problem, the consequence and the next command. The figures of one query
are a table: Dagster plots numbers, and one plot has the evaluations of all queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import dagster as dg

from statekeeper.assets import metadata
from statekeeper.assets.launches import for_launchpad
from statekeeper.assets.names import Check
from statekeeper.resources.fleet import OpenedQuery
from statekeeper.statestore.base.errors import RefusedAsUnsafe, StatekeeperError
from statekeeper.statestore.base.messages import counted, with_next
from statekeeper.statestore.base.redaction import printable
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal
from statekeeper.statestore.maintenance.copies.mirrors import Lag
from statekeeper.statestore.maintenance.upkeep.audit import Audit, Finding, FindingKind, Severity, explanations
from statekeeper.statestore.maintenance.upkeep.audit.explanations import EXPLANATIONS
from statekeeper.statestore.maintenance.upkeep.drill import Found, Verdict
from statekeeper.statestore.maintenance.upkeep.retention import RetentionPlan
from statekeeper.statestore.maintenance.verbs.audit import Looked, described
from statekeeper.statestore.maintenance.verbs.config import MirrorPolicy
from statekeeper.statestore.maintenance.verbs.optimize import MOST_SMALL_FILES, PreparedSink, small_files_left
from statekeeper.statestore.maintenance.verbs.report import Figure
from statekeeper.statestore.maintenance.verbs.snapshot import (
    PlannedSnapshots,
    Snapshots,
    described_tail,
    long_tail,
)

TAIL_IS_SHORT = Check(
    "tail_is_short",
    "After the pass, the tail of every store is shorter than the policy's `snapshot.changelogs`. Red: a restart replays "
    "more changelogs than the policy allows. See `reasons` in the materialization: it names stores that cannot be loaded. "
    "In mode observe, Statekeeper takes no snapshots.",
)
LINEAGE_IS_GAPLESS = Check(
    explanations.LINEAGE_IS_GAPLESS,
    "Every retained version of every store can be loaded: its changelogs and snapshots exist, are readable and form an "
    "unbroken lineage. Red: versions are lost, or depend on a single file. The finding names the file and the "
    "newest batch that can be restored. Restore the file from a backup; until then, retention deletes nothing.",
    blocking=True,
)
COMMIT_LOG_MATCHES_FILES = Check(
    explanations.COMMIT_LOG_MATCHES_FILES,
    "The commit log has no gap, each batch has its offsets, and the metadata of the checkpoint agrees with them. Red: the "
    "query may not start, or some batches can no longer be restored. Follow the action of the finding; it names the file.",
    blocking=True,
)
FAR_FROM_LINEAGE_CEILING = Check(
    explanations.FAR_FROM_LINEAGE_CEILING,
    "The lineage in the next changelog is far from the 65,535 bytes that Spark can read. Red: the query stops after the "
    "number of commits in the finding. Take snapshots of all stores: `statekeeper snapshot QUERY --all`.",
)
RETENTION_FLOOR_IS_KEPT = Check(
    "retention_floor_is_kept",
    "After the deletions, every version from the retention floor to the head can be loaded. Red: a version at or above the "
    'floor is lost. Stop maintenance (mode = "observe") and compare the plan in _statekeeper/history/ with the files.',
    blocking=True,
)
NOTHING_LEFT_HALF_SWITCHED = Check(
    "nothing_left_half_switched",
    "No switchover and no other rewrite of the state is incomplete. Red: one was interrupted, and the query must "
    "not be started. To complete it, launch the asset that started it (`checkpoint_format`, `rescale`, `convert`, "
    "`edit`, `load` or `evolve`) with do: APPLY. To reverse it, launch it with do: ABORT.",
    blocking=True,
)
MIRROR_IS_FRESH = Check(
    "mirror_is_fresh",
    "The mirror follows its source, and its lag is at most `mirror.lag` of the query in statekeeper.toml. Red: a failover "
    "now would lose more batches than that. The result names the reason; run `statekeeper mirror QUERY` by hand and follow "
    "its error.",
)
NEWEST_SNAPSHOT_RESTORES = Check(
    "newest_snapshot_restores",
    "Each store of the last drill restored from its newest snapshot and the changelogs since, and its rows were compared "
    "and are equal. Red: a store does not restore, or with other rows (ERROR); or the rows of a store were not compared "
    "(WARN). The result names the store. Do not run gc before its cause is known.",
)
DEEP_AUDIT_HAS_NO_FINDING = Check(
    "deep_audit_has_no_finding",
    "The last deep audit has read every byte of the checkpoint, and has no finding. Red: a file is corrupt, or the audit "
    "has a finding that the checks of `lineage` also show. The result names the file, the newest batch that can be "
    "restored and the action. It stays red until the next deep audit, so launch one after the action.",
)
SINK_TABLES_ARE_HEALTHY = Check(
    "sink_tables_are_healthy",
    f"Each table that the query writes has at most {MOST_SMALL_FILES:,} small files, and its log and its files stay long "
    "enough for a rewind to each retained batch. Red: readers of the table are slow, or a rewind cannot restore the table. "
    "The result names the table and the statement or command.",
)
LINEAGE_CHECKS = [LINEAGE_IS_GAPLESS, COMMIT_LOG_MATCHES_FILES, FAR_FROM_LINEAGE_CEILING]


def tail_is_short(found: PlannedSnapshots, done: Snapshots, query: OpenedQuery) -> dg.AssetCheckResult:
    """Check that the tail of each store is shorter than the policy's `snapshot.changelogs`."""
    allowed = query.policies.snapshot.changelogs
    after, problem = done.tails(found), long_tail(found, done, allowed)
    description = problem or described_tail(after, allowed)
    return dg.AssetCheckResult(
        check_name=TAIL_IS_SHORT.name,
        passed=problem is None,
        severity=dg.AssetCheckSeverity.WARN,
        description=printable(description) if problem is None else with_next(description, query.command("inspect")),
        metadata=_figures(
            {
                "longest_tail": max(after.values(), default=0),
                "allowed": allowed,
                "unloadable_stores": len(found.findings),
            }
        ),
    )


def nothing_left_half_switched(journal: RewriteJournal | None, query: OpenedQuery) -> dg.AssetCheckResult:
    """Check that no switchover and no other rewrite is incomplete."""
    description, made, stores = "No switchover and no other rewrite is incomplete.", 0, 0
    if journal is not None:
        begun, made, stores = journal.begun, len(journal.made), len(journal.begun.built)
        description = with_next(
            f"The {begun.described} at batch {begun.batch} is incomplete: {made:,} of {stores:,} stores have "
            "their snapshots. Do not start the query.",
            for_launchpad(begun.finishing, query),
        )
    return dg.AssetCheckResult(
        check_name=NOTHING_LEFT_HALF_SWITCHED.name,
        passed=journal is None,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata=_figures({"stores": stores, "snapshots_made": made}),
    )


def mirror_is_fresh(lag: Lag | None, error: StatekeeperError | None, query: OpenedQuery) -> dg.AssetCheckResult:
    """Check that the lag of the mirror is at most that of the policy. `lag`: None if it cannot be measured; `error`: of the
    run, None after a success."""
    allowed = MirrorPolicy.lag_seconds if query.mirror is None else query.mirror.lag_seconds
    # A rejected run means that the mirror can no longer follow this source, whatever the lag. Other errors may pass.
    can_follow = not isinstance(error, RefusedAsUnsafe)
    passed = can_follow and lag is not None and lag.seconds is not None and lag.seconds <= allowed
    description = "The lag of the mirror is unknown."
    if lag is not None:
        seconds = "an unknown time" if lag.seconds is None else f"{lag.seconds:,.0f} s"
        behind = f"{counted(lag.batches, 'batch')} and {seconds}"
        description = f"The mirror is {behind} behind the source; the policy allows {allowed:,.0f} s."
    if error is not None:
        description = f"{description} {error}"
    values: dict[str, Figure] = {"allowed_seconds": allowed}
    if lag is not None:
        values |= {"lag_batches": lag.batches, "lag_bytes": lag.size_bytes}
        values |= {} if lag.seconds is None else {"lag_seconds": lag.seconds}
    return dg.AssetCheckResult(
        check_name=MIRROR_IS_FRESH.name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=printable(description) if passed else with_next(description, query.command("mirror")),
        metadata=_figures(values),
    )


def newest_snapshot_restores(
    found: Mapping[str, Found], errors: Mapping[str, StatekeeperError], query: OpenedQuery
) -> dg.AssetCheckResult:
    """Check that each store of a drill restored, and that its rows were compared and are equal.

    `found`, `errors`: of the query and of its mirror, by their names.
    """
    wrong = [f"{name} {one.action.store}: {one.explained}" for name, of in found.items() for one in of.findings]
    failed = [f"{name}: {error}" for name, error in errors.items()]
    failed += [f"{name} {store}: {error}" for name, of in found.items() for store, error in of.failed.items()]
    unknown = [
        f"{name} {one.action.store}: {one.explained}"
        for name, of in found.items()
        for one in of.of(Verdict.NOT_COMPARED)
    ]
    problems = [*wrong, *failed, *unknown]
    drilled = sum(len(of.drilled) for of in found.values())
    description = (
        f"{counted(drilled, 'store')} restored with equal rows." if drilled else "There is no store to restore."
    )
    if problems:
        more = f" ({len(problems) - 1:,} more)" if len(problems) > 1 else ""
        description = with_next(f"{problems[0]}{more}", query.command("drill"))
    return dg.AssetCheckResult(
        check_name=NEWEST_SNAPSHOT_RESTORES.name,
        passed=not problems,
        severity=dg.AssetCheckSeverity.ERROR if wrong else dg.AssetCheckSeverity.WARN,
        description=printable(description),
        metadata=_figures(
            {
                "restored_stores": sum(len(of.drilled) - len(of.of(Verdict.LOST)) for of in found.values()),
                "findings": len(wrong),
                "not_examined_stores": len(failed),
                "not_compared_stores": len(unknown),
                "measured_seconds": round(sum(of.seconds for of in found.values()), 3),
            }
        ),
    )


def sink_tables_are_healthy(
    done: Mapping[str, PreparedSink], failed: Mapping[str, StatekeeperError], query: OpenedQuery
) -> dg.AssetCheckResult:
    """Check that the tables of a query have few small files, and that they serve a rewind. `done`, `failed`: by the names
    of the tables."""
    left = {name: small_files_left(one.plan.plan, one.made) for name, one in done.items()}
    problems = [f"{name}: {error}" for name, error in failed.items()]
    for name, one in done.items():
        problems += [f"{name}: {finding}" for finding in one.plan.plan.findings]
        if one.made is not None and (dropped := sum(merge.bins for merge in one.made.conflicts)):
            problems.append(f"{name}: {counted(dropped, 'merge')} dropped, because another program changed the table")
        if left[name] > MOST_SMALL_FILES:
            notes = "".join(f"; {note}" for note in one.plan.plan.notes)
            problems.append(f"{name} has {counted(left[name], 'small file')}{notes}")
    number = sum(left.values())
    description = f"{counted(len(done), 'table')} with {counted(number, 'small file')}."
    if problems:
        more = f" ({len(problems) - 1:,} more)" if len(problems) > 1 else ""
        description = with_next(f"{problems[0]}{more}", query.command("optimize"))
    return dg.AssetCheckResult(
        check_name=SINK_TABLES_ARE_HEALTHY.name,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN,
        description=printable(description),
        metadata=_figures({"small_files": number, "tables": len(done), "failed_tables": len(failed)}),
    )


def lineage_checks(found: Audit, query: OpenedQuery) -> Iterator[dg.AssetCheckResult]:
    """Evaluate the checks of an audit. Each finding turns one check red."""
    left = [store.commits_left for store in found.stores if store.commits_left is not None]
    lost = sum(len(store.lost) for store in found.stores)
    by_check: dict[str, list[Finding]] = {spec.name: [] for spec in LINEAGE_CHECKS}
    for finding in found.findings:
        by_check[check_of(finding.kind)].append(in_dagster(finding, query))
    values: dict[str, dict[str, Figure]] = {
        LINEAGE_IS_GAPLESS.name: {"loadable_versions": found.versions - lost, "lost_versions": lost},
        COMMIT_LOG_MATCHES_FILES.name: {"version": 0 if found.batch is None else found.batch + 1},
        FAR_FROM_LINEAGE_CEILING.name: {"least_commits_left": min(left)} if left else {},
    }
    for name, findings in by_check.items():
        yield _result(name, findings, values[name], query.command("audit"))


def deep_audit_has_no_finding(found: Audit, query: OpenedQuery) -> dg.AssetCheckResult:
    """Check that a deep audit has no finding. `found`: for a person in Dagster."""
    values: dict[str, Figure] = {"stores": len(found.stores), "versions": found.versions}
    return _result(DEEP_AUDIT_HAS_NO_FINDING.name, found.findings, values, query.command("audit", "--deep"))


def retention_floor_is_kept(planned: RetentionPlan, after: Audit, query: OpenedQuery) -> dg.AssetCheckResult:
    """Check that every version from the floor to the head loads after the deletions."""
    floor = planned.floor
    short = [store for store in after.stores if floor is not None and store.intact_from > floor]
    lost = [version for store in after.stores for version in store.lost if floor is None or version.version >= floor]
    head = 0 if after.batch is None else after.batch + 1
    description = (
        "There is no retention floor yet."
        if floor is None
        else f"Batches {floor - 1:,} to {head - 1:,} of {len(after.stores):,} stores can be loaded."
    )
    if short or lost:
        description = f"{len(lost):,} versions of stores at or after the retention floor cannot be loaded" + (
            f"; store {short[0].store} loads only from batch {short[0].intact_from - 1}" if short else ""
        )
        description += f"; {after.breaks[0].place} {after.breaks[0].problem}" if after.breaks else ""
        description = with_next(description, query.command("audit"))
    return dg.AssetCheckResult(
        check_name=RETENTION_FLOOR_IS_KEPT.name,
        passed=not short and not lost,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata=_figures(
            {
                "floor": floor or 0,
                "version": head,
                "retained_versions": head - (floor or 1) + 1,
                "lost_versions": len(lost),
            }
        ),
    )


def check_of(kind: FindingKind) -> str:
    """The check that a kind of finding turns red."""
    return EXPLANATIONS[kind].check


def in_dagster(finding: Finding, query: OpenedQuery) -> Finding:
    """The finding with launches and commands for a person in Dagster."""
    meaning, action = for_launchpad(finding.meaning, query), for_launchpad(finding.action, query)
    return replace(finding, meaning=meaning, action=action)


def for_a_person(looked: Looked, query: OpenedQuery) -> Looked:
    """The audit with launches and commands for a person in Dagster."""
    findings = tuple(in_dagster(one, query) for one in looked.audit.findings)
    return replace(looked, audit=replace(looked.audit, findings=findings))


def _result(name: str, findings: Sequence[Finding], values: dict[str, Figure], command: str) -> dg.AssetCheckResult:
    is_error = any(finding.severity is Severity.ERROR for finding in findings)
    return dg.AssetCheckResult(
        check_name=name,
        passed=not findings,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description=describe(findings, command) if findings else "The audit has no finding.",
        metadata={
            **_figures({**values, "findings": len(findings)}),
            "findings": metadata.of_findings(findings),
        },
    )


def describe(findings: Sequence[Finding], command: str) -> str:
    """The worst finding with the next command. `findings`: at least one."""
    return with_next(described(findings), command)


def _figures(values: dict[str, Figure]) -> dict[str, dg.MetadataValue]:
    return {"figures": metadata.figures(values)}
