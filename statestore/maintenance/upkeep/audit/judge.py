"""Turn the facts of a checkpoint into findings, store states and the batch to restart from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from statekeeper.statestore.base.messages import with_root
from statekeeper.statestore.checkpoint.file_problem import Flaw
from statekeeper.statestore.checkpoint.rewrite_journal import RewriteJournal
from statekeeper.statestore.contents import restart
from statekeeper.statestore.contents.restart import Way
from statekeeper.statestore.format.names import StorePath
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.maintenance.upkeep.audit import findings as actions
from statekeeper.statestore.maintenance.upkeep.audit import judge_spark
from statekeeper.statestore.maintenance.upkeep.audit.facts import AuditFacts, NotAudited, StoreAuditFacts, is_unknown
from statekeeper.statestore.maintenance.upkeep.audit.findings import (
    Audit,
    AuditPolicy,
    Finding,
    FindingKind,
    Restart,
    Severity,
)
from statekeeper.statestore.maintenance.upkeep.audit.judge_root import of_logs, of_root, way_to, without_offsets
from statekeeper.statestore.maintenance.upkeep.audit.judge_store import of_store, store_audit
from statekeeper.statestore.maintenance.upkeep.audit.view import View, ranges, view

_NAMED_FILES = 5

_NO_CHECKSUM = (
    "the logs, the operator metadata and the file _statekeeper/binding.json have no checksums: they were "
    "compared with each other, with file names and with lineages",
    "the audit detects that another valid file replaced a file only if the size, lineage, digest or key count differs",
)
_BYTES_NOT_READ = "the contents of changelogs, snapshots and SST files were not read: --deep reads every byte"
_NO_STORE = "the checkpoint has no store: the query has no stateful operators, or its state was deleted"
_AFTER_OTHERS = "resolve the other findings, then run: statekeeper audit ROOT"
_SCANNED = (
    "a full scan verified the block checksums of SST files; filter blocks, which only point lookups read, were not "
    "verified"
)


def judge(facts: AuditFacts, policy: AuditPolicy | None = None) -> Audit:
    """Audit a checkpoint by its facts. Pure."""
    policy = policy or AuditPolicy()
    stores = [store for store in facts.stores if isinstance(store, StoreAuditFacts)]
    origin, switched = facts.root.origin, facts.root.switched
    views = [
        view(
            store,
            policy,
            origin=origin,
            switched=switched,
            begins=_begins(facts, store),
            is_removed=store.store in restart.removed([store.store], facts.newest),
        )
        for store in stores
    ]
    start = _restart(facts, views)
    findings = [
        *of_logs(facts, start),
        *of_root(facts),
        *judge_spark.of_names(facts),
        *judge_spark.of_omissions(facts),
    ]
    findings += judge_spark.of_logs(facts, [one for one in views if not one.is_removed], start)
    for one in views:
        of_one = [*of_store(one, policy, start), *judge_spark.of_store(facts, one, start)]
        findings += _of_removed(one, of_one) if one.is_removed else of_one
    findings += [_not_audited(store) for store in facts.stores if isinstance(store, NotAudited)]
    findings = [*judge_spark.of_skipped_batches(facts), *judge_spark.without_skipped_versions(facts, findings)]
    findings += [_undescribed(store) for store in facts.undescribed if store not in _in_progress(facts)]
    order = {kind: number for number, kind in enumerate(FindingKind)}
    if any(map(_stops_start, findings)):
        start = replace(start, as_is=False)
    findings.sort(key=lambda f: (f.severity, order[f.kind], f.store or StorePath(-1, -1), f.file))
    return Audit(
        batch=max(facts.logs.commits, default=None),
        restart=start,
        findings=tuple(_pasteable(finding, facts.url) for finding in findings),
        stores=tuple(store_audit(one, policy, quarantined=one.facts.store in facts.root.quarantined) for one in views),
        decoded={store.store: store.decoded for store in stores if store.decoded is not None},
        requests=facts.requests,
        unproven=(
            *(() if facts.root.operators or not facts.logs.commits else (_NO_STORE,)),
            *_unread(facts),
            *_NO_CHECKSUM,
            *judge_spark.unproven(facts),
        ),
        stateless=facts.stateless,
        rewound=facts.root.rewound,
    )


def _of_removed(one: View, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings of a store whose partition a rescale removed, as warnings: only a rewind can need it. If it has no
    version with a file, retention has deleted it, a copy has left it out, or a rewind has moved a later rescale away. If
    all its versions are before a switchover, no rewind needs them either."""
    if not one.chain.files.changelogs and not one.chain.files.snapshots:
        return
    if one.chain.head.version < one.oldest:
        return
    lost = f"; a rewind to {ranges(one.lost)} is not possible" if one.lost else ""
    for finding in findings:
        is_of_version = finding.severity is Severity.ERROR and finding.kind in _OF_VERSIONS
        yield replace(
            finding,
            severity=Severity.WARNING,
            meaning=f"no start needs this store, because a rescale removed its partition{lost}",
            action=actions.FOR_A_REWIND if is_of_version else finding.action,
        )


def _pasteable(finding: Finding, url: str) -> Finding:
    """Return a finding whose commands name the checkpoint."""
    return replace(finding, meaning=with_root(finding.meaning, url), action=with_root(finding.action, url))


def _unread(facts: AuditFacts) -> Iterator[str]:
    if not facts.deep:
        yield _BYTES_NOT_READ
        return
    if facts.unread:
        yield f"{_written_meanwhile(facts)}: the next deep audit reads those that are left"
    if facts.root.provider is Provider.ROCKSDB:
        yield _SCANNED


def _written_meanwhile(facts: AuditFacts) -> str:
    which = "file that was" if facts.unread == 1 else "files that were"
    return f"{facts.unread:,} {which} written during the audit {'was' if facts.unread == 1 else 'were'} not read"


def _begins(facts: AuditFacts, store: StoreAuditFacts) -> int:
    """Return the store's first version: not 1 if an older commit exists that does not contain the store."""
    oldest = min((*store.gone[:1], *store.committed))
    return oldest if oldest - 2 in facts.logs.readable else 1


def _restart(facts: AuditFacts, views: list[View]) -> Restart:
    if not facts.logs.commits:
        return Restart(None, "no batch is committed")
    audited = {one.facts.store.operator for one in views}
    if any(isinstance(store, NotAudited) for store in facts.stores) or not facts.root.operators.keys() <= audited:
        return Restart(None, "the batch to restart from is unknown: not every store could be audited")
    newest = max(facts.logs.commits)
    if is_unknown(facts.logs.commits[newest]):
        return Restart(
            None,
            "the batch to restart from is unknown: the newest commit has an unsupported format",
        )
    lost = without_offsets(facts)
    for batch in sorted(facts.logs.readable.keys() - facts.misfits.keys(), reverse=True):
        way = way_to(facts, batch)
        if way is None or not all(one.loads_committed(batch + 1) for one in views):
            continue
        traps = tuple(trap for one in views for trap in one.traps(batch + 1))
        first = f"after you delete {' and '.join(traps)}, " if traps else ""
        if batch == newest:
            if way is not Way.AS_IS:
                first = f"after a {way.name.lower()}, {first}"
            text = f"{first}{_can_restore(facts, views)} newest batch, {batch}"
            if views and not facts.deep:
                text += "; their contents were not read"
            elif facts.unread:
                text += f"; {_written_meanwhile(facts)}"
        else:
            which = "that every store can restore" if facts.deep else "of which every store has all files"
            lacks = " and that has offsets" if newest in lost else ""
            text = f"{first}the newest batch {which}{lacks} is {batch}"
        return Restart(batch, text, traps, as_is=batch == newest and way is Way.AS_IS and not traps)
    return Restart(None, "no batch can be restored in every store")


def _can_restore(facts: AuditFacts, views: list[View]) -> str:
    if not views:
        return "the query can restart from its"
    return "every store can restore the" if facts.deep else "every store has all files of the"


_OF_VERSIONS = frozenset(
    {
        FindingKind.COMMIT_MISSING,
        FindingKind.COMMIT_UNREADABLE,
        FindingKind.COMMIT_UNKNOWN_ID,
        FindingKind.COMMIT_AT_ODDS,
        FindingKind.OFFSETS_MISSING,
        FindingKind.OFFSETS_UNREADABLE,
        FindingKind.OFFSETS_AT_ODDS,
        FindingKind.SOURCE_LOG_DAMAGED,
        FindingKind.CHANGELOG_MISSING,
        FindingKind.CHANGELOG_UNREADABLE,
        FindingKind.CHANGELOG_REPLACED,
        FindingKind.BATCH_LOG_UNREADABLE,
        FindingKind.LINEAGE_AT_ODDS,
        FindingKind.FAMILIES_LOST,
        FindingKind.NO_BASE,
        FindingKind.SNAPSHOT_UNREADABLE,
        FindingKind.SNAPSHOT_AT_ODDS,
        FindingKind.TABLE_MISSING,
        FindingKind.TABLE_WRONG_SIZE,
        FindingKind.TABLE_REPLACED,
        FindingKind.TABLE_UNREADABLE,
        FindingKind.NEAR_CEILING,
    }
)
"""Errors about logs and versions: `_restart` decides whether they concern the newest batch. Other errors stop a start."""


def _stops_start(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and finding.kind not in _OF_VERSIONS


def _not_audited(store: NotAudited) -> Finding:
    unknown = store.problem.flaw is Flaw.UNKNOWN_FORMAT
    return Finding(
        severity=Severity.WARNING if unknown else Severity.ERROR,
        kind=FindingKind.STORE_UNKNOWN_FORMAT if unknown else FindingKind.STORE_NOT_AUDITED,
        store=store.store,
        file=store.problem.path,
        problem=store.problem.text,
        meaning="no batch of this store was audited",
        action=actions.UPGRADE if unknown else store.action or _AFTER_OTHERS,
    )


def _in_progress(facts: AuditFacts) -> Collection[StorePath]:
    """Return the stores that a half-done rescale writes: its journal describes them."""
    half_done = facts.root.half_switched
    return half_done.begun.stores if isinstance(half_done, RewriteJournal) else ()


def _undescribed(store: StorePath) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        kind=FindingKind.STORE_UNDESCRIBED,
        store=store,
        file=store.folder,
        problem="contains files of a store that neither the commit log nor the operator metadata names",
        meaning="no query loads these files; gc deletes them only if a rescale removed the partition",
        action="if a rescale removed the partition, run: statekeeper gc ROOT. If the store belongs to this query, restore "
        "the operator metadata from a backup. If not, move the folder away",
    )
