"""From facts to findings: pure. What is garbage, what is lost, what is only slower, and from where one can go on."""

from __future__ import annotations

from statestore.format.names import StorePath
from statestore.maintenance.audit import judge_spark
from statestore.maintenance.audit.facts import AuditFacts, Bad, Flaw, NotAudited, StoreAuditFacts, is_unknown
from statestore.maintenance.audit.findings import Audit, AuditPolicy, Finding, FindingKind, Restart, Severity
from statestore.maintenance.audit.judge_root import of_logs, of_root
from statestore.maintenance.audit.judge_store import View, of_store, store_audit, view

_NAMED_FILES = 5

_NO_CHECKSUM = (
    "the logs, the operators' metadata and the binding carry no checksum: they were compared with each other, "
    "with the names of files and with the lineages",
    "a whole file that was replaced by another whole one of the same name is seen only where names, sizes, lineages, "
    "digests or key counts tell it",
)
_BYTES_NOT_READ = "the contents of changelogs and tables were not read: --deep reads every byte"
_NO_STORE = "there is no store: that is so of a query without stateful operators, and of one whose state was deleted"
_SCANNED = (
    "a table's blocks were compared with their checksums by going over all keys and values; its filters, which only "
    "look-ups of single keys read, were not"
)


def judge(facts: AuditFacts, policy: AuditPolicy | None = None) -> Audit:
    """The audit of a checkpoint. Pure."""
    policy = policy or AuditPolicy()
    stores = [store for store in facts.stores if isinstance(store, StoreAuditFacts)]
    is_own, switched = facts.root.binding is not None, facts.root.switched
    views = [view(store, policy, is_own=is_own, switched=switched, begins=_begins(facts, store)) for store in stores]
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
    findings += [_undescribed(store) for store in facts.undescribed]
    order = {what: number for number, what in enumerate(FindingKind)}
    findings.sort(key=lambda f: (f.severity, order[f.what], f.store or StorePath(-1, -1), f.file))
    return Audit(
        max(facts.logs.commits, default=None),
        restart,
        tuple(findings),
        tuple(store_audit(one, policy, quarantined=one.facts.store in facts.root.quarantined) for one in views),
        {store.store: store.decoded for store in stores if store.decoded is not None},
        facts.requests,
        (
            *(() if facts.root.operators or not facts.logs.commits else (_NO_STORE,)),
            _SCANNED if facts.deep else _BYTES_NOT_READ,
            *_NO_CHECKSUM,
            *judge_spark.unproven(facts),
        ),
        facts.stateless,
    )


def _begins(facts: AuditFacts, store: StoreAuditFacts) -> int:
    """The store's first version: not 1 where an older batch, which does not name the store, is in the commit log."""
    oldest = min((*store.gone[:1], *store.committed))
    return oldest if oldest - 2 in facts.logs.readable else 1


def _restart(facts: AuditFacts, views: list[View]) -> Restart:
    if not facts.logs.commits:
        return Restart(None, "no batch is committed yet")
    audited = {one.facts.store.operator for one in views}
    if len(views) < len(facts.stores) or not facts.root.operators.keys() <= audited:
        return Restart(
            None, "from which batch a restart is possible cannot be said: not every store could be looked at"
        )
    newest = max(facts.logs.commits)
    if is_unknown(facts.logs.commits[newest]):
        return Restart(
            None,
            "from which batch a restart is possible cannot be said: the newest commit is of an unknown format",
        )
    for batch in sorted(facts.logs.readable.keys() - facts.misfits.keys() - _without_offsets(facts), reverse=True):
        if all(one.loads_committed(batch + 1) for one in views):
            traps = tuple(trap for one in views for trap in one.traps(batch + 1))
            first = f"when {' and '.join(traps)} {'are' if len(traps) > 1 else 'is'} deleted, " if traps else ""
            if batch == newest:
                text = f"{first}a restart from the head, batch {batch} (version {batch + 1}), is possible"
            else:
                lacks = ", and that has its offsets," if newest in _without_offsets(facts) else ""
                text = f"{first}the newest batch that every store loads{lacks} is {batch} (version {batch + 1})"
            return Restart(batch, text, traps)
    return Restart(None, "there is no batch that every store loads")


def _without_offsets(facts: AuditFacts) -> set[int]:
    """The committed batches whose offsets are gone, or known to be damaged: a start reads those of its batch."""
    damaged = {
        batch
        for batch, log in facts.logs.offsets_read.items()
        if isinstance(log, Bad) and log.flaw is not Flaw.UNKNOWN_FORMAT
    }
    return {batch for batch in facts.logs.commits if batch not in facts.logs.offsets} | damaged


def _not_audited(store: NotAudited) -> Finding:
    unknown = store.bad.flaw is Flaw.UNKNOWN_FORMAT
    return Finding(
        Severity.WARNING if unknown else Severity.ERROR,
        FindingKind.STORE_UNKNOWN_FORMAT if unknown else FindingKind.STORE_NOT_AUDITED,
        store.store,
        store.bad.path,
        store.bad.why,
        "nothing is known of this store",
        "use a Statekeeper that knows this format" if unknown else "mend what the other findings say, audit again",
    )


def _undescribed(store: StorePath) -> Finding:
    return Finding(
        Severity.WARNING,
        FindingKind.STORE_UNDESCRIBED,
        store,
        store.folder,
        "has files of a store that neither the commit log nor an operator's metadata names",
        "nothing looks after these files, and nothing loads them",
        "restore the operator's metadata if the store belongs to this query, else move the folder away",
    )
