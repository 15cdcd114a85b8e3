"""The checks: statements that are true when green. Each says what red means and what to do; docs/checks/ says more.

ERROR and blocking: state would be lost, or is wrong. WARN: needs attention. The figures on a check are drawn over time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import dagster as dg

from assets import metadata
from assets.partitions import QUERIES
from statestore.maintenance.audit import Audit, Finding, FindingKind, Severity
from statestore.maintenance.passes import RetentionPass, SnapshotPass
from statestore.maintenance.snapshot import SnapshotPolicy
from statestore.maintenance.switchover import OpenJournal

_LOGS = frozenset(
    {
        FindingKind.COMMIT_MISSING,
        FindingKind.COMMIT_UNREADABLE,
        FindingKind.COMMIT_UNKNOWN_ID,
        FindingKind.COMMIT_AT_ODDS,
        FindingKind.COMMITS_MIXED,
        FindingKind.HALF_SWITCHED,
        FindingKind.FORMAT_FLIPPED,
        FindingKind.OFFSETS_MISSING,
        FindingKind.OFFSETS_UNREADABLE,
        FindingKind.LOG_IN_THE_WAY,
        FindingKind.OFFSETS_AHEAD,
        FindingKind.DESCRIPTION_MISSING,
        FindingKind.DESCRIPTION_UNREADABLE,
        FindingKind.DESCRIPTION_AT_ODDS,
        FindingKind.DESCRIPTION_MOVED,
        FindingKind.DESCRIPTION_CHANGED,
        FindingKind.TWO_OPERATORS,
        FindingKind.STORE_UNDESCRIBED,
        FindingKind.NAME_STOPS_LOADS,
        FindingKind.NAME_STOPS_CLEANUP,
        FindingKind.FOREIGN_FILE,
        FindingKind.NOT_A_FILE,
    }
)
_CEILING = frozenset({FindingKind.NEAR_CEILING})


def _spec(name: str, asset: str, description: str, *, blocking: bool = False) -> dg.AssetCheckSpec:
    with warnings.catch_warnings():
        # Checks by partition are a preview, taken on purpose: without them the green of one query hides the red of another.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(name, asset=asset, description=description, blocking=blocking, partitions_def=QUERIES)


TAIL_IS_SHORT = _spec(
    "tail_is_short",
    "snapshot",
    "After the pass no store has as many changelogs behind its newest snapshot as the policy calls long. Red: a restart "
    "has to replay more than it should. Look at `why` of the materialization: stores that could not "
    "be loaded are named there. In mode observe somebody else has to make snapshots.",
)
LINEAGE_IS_GAPLESS = _spec(
    "lineage_is_gapless",
    "lineage",
    "Every retained version of every store loads: its changelogs and snapshots are there, whole, and follow on each other. "
    "Red: versions are lost, or hang on a single file. The finding names the file and the batch from which a restart is "
    "possible. Restore the file from a backup; while versions are lost, nothing is deleted.",
    blocking=True,
)
COMMIT_LOG_MATCHES_FILES = _spec(
    "commit_log_matches_files",
    "lineage",
    "The commit log has no gap, each batch has its offsets, and the files that describe the checkpoint fit them. Red: the "
    "query may not start, or versions cannot be gone back to. Do what the finding says about the file that it names.",
    blocking=True,
)
FAR_FROM_LINEAGE_CEILING = _spec(
    "far_from_lineage_ceiling",
    "lineage",
    "The lineage in the next changelog is far from the 65,535 bytes that Spark can read. Red: the query stops after the "
    "commits that the finding tells. Take snapshots: `statekeeper snapshot QUERY --all`.",
)
RETENTION_FLOOR_IS_KEPT = _spec(
    "retention_floor_is_kept",
    "retention",
    "After the deletions every version from the retention floor to the head still loads. Red: a version that should have "
    'been kept is gone. Stop maintenance (mode = "observe"), and look at the plan in _statekeeper/history/.',
    blocking=True,
)
NOTHING_LEFT_HALF_SWITCHED = _spec(
    "nothing_left_half_switched",
    "checkpoint_format",
    "No switchover between the structures V1 and V2 is half done. Red: one was interrupted, and the query must not be "
    "started. Launch `checkpoint_format` with do: APPLY, which finishes it, or with do: ABORT, which takes it back.",
    blocking=True,
)
LINEAGE_CHECKS = [LINEAGE_IS_GAPLESS, COMMIT_LOG_MATCHES_FILES, FAR_FROM_LINEAGE_CEILING]


def tail_is_short(done: SnapshotPass, policy: SnapshotPolicy) -> dg.AssetCheckResult:
    """Whether no store is left with a tail that the policy calls long."""
    unloadable = [one for one in done.plan.leave if one.reason.is_finding]
    after = done.tails_after
    longest = max(after.values(), default=0)
    worst = next((store for store, tail in after.items() if tail == longest), None)
    passed = not unloadable and longest < policy.changelogs
    said = (
        f"the longest tail is {longest:,} changelogs{f', of {worst}' if worst else ''}; long is {policy.changelogs:,}"
    )
    if unloadable:
        said = f"{unloadable[0].store}: {unloadable[0].explained}"
    return dg.AssetCheckResult(
        check_name=TAIL_IS_SHORT.name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=said,
        metadata={"longest_tail": longest, "allowed": policy.changelogs, "stores_not_loadable": len(unloadable)},
    )


def nothing_left_half_switched(standing: OpenJournal | None) -> dg.AssetCheckResult:
    """Whether no switchover is half done."""
    said, made, stores = "none is half done", 0, 0
    if standing is not None:
        begun, made, stores = standing.begun, len(standing.made), len(standing.begun.stores)
        said = (
            f"one to {begun.to.value} at batch {begun.batch} is half done: {made:,} of {stores:,} stores have snapshots"
        )
    return dg.AssetCheckResult(
        check_name=NOTHING_LEFT_HALF_SWITCHED.name,
        passed=standing is None,
        severity=dg.AssetCheckSeverity.ERROR,
        description=said,
        metadata={"stores": stores, "snapshots_made": made},
    )


def lineage_checks(found: Audit) -> Iterator[dg.AssetCheckResult]:
    """What an audit says, each finding under the statement that it contradicts."""
    left = [store.commits_left for store in found.stores if store.commits_left is not None]
    lost = sum(len(store.lost) for store in found.stores)
    by_check: dict[str, list[Finding]] = {spec.name: [] for spec in LINEAGE_CHECKS}
    for finding in found.findings:
        by_check[_contradicted(finding.what)].append(finding)
    figures: dict[str, metadata.Metadata] = {
        LINEAGE_IS_GAPLESS.name: {"versions_proven": found.versions - lost, "versions_lost": lost},
        COMMIT_LOG_MATCHES_FILES.name: {"version": 0 if found.batch is None else found.batch + 1},
        FAR_FROM_LINEAGE_CEILING.name: {"least_commits_left": min(left)} if left else {},
    }
    for name, findings in by_check.items():
        yield _judged(name, findings, figures[name])


def retention_floor_is_kept(done: RetentionPass, after: Audit) -> dg.AssetCheckResult:
    """Whether what should have been kept loads after the deletions."""
    floor = done.planned.floor
    short = [store for store in after.stores if floor is not None and store.intact_from > floor]
    lost = [version for store in after.stores for version in store.lost if floor is None or version.version >= floor]
    head = 0 if after.batch is None else after.batch + 1
    said = (
        "there is no floor yet"
        if floor is None
        else f"versions {floor:,} to {head:,} load, in {len(after.stores):,} stores"
    )
    if short or lost:
        said = f"{len(lost):,} versions do not load" + (
            f"; {short[0].store} loads only from version {short[0].intact_from} on" if short else ""
        )
        said += f"; {after.breaks[0].file} {after.breaks[0].problem}" if after.breaks else ""
    return dg.AssetCheckResult(
        check_name=RETENTION_FLOOR_IS_KEPT.name,
        passed=not short and not lost,
        severity=dg.AssetCheckSeverity.ERROR,
        description=said,
        metadata={
            "floor": floor or 0,
            "version": head,
            "versions_kept": head - (floor or 1) + 1,
            "versions_lost": len(lost),
        },
    )


def _contradicted(what: FindingKind) -> str:
    """The check that a kind of finding turns red."""
    if what in _CEILING:
        return FAR_FROM_LINEAGE_CEILING.name
    return COMMIT_LOG_MATCHES_FILES.name if what in _LOGS else LINEAGE_IS_GAPLESS.name


def _judged(name: str, findings: Sequence[Finding], figures: metadata.Metadata) -> dg.AssetCheckResult:
    is_error = any(finding.severity is Severity.ERROR for finding in findings)
    said = "nothing contradicts it"
    if findings:
        first = findings[0]
        more = f" (and {len(findings) - 1:,} more)" if len(findings) > 1 else ""
        said = f"{first.file} {first.problem}; {first.meaning} -> {first.action}{more}"
    return dg.AssetCheckResult(
        check_name=name,
        passed=not findings,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description=said,
        metadata={**figures, "findings": len(findings), "what": metadata.of_findings(findings)},
    )
