"""Plans retention: gives every file a rule. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from statekeeper.statestore.checkpoint.leftovers import leads_back
from statekeeper.statestore.checkpoint.origin import Origin
from statekeeper.statestore.contents.chain import Chain, StoredSnapshot
from statekeeper.statestore.format import names
from statekeeper.statestore.format.names import EMPTY, StorePath, VersionId
from statekeeper.statestore.format.provider import Provider
from statekeeper.statestore.format.snapshot import SnapshotMetadata
from statekeeper.statestore.format.sparks import RETAINED_VERSIONS
from statekeeper.statestore.maintenance.records import announcements
from statekeeper.statestore.maintenance.upkeep.retention import uploads
from statekeeper.statestore.maintenance.upkeep.retention.execute import RemovedPartitions
from statekeeper.statestore.maintenance.upkeep.retention.model import (
    REPLACED,
    BatchLogFile,
    KeptBatchLogs,
    RetentionFacts,
    RetentionPlan,
    RetentionPolicy,
    Rule,
    StoreVerdicts,
    Verdict,
    batch_of,
    findings_of,
    is_young,
    loadable,
    retained_floor,
)
from statekeeper.statestore.maintenance.upkeep.verification import Reads, SnapshotRead, reads_before, remaining
from statekeeper.statestore.storage import Entry, MemberEntry

_KEEPS = (Rule.RESTORES, Rule.WAY_BACK, Rule.PARTITION, Rule.HELD, Rule.RUNNING, Rule.YOUNG)
"""The rules that keep a batch log for one of its changelogs, in the order in which they are shown."""


def plan(
    gathered: RetentionFacts,
    policy: RetentionPolicy,
    *,
    stopped: bool = False,
    spark_retains: int = RETAINED_VERSIONS,
) -> RetentionPlan:
    """Plan which files retention deletes. `stopped`: no Spark query is running or has a store open. `spark_retains`: the
    number of versions that a running Spark query retains. Pure.

    The floor is the newest version, at most `wanted_floor`, that *every* store loads. One damaged store holds the floor for
    all, because a restart needs a version that all stores have. Files below the held floor are deleted nevertheless.
    """
    if gathered.log is None:
        return RetentionPlan(
            origin=gathered.origin,
            head=None,
            floor=None,
            wanted_floor=gathered.wanted_floor,
            stores=(),
            logs=(),
            findings=(),
            stateless=gathered.stateless,
        )
    floor = _floor(gathered)
    findings = [*findings_of(gathered, floor), *filter(None, [gathered.logs.upload_problem])]
    judge = Judge(gathered, policy, floor, spark_retains=None if stopped else spark_retains)
    stores = tuple(judge.store(chain) for chain in gathered.chains)
    findings += [f"{store.store}: {store.problem}" for store in stores if store.problem]
    head = gathered.log.newest.batch + 1
    whole = RetentionPlan(
        origin=gathered.origin,
        head=head,
        floor=floor,
        wanted_floor=gathered.wanted_floor,
        stores=stores,
        logs=judge.logs(),
        findings=tuple(findings),
        batch_logs=judge.kept_batch_logs(),
        holds=gathered.holds,
        removed=judge.removed.verdicts(),
    )
    planned = whole.bounded(policy.most_files)
    return replace(planned, reads=_reads(gathered, planned), reads_on_record=_still_on_record(gathered))


def _reads(gathered: RetentionFacts, planned: RetentionPlan) -> tuple[SnapshotRead, ...]:
    """Return the bases that cannot be replaced after the deletions and that were not read in full.

    It returns the bases of all stores, not only of stores with deletions. Failure sequence otherwise: the base of store A
    is damaged, so the floor must be lower; the files of store B that the lower floor needs are already deleted.
    """
    if not any(verdict.rule in REPLACED for verdict in planned.deletions):
        return ()
    bases = {store.store: store.base for store in planned.stores}
    of_chains = ((chain, bases[chain.store]) for chain in gathered.chains)
    found = (
        reads_before(chain, base, gathered.reads, gathered.conf)
        for chain, base in of_chains
        if base is not None and base != EMPTY
    )
    return tuple(read for read in found if read is not None)


def _still_on_record(gathered: RetentionFacts) -> Reads:
    folders = [chain.store.folder for chain in gathered.chains]
    return remaining(gathered.reads, gathered.entries, folders, only=gathered.since is None)


def _floor(gathered: RetentionFacts) -> int | None:
    # The stores that were not gathered are known to load the wanted floor.
    if gathered.since:
        return gathered.wanted_floor
    return retained_floor(gathered.chains, gathered.wanted_floor, gathered.switched)


def judge_stores(gathered: RetentionFacts, policy: RetentionPolicy) -> Mapping[StorePath, StoreVerdicts]:
    """Return the verdicts on each store's files, without the bounds of a plan: for display. Pure."""
    judge = Judge(gathered, policy, _floor(gathered), spark_retains=RETAINED_VERSIONS)
    return {chain.store: judge.store(chain) for chain in gathered.chains}


class Judge:
    """Assigns a rule to each file. `spark_retains`: the number of versions that a running query of Spark retains; None if
    the query is stopped."""

    def __init__(
        self, gathered: RetentionFacts, policy: RetentionPolicy, floor: int | None, *, spark_retains: int | None
    ) -> None:
        self.gathered = gathered
        self._policy = policy
        self._floor = floor
        self._spark_retains = spark_retains if gathered.origin is Origin.NATIVE else None

    def store(self, chain: Chain) -> StoreVerdicts:
        """Return the verdicts on the files of one store."""
        base = self._base(chain)
        verdicts = [self._other(chain, base, entry) for entry in chain.files.others]
        for version, entry in chain.files.changelogs.items():
            if isinstance(entry, MemberEntry):
                continue  # deleted with its batch log
            rule = self.version_rule(chain, base, version, entry, is_snapshot=False)
            verdicts.append(Verdict(entry.path, entry.size_bytes, rule))
        kept: dict[VersionId, StoredSnapshot | None] = {}
        seen = {**self.gathered.strays.get(chain.store, {}), **chain.snapshots}
        for version, entry in chain.files.snapshots.items():
            rule = self.version_rule(chain, base, version, entry, is_snapshot=True)
            verdicts.append(Verdict(entry.path, entry.size_bytes, rule))
            if not rule.deletes:
                kept[version] = seen.get(version)
        quarantined = self.gathered.quarantine.get(chain.store, {})
        unread = [
            *(chain.store.snapshot(version) for version, facts in kept.items() if facts is None or not facts.metadata),
            *(path for path, metadata in quarantined.items() if metadata is None),
            # A link that the listing omits may lead to a snapshot.
            *filter(None, [self.gathered.unseen.get(chain.store)]),
        ]
        named = _tables(facts.metadata for facts in kept.values() if facts is not None)
        named_in_quarantine = _tables(quarantined.values()) - named
        reusable = self._reusable(seen) - named
        ever_named = _tables(facts.metadata for facts in seen.values())
        for name, entry in chain.files.tables.items():
            if name in reusable:
                rule = Rule.REUSABLE
            elif name in named_in_quarantine:
                rule = Rule.QUARANTINE
            else:
                rule = self._table_rule(name, entry, named, held=bool(unread))
            if rule is Rule.UNNAMED and self._spark_retains is not None and name not in ever_named:
                rule = Rule.UPLOADED
            verdicts.append(Verdict(entry.path, entry.size_bytes, rule))
        problem = None
        if base is None:
            problem = (
                f"gc finds no batch up to {self.gathered.wanted_floor - 1} that every store can restore; it keeps all "
                f"files of this store. Run: statekeeper audit ROOT"
            )
        elif unread:
            problem = f"{unread[0]} cannot be read, so its SST files are unknown; no SST file of the store is deleted"
        return StoreVerdicts(chain.store, base, tuple(sorted(verdicts, key=lambda v: v.path)), problem)

    def _base(self, chain: Chain) -> VersionId | None:
        """Return the base of the floor; None if it is unknown."""
        if chain.conflicts is not None or self._floor is None:
            return None
        wanted, floor = self.gathered.wanted_floor, self._floor
        if floor > wanted:
            # The old end of another store is deleted, maybe by mistake: retain the versions that the policy requires.
            floor = max((number for number in loadable(chain) if number <= wanted), default=floor)
        if floor < chain.begins:
            return EMPTY
        at_floor = next((version for version in chain.versions if version.version == floor), None)
        return None if at_floor is None else chain.bases.get(at_floor)

    def version_rule(
        self, chain: Chain, base: VersionId | None, version: VersionId, entry: Entry, *, is_snapshot: bool
    ) -> Rule:
        """Return the rule of a changelog or a snapshot. `base`: the base of the floor on its chain."""
        if version.version > chain.head.version:
            return Rule.RUNNING
        if chain.conflicts is not None:
            return Rule.HELD
        if leads_back(version, switched=self.gathered.switched, head=chain.head, base=base):
            return Rule.WAY_BACK
        if version in chain.versions:
            if base is None:
                return Rule.HELD
            # The floor is restored from the snapshot at the base; its changelog is not replayed. Spark falls back on that
            # changelog if its snapshot is damaged.
            oldest = base.version if is_snapshot or self.gathered.origin is Origin.NATIVE else base.version + 1
            rule = Rule.RESTORES if version.version >= oldest else Rule.SUPERSEDED
        elif version.version > chain.versions[0].version:
            rule = Rule.DEAD_BRANCH
        else:
            # Older than the known chain, so below the base if there is one. But one repartitioning may have removed a
            # partition that another created again, and retained batches may still need the earlier versions.
            is_below = base is not None and chain.begins <= base.version + 1
            rule = Rule.SUPERSEDED if is_below else Rule.HELD
        if rule.deletes and self.is_young(entry):
            return Rule.YOUNG
        return rule

    def _other(self, chain: Chain, base: VersionId | None, entry: Entry) -> Verdict:
        """Return the verdict on a checksum: the rule of its file, or of its version if the file is missing."""
        former = names.parse_store_path(entry.path, Provider.HDFS_BACKED)
        if former is not None and former[1].version.version < (self.gathered.switched or 0):
            return Verdict(entry.path, entry.size_bytes, self._former_rule(base, entry))
        place = names.parse_store_path(entry.path.removesuffix(names.SIDECAR))
        if place is None or not entry.path.endswith(names.SIDECAR):
            return Verdict(entry.path, entry.size_bytes, Rule.UNKNOWN)
        is_snapshot = place[1].kind is names.StoreFileKind.SNAPSHOT
        rule = self.version_rule(chain, base, place[1].version, entry, is_snapshot=is_snapshot)
        return Verdict(entry.path, entry.size_bytes, rule)

    def _former_rule(self, base: VersionId | None, entry: Entry) -> Rule:
        """Return the rule of a file of the provider from which the checkpoint was converted."""
        if base is None or base.version < (self.gathered.switched or 0):
            return Rule.WAY_BACK
        return Rule.YOUNG if self.is_young(entry) else Rule.SUPERSEDED

    def _reusable(self, seen: Mapping[VersionId, StoredSnapshot]) -> set[str]:
        """Return the tables that a running Spark may reference in its next snapshot, because it loaded or wrote them
        before.

        Spark remembers the tables of the snapshot that it loaded or wrote last. The start of the query is unknown, so it
        may have loaded any snapshot since the newest one that it wrote. Since 4.2, Spark does not reuse tables of versions
        that it does not retain, except when it writes a snapshot within a task (SPARK-55892).
        """
        if self._spark_retains is None or not seen:
            return set()
        newest = max(version.version for version in seen)
        retained = max(self._policy.versions, self._spark_retains)
        written = max((version.version for version, facts in seen.items() if not facts.is_ours), default=0)
        oldest = min(written, newest - retained + 1)
        return _tables(facts.metadata for version, facts in seen.items() if version.version >= oldest)

    def _table_rule(self, name: str, entry: Entry, named: set[str], *, held: bool) -> Rule:
        if name in named:
            return Rule.RESTORES
        if held:
            return Rule.HELD
        return Rule.YOUNG if self.is_young(entry) else Rule.UNNAMED

    def logs(self) -> tuple[Verdict, ...]:
        """Return the verdicts on logs and maintenance records."""
        files = self.gathered.logs
        of_batches = (*files.offsets, *files.commits, *files.pending, *files.checksums)
        verdicts = [self._log_verdict(entry) for entry in of_batches]
        verdicts += [Verdict(e.entry.path, e.entry.size_bytes, self._batch_log_rule(e)) for e in files.batch_logs]
        verdicts += [self._history_verdict(entry) for entry in files.history]
        # Race: by a clock that is ahead, the announcement of a live run looks old, and its tables seem safe to use. So use
        # the clock of the storage, as far as its files show it.
        now = files.newest_seconds
        life = announcements.LIFE_SECONDS
        verdicts += [self._record(e, life, Rule.OLD_RECORD, now) for e in (*files.announcements, *files.holds)]
        # A running upload is never older than the lifetime of an announcement.
        verdicts += [self._record(e, life, Rule.LEFTOVER, now) for e in files.leftovers]
        verdicts += [uploads.verdict(upload, self.gathered.now_seconds) for upload in files.uploads]
        verdicts += self._quarantine()
        return tuple(sorted(verdicts, key=_log_order))

    def _history_verdict(self, entry: Entry) -> Verdict:
        """Return the verdict on a record of a run. A rewind gives the query another id, and its table keeps batches with
        the former one. In a native root, only the plan of the rewind has it; in an own root, the binding."""
        verb, _ = names.parse_history(entry.path) or ("", "")
        has_id = verb == "rewind" and self.gathered.origin is Origin.NATIVE
        rule = Rule.FORMER_ID if has_id else Rule.OLD_RECORD
        return self._record(entry, self._policy.history_seconds, rule, self.gathered.now_seconds)

    def _quarantine(self) -> Iterator[Verdict]:
        """Yield the verdicts on quarantined files.

        The files of one run are deleted together, the record of the query's position first: an undo never restores a
        part of them. The tables of its snapshots are deleted in the next pass.
        """
        by_run: dict[str | None, list[Entry]] = {}
        for entry in self.gathered.logs.quarantine:
            quarantined = names.parse_quarantined(entry.path)
            by_run.setdefault(quarantined[0] if quarantined else None, []).append(entry)
        for run, entries in by_run.items():
            young = any(is_young(e, self._policy.quarantine_seconds, self.gathered.now_seconds) for e in entries)
            rule = Rule.UNKNOWN if run is None else Rule.QUARANTINE if young else Rule.OLD_QUARANTINE
            for entry in entries:
                yield Verdict(entry.path, entry.size_bytes, rule)

    def _log_verdict(self, entry: Entry) -> Verdict:
        return Verdict(entry.path, entry.size_bytes, self._log_rule(entry))

    def _log_rule(self, entry: Entry) -> Rule:
        batch = batch_of(entry.path)
        if batch is None:
            return Rule.UNKNOWN
        if self._floor is None or batch >= self._floor - 1:
            return Rule.LOG
        if entry.path == names.commits(batch) and batch >= self._oldest_base_commit:
            return Rule.RESTORES
        oldest = self._floor
        if self.gathered.origin is Origin.NATIVE:
            oldest = self._floor if self._way_back is None else min(self._floor, self._way_back)
            if batch >= oldest - 1:
                return Rule.WAY_BACK
        # At its start, Spark 3.5 and later reads the newest offsets and the offsets of the batch before. A claim makes the
        # checkpoint of a Python job from those in its root.
        if entry.path == names.offsets(batch) and batch == oldest - 2:
            return Rule.STARTS
        return Rule.YOUNG if self.is_young(entry) else Rule.OLD_LOG

    def _batch_log_rule(self, log: BatchLogFile) -> Rule:
        """Return the rule of a batch log: it is kept as a record of its batch, and as long as any store needs its
        changelog."""
        of_batch = self._log_rule(log.entry)
        if not of_batch.deletes:
            return of_batch
        if log.members is None:
            return Rule.HELD
        rules = {self._member_rule(store, version, log.entry) for store, version in log.members}
        kept = [rule for rule in _KEEPS if rule in rules]
        if kept:
            return kept[0]
        return Rule.SUPERSEDED if Rule.SUPERSEDED in rules else of_batch

    def kept_batch_logs(self) -> KeptBatchLogs | None:
        """Return the kept batch logs, how much of them is needed, and the store that keeps most."""
        kept = [log for log in self.gathered.logs.batch_logs if not self._batch_log_rule(log).deletes]
        if not kept:
            return None
        live_bytes = 0
        needing: list[set[StorePath]] = []
        for log in kept:
            members = log.members or {}
            live = {place: size for place, size in members.items() if not self._member_rule(*place, log.entry).deletes}
            live_bytes += sum(live.values())
            needing.append({store for store, _ in live})
        bases = {store: base.version for store, base in self._bases.items() if base is not None}
        laggard = min(bases, key=lambda store: (bases[store], store), default=None)
        of_laggard = sum(1 for stores in needing if laggard in stores and len(stores) < len(self._chains))
        return KeptBatchLogs(
            files=len(kept),
            size_bytes=sum(log.entry.size_bytes for log in kept),
            live_bytes=live_bytes,
            laggard=laggard if of_laggard else None,
            of_laggard=of_laggard,
        )

    def _member_rule(self, store: StorePath, version: VersionId, entry: Entry) -> Rule:
        chain = self._chains.get(store)
        if chain is None:
            return self.removed.rule(store, entry)
        return self.version_rule(chain, self._bases[store], version, entry, is_snapshot=False)

    @cached_property
    def removed(self) -> RemovedPartitions:
        """The partitions that a rescale removed."""
        way_back = self._way_back is not None
        return RemovedPartitions(gathered=self.gathered, policy=self._policy, floor=self._floor, has_way_back=way_back)

    @cached_property
    def _chains(self) -> Mapping[StorePath, Chain]:
        return {chain.store: chain for chain in self.gathered.chains}

    @cached_property
    def _bases(self) -> Mapping[StorePath, VersionId | None]:
        return {chain.store: self._base(chain) for chain in self.gathered.chains}

    @cached_property
    def _way_back(self) -> int | None:
        """The version of the switchover while files of the structure before it are kept; None if there are none."""
        switched = self.gathered.switched
        bases = [self._base(chain) for chain in self.gathered.chains]
        is_kept = switched is not None and any(base is None or base.version <= switched for base in bases)
        return switched if is_kept else None

    @cached_property
    def _oldest_base_commit(self) -> float:
        """The oldest batch whose commit is kept: in structure V1, a base is valid only with the digest in its commit."""
        bases = [self._base(chain) for chain in self.gathered.chains if chain.head.digest is not None]
        oldest = (0 if base is None else base.version - 1 for base in bases if base != EMPTY)
        return min(oldest, default=math.inf)

    def _record(self, entry: Entry, stays_seconds: float, rule: Rule, now_seconds: float) -> Verdict:
        young = is_young(entry, stays_seconds, now_seconds)
        return Verdict(entry.path, entry.size_bytes, Rule.YOUNG if young else rule)

    def is_young(self, entry: Entry) -> bool:
        """Return whether the file is within the grace period."""
        return is_young(entry, self._policy.grace_seconds, self.gathered.now_seconds)


def _tables(snapshots: Iterable[SnapshotMetadata | None]) -> set[str]:
    """Return the tables of the readable snapshots."""
    return {table.dfs_name for metadata in snapshots if metadata is not None for table in metadata.named_files}


def _log_order(verdict: Verdict) -> tuple[int, str]:
    """Return the sort key for logs: the oldest batch first, so that a crash leaves no gap."""
    batch = batch_of(verdict.path)
    return (-1 if batch is None else batch, verdict.path)
