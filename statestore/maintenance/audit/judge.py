"""Turn the facts of a checkpoint into findings, store states and the batch to restart from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from statestore.file_problem import FileProblem, Flaw
from statestore.format.names import StorePath
from statestore.format.provider import Provider
from statestore.maintenance.audit import actions, judge_spark
from statestore.maintenance.audit.facts import AuditFacts, NotAudited, StoreAuditFacts, is_unknown
from statestore.maintenance.audit.findings import Audit, AuditPolicy, Finding, FindingKind, Restart, Severity
from statestore.maintenance.audit.judge_root import of_logs, of_root
from statestore.maintenance.audit.judge_store import of_store, store_audit
from statestore.maintenance.audit.view import View, view
from statestore.switch_journal import OpenJournal

_NAMED_FILES = 5

_NO_CHECKSUM = (
    "the logs, the operator metadata and the file _statekeeper/binding.json have no checksums: they were "
    "compared with each other, with file names and with lineages",
    "the audit detects that another valid file replaced a file only if the size, lineage, digest or key count differs",
)
_BYTES_NOT_READ = "the contents of changelogs, snapshots and SST files were not read: --deep reads every byte"
_NO_STORE = "the checkpoint has no store: the query has no stateful operators, or its state was deleted"
_SCANNED = (
    "a full scan verified the block checksums of SST files; filter blocks, which only point lookups read, were not "
    "verified"
)


def judge(facts: AuditFacts, policy: AuditPolicy | None = None) -> Audit:
    """Audit a checkpoint by its facts. Pure."""
    policy = policy or AuditPolicy()
    stores = [store for store in facts.stores if isinstance(store, StoreAuditFacts)]
    origin, switched = facts.root.origin, facts.root.switched
    views = [view(store, policy, origin=origin, switched=switched, begins=_begins(facts, store)) for store in stores]
    restart = _restart(facts, views)
    findings = [
        *of_logs(facts, restart),
        *of_root(facts),
        *judge_spark.of_names(facts),
        *judge_spark.of_omissions(facts),
    ]
    findings += judge_spark.of_logs(facts, views, restart)
    for one in views:
        findings += of_store(one, policy, restart)
        findings += judge_spark.of_store(facts, one, restart)
    findings += [_not_audited(store) for store in facts.stores if isinstance(store, NotAudited)]
    findings = [*judge_spark.of_skipped_batches(facts), *judge_spark.without_skipped_versions(facts, findings)]
    findings += [_undescribed(store) for store in facts.undescribed if store not in _in_progress(facts)]
    order = {kind: number for number, kind in enumerate(FindingKind)}
    findings.sort(key=lambda f: (f.severity, order[f.kind], f.store or StorePath(-1, -1), f.file))
    return Audit(
        batch=max(facts.logs.commits, default=None),
        restart=restart,
        findings=tuple(findings),
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
    )


def _unread(facts: AuditFacts) -> Iterator[str]:
    if not facts.deep:
        yield _BYTES_NOT_READ
    elif facts.root.provider is Provider.ROCKSDB:
        yield _SCANNED


def _begins(facts: AuditFacts, store: StoreAuditFacts) -> int:
    """Return the store's first version: not 1 if an older commit exists that does not contain the store."""
    oldest = min((*store.gone[:1], *store.committed))
    return oldest if oldest - 2 in facts.logs.readable else 1


def _restart(facts: AuditFacts, views: list[View]) -> Restart:
    if not facts.logs.commits:
        return Restart(None, "no batch is committed")
    audited = {one.facts.store.operator for one in views}
    if len(views) < len(facts.stores) or not facts.root.operators.keys() <= audited:
        return Restart(None, "the batch to restart from is unknown: not every store could be audited")
    newest = max(facts.logs.commits)
    if is_unknown(facts.logs.commits[newest]):
        return Restart(
            None,
            "the batch to restart from is unknown: the newest commit has an unsupported format",
        )
    for batch in sorted(facts.logs.readable.keys() - facts.misfits.keys() - _without_offsets(facts), reverse=True):
        if all(one.loads_committed(batch + 1) for one in views):
            traps = tuple(trap for one in views for trap in one.traps(batch + 1))
            first = f"after you delete {' and '.join(traps)}, " if traps else ""
            if batch == newest:
                can = "every store can restore the" if views else "the query can restart from its"
                text = f"{first}{can} newest batch, {batch} (version {batch + 1})"
            else:
                lacks = " and that has offsets" if newest in _without_offsets(facts) else ""
                text = f"{first}the newest batch that every store can restore{lacks} is {batch} (version {batch + 1})"
            return Restart(batch, text, traps)
    return Restart(None, "no batch can be restored in every store")


def _without_offsets(facts: AuditFacts) -> set[int]:
    """Return the committed batches whose offsets, which a restart reads, are missing or corrupt."""
    damaged = {
        batch
        for batch, log in facts.logs.offsets_read.items()
        if isinstance(log, FileProblem) and log.flaw is not Flaw.UNKNOWN_FORMAT
    }
    return {batch for batch in facts.logs.commits if batch not in facts.logs.offsets} | damaged


def _not_audited(store: NotAudited) -> Finding:
    unknown = store.problem.flaw is Flaw.UNKNOWN_FORMAT
    return Finding(
        severity=Severity.WARNING if unknown else Severity.ERROR,
        kind=FindingKind.STORE_UNKNOWN_FORMAT if unknown else FindingKind.STORE_NOT_AUDITED,
        store=store.store,
        file=store.problem.path,
        problem=store.problem.text,
        meaning="no version of this store was audited",
        action=actions.UPGRADE if unknown else "resolve the other findings, then run: statekeeper audit ROOT",
    )


def _in_progress(facts: AuditFacts) -> Collection[StorePath]:
    """Return the stores that a half-done rescale writes: its journal describes them."""
    half_done = facts.root.half_switched
    return half_done.begun.stores if isinstance(half_done, OpenJournal) else ()


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
