"""Gives every file its rule, from gathered facts alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from statestore.chain import Chain, SnapshotFacts
from statestore.format.names import StorePath, VersionId
from statestore.maintenance import announcements
from statestore.maintenance.retention.facts import Gathered, batch_of, common_floor, is_young, loadable
from statestore.maintenance.retention.verdicts import RetentionPlan, RetentionPolicy, Rule, StoreVerdicts, Verdict
from statestore.storage import Entry


def plan(gathered: Gathered, policy: RetentionPolicy) -> RetentionPlan:
    """What becomes of every file. Pure.

    The floor is the newest version, no newer than wanted, that *every* store loads: one damaged store holds it for all,
    since a restart has to go back to a version that all have. Garbage below the held floor goes all the same.
    """
    if gathered.log is None or not gathered.is_own:
        why = (
            () if gathered.is_own else ("written by Spark itself: this release deletes in roots of its own jobs only",)
        )
        head = None if gathered.log is None else gathered.log.newest.batch + 1
        return RetentionPlan(gathered.is_own, head, None, gathered.wanted_floor, (), (), why)
    floor = _floor(gathered)
    findings = list(_findings(gathered, floor))
    judge = Judge(gathered, policy, floor)
    stores = tuple(judge.store(chain) for chain in gathered.chains)
    findings += [f"{store.store}: {store.problem}" for store in stores if store.problem]
    head = gathered.log.newest.batch + 1
    whole = RetentionPlan(True, head, floor, gathered.wanted_floor, stores, judge.logs(), tuple(findings))
    return _bounded(whole, policy.most_files)


def _floor(gathered: Gathered) -> int | None:
    # Stores that were not looked at are known to load it.
    return gathered.wanted_floor if gathered.since else common_floor(gathered.chains, gathered.wanted_floor)


def judge_stores(gathered: Gathered, policy: RetentionPolicy) -> Mapping[StorePath, StoreVerdicts]:
    """What the rules say of each store's files, whoever wrote them: for looking at, a plan may say less. Pure."""
    judge = Judge(gathered, policy, _floor(gathered))
    return {chain.store: judge.store(chain) for chain in gathered.chains}


def _findings(gathered: Gathered, floor: int | None) -> Iterator[str]:
    if floor == gathered.wanted_floor:
        return
    for chain in gathered.chains:
        loads = [number for number in loadable(chain) if number <= gathered.wanted_floor]
        if max(loads, default=0) < gathered.wanted_floor:
            holes = (chain.broken[v] for v in reversed(chain.versions) if v in chain.broken and v not in chain.bases)
            broken = chain.odds or next(holes, chain.end)
            yield f"{chain.store}: version {gathered.wanted_floor} does not load: {broken}"


class Judge:
    """Gives each file its rule."""

    def __init__(self, gathered: Gathered, policy: RetentionPolicy, floor: int | None) -> None:
        self.gathered = gathered
        self._policy = policy
        self._floor = floor

    def store(self, chain: Chain) -> StoreVerdicts:
        """The verdicts over one store's files."""
        at_floor = next((version for version in chain.versions if version.version == self._floor), None)
        base = None if at_floor is None or chain.odds is not None else chain.bases.get(at_floor)
        verdicts = [Verdict(entry.path, entry.size_bytes, Rule.UNKNOWN) for entry in chain.files.others]
        for version, entry in chain.files.changelogs.items():
            rule = self.version_rule(chain, base, version, entry, is_snapshot=False)
            verdicts.append(Verdict(entry.path, entry.size_bytes, rule))
        kept: dict[VersionId, SnapshotFacts | None] = {}
        seen = {**self.gathered.strays.get(chain.store, {}), **chain.snapshots}
        for version, entry in chain.files.snapshots.items():
            rule = self.version_rule(chain, base, version, entry, is_snapshot=True)
            verdicts.append(Verdict(entry.path, entry.size_bytes, rule))
            if not rule.deletes:
                kept[version] = seen.get(version)
        unread = [version for version, facts in kept.items() if facts is None or facts.metadata is None]
        named = {
            t.dfs_name for f in kept.values() if f is not None and f.metadata is not None for t in f.metadata.tables
        }
        for name, entry in chain.files.tables.items():
            verdicts.append(Verdict(entry.path, entry.size_bytes, self._table_rule(name, entry, named, unread)))
        problem = None
        if base is None:
            problem = (
                f"no version up to {self.gathered.wanted_floor} is known to load in every store: nothing of it goes"
            )
        elif unread:
            problem = f"which tables {chain.store.snapshot(unread[0])} names is not known: none goes"
        return StoreVerdicts(chain.store, base, tuple(sorted(verdicts, key=lambda v: v.path)), problem)

    def version_rule(
        self, chain: Chain, base: VersionId | None, version: VersionId, entry: Entry, *, is_snapshot: bool
    ) -> Rule:
        """Of a changelog or a snapshot, whose chain is restored from a base at the floor."""
        if version.version > chain.head.version:
            return Rule.RUNNING
        if chain.odds is not None:
            return Rule.HELD
        if version in chain.versions:
            if base is None:
                return Rule.HELD
            # A snapshot at the base is what is restored from; its changelog adds nothing.
            oldest = base.version if is_snapshot else base.version + 1
            rule = Rule.RESTORES if version.version >= oldest else Rule.SUPERSEDED
        elif version.version > chain.versions[0].version:
            rule = Rule.DEAD_BRANCH
        else:
            # Older than the chain is known: dead or not, it is below the base, when there is one.
            rule = Rule.HELD if base is None else Rule.SUPERSEDED
        if rule.deletes and self.is_young(entry):
            return Rule.YOUNG
        return rule

    def _table_rule(self, name: str, entry: Entry, named: set[str], unread: list[VersionId]) -> Rule:
        if name in named:
            return Rule.RESTORES
        if unread:
            return Rule.HELD
        return Rule.YOUNG if self.is_young(entry) else Rule.UNNAMED

    def logs(self) -> tuple[Verdict, ...]:
        """The verdicts over logs and records."""
        files = self.gathered.logs
        verdicts = [
            self._log_verdict(entry, batch_of(entry.path)) for entry in (*files.offsets, *files.commits, *files.pending)
        ]
        verdicts += [
            self._record(e, self._policy.history_seconds, Rule.OLD_RECORD, self.gathered.now_seconds)
            for e in files.history
        ]
        # Losing schedule: by a clock that is ahead, the announcement of a run that lives looks old, and what it dooms is
        # rested on. So by the store's own clock, as far as its files show it.
        now = files.newest_seconds
        stands = announcements.STANDS_SECONDS
        verdicts += [self._record(e, stands, Rule.OLD_RECORD, now) for e in files.announcements]
        # The longest upload that is still under way is no older than an announcement may stand.
        verdicts += [self._record(e, stands, Rule.LEFTOVER, now) for e in files.leftovers]
        return tuple(sorted(verdicts, key=_log_order))

    def _log_verdict(self, entry: Entry, batch: int | None) -> Verdict:
        if batch is None:
            return Verdict(entry.path, entry.size_bytes, Rule.UNKNOWN)
        if self._floor is None or batch >= self._floor - 1:
            return Verdict(entry.path, entry.size_bytes, Rule.LOG)
        return Verdict(entry.path, entry.size_bytes, Rule.YOUNG if self.is_young(entry) else Rule.OLD_LOG)

    def _record(self, entry: Entry, stays_seconds: float, rule: Rule, now_seconds: float) -> Verdict:
        young = is_young(entry, stays_seconds, now_seconds)
        return Verdict(entry.path, entry.size_bytes, Rule.YOUNG if young else rule)

    def is_young(self, entry: Entry) -> bool:
        """Whether the grace period still keeps it."""
        return is_young(entry, self._policy.grace_seconds, self.gathered.now_seconds)


def _log_order(verdict: Verdict) -> tuple[int, str]:
    """The oldest batch first, so that what a crash leaves has no gap."""
    batch = batch_of(verdict.path)
    return (-1 if batch is None else batch, verdict.path)


def _bounded(whole: RetentionPlan, most_files: int) -> RetentionPlan:
    """The plan with so many deletions at most; the rest waits for the next run."""
    order = whole.deletions
    if len(order) <= most_files:
        return whole
    # A table must not go before the zip that names it: the cut goes through a list in which it stands behind.
    late = {verdict.path for verdict in order[most_files:]}
    stores = tuple(replace(store, files=tuple(v for v in store.files if v.path not in late)) for store in whole.stores)
    logs = tuple(verdict for verdict in whole.logs if verdict.path not in late)
    return replace(whole, stores=stores, logs=logs, left_out=len(late))
